"""The Neuron BERT suite's line, one per rank at its end (our own programs print it for people as well):

`[Rank 3] - local_samples=78.1, total_time=1.56s, local_throughput=49.97 samples/s, local_avg_epoch_time=0.31s`
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.ledger.formats import Format
from allranks.ledger.lines import Line
from allranks.ledger.record import FIGURES, Record, Remark
from allranks.ledger.text import NUMBER, is_quoted, number
from allranks.text import printable

_MARKER = b"local_throughput="
# To the last unit: a line that was cut, or into which another rank's was printed, must not match in part.
_PATTERN = re.compile(
    rb"\[Rank\s+(\d{1,9})\]\s*-\s*"
    rb"(?:local_samples=(?P<samples>%(n)s),\s*)?"
    rb"(?:\w*time=(?P<total_time>%(n)s)\s*s,\s*)?"
    rb"local_throughput=(?P<throughput>%(n)s)\s*samples/s(?:ec(?:ond)?)?,\s*"
    rb"local_avg_epoch_time=(?P<epoch_time>%(n)s)\s*s" % {b"n": NUMBER}
)


def _read(line: Line) -> Iterator[Record | Remark]:
    line = line.without_escapes()
    found = 0
    for match in _PATTERN.finditer(line.text, line.start):
        if match.start() >= line.end:
            break
        found += 1
        if is_quoted(line.text, match.start(), match.end()):
            yield Remark("quoted", "quoted, not said by a rank", printable(match.group()))
            continue
        figures = {name: number(value) for name, value in match.groupdict().items() if value is not None}
        yield Record(FIGURES, int(match.group(1)), figures)
    if found < line.text.count(_MARKER, line.start, line.end):
        yield Remark("malformed", "a throughput line that is not whole", printable(line.text[line.start :], 200))


FORMAT = Format("neuron-bert", (_MARKER,), lambda: _read)
