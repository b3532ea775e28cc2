"""The NVIDIA BERT suite's lines, per process and for all of them:

`Process 3 - Throughput: 49.97 samples/second`, `Process 3 - Training time: 1.23 seconds`,
`Average Throughput: 49.97 samples/second`

Rank: in the line, global. The average is said for no rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.ledger.formats import Format
from allranks.ledger.formats.steps import found
from allranks.ledger.lines import Line
from allranks.ledger.record import FIGURES, SUMMARY, Record, Remark
from allranks.ledger.text import NUMBER, RATE, UNIT, number, seconds
from allranks.text import printable

_MARKERS = (b" - Throughput: ", b" - Training time: ", b"Average Throughput: ")
_PATTERN = re.compile(
    rb"Process\s+(?P<rank>\d{1,9}) - Throughput: (?P<throughput>%(r)s)\s*samples/s(?:ec(?:ond)?)?"
    rb"|Process\s+(?P<timed_rank>\d{1,9}) - Training time: (?P<total_time>%(n)s)\s*(?P<unit>%(u)s)"
    rb"|Average Throughput: (?P<average>%(r)s)\s*samples/s(?:ec(?:ond)?)?" % {b"n": NUMBER, b"r": RATE, b"u": UNIT}
)


def _read(line: Line) -> Iterator[Record | Remark]:
    line = line.without_escapes()
    count = 0
    for match in found(line, _PATTERN):
        count += 1
        if match["average"] is not None:
            yield Record(SUMMARY, None, {"throughput_average": number(match["average"])}, span=match.span())
        elif match["rank"] is not None:
            yield Record(FIGURES, int(match["rank"]), {"throughput": number(match["throughput"])}, span=match.span())
        else:
            time = seconds(match["total_time"], match["unit"])
            yield Record(FIGURES, int(match["timed_rank"]), {"total_time": time}, span=match.span())
    if count < sum(line.text.count(marker, line.start, line.end) for marker in _MARKERS):
        yield Remark("malformed", "a figure that is not whole", printable(line.text[line.start :], 200))


FORMAT = Format("nvidia-bert", (b"Throughput: ", b" - Training time: "), lambda: _read)
