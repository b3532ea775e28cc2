"""The Neuron BERT suite's line, one per rank at its end (our own programs print it for people as well):

`[Rank 3] - local_samples=78.1, total_time=1.56s, local_throughput=49.97 samples/s, local_avg_epoch_time=0.31s`

Rank: in the line, global.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.ledger.formats import Format
from allranks.ledger.formats.steps import found, missed
from allranks.ledger.lines import Line
from allranks.ledger.record import FIGURES, Record, Remark
from allranks.ledger.text import NUMBER, RATE, UNIT, number, seconds

_MARKER = b"local_throughput="
# To the last unit: a line that was cut, or into which another rank's was printed, must not match in part.
_PATTERN = re.compile(
    rb"\[Rank\s+(\d{1,9})\]\s*-\s*"
    rb"(?:local_samples=(?P<samples>%(r)s),\s*)?"
    rb"(?:\w*time=(?P<total_time>%(n)s)\s*(?P<total_unit>%(u)s),\s*)?"
    rb"local_throughput=(?P<throughput>%(r)s)\s*samples/s(?:ec(?:ond)?)?,\s*"
    rb"local_avg_epoch_time=(?P<epoch_time>%(n)s)\s*(?P<epoch_unit>%(u)s)" % {b"n": NUMBER, b"r": RATE, b"u": UNIT}
)


def _read(line: Line) -> Iterator[Record | Remark]:
    line = line.without_escapes()
    count = 0
    for match in found(line, _PATTERN):
        count += 1
        figures = {"throughput": number(match["throughput"])}
        figures["epoch_time"] = seconds(match["epoch_time"], match["epoch_unit"])
        if match["samples"] is not None:
            figures["samples"] = number(match["samples"])
        if match["total_time"] is not None:
            figures["total_time"] = seconds(match["total_time"], match["total_unit"])
        yield Record(FIGURES, int(match[1]), figures, span=match.span())
    yield from missed(line, _MARKER, count, "a throughput line")


FORMAT = Format("neuron-bert", (_MARKER,), lambda: _read)
