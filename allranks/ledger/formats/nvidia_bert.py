"""The NVIDIA BERT suite's lines, per process and for all of them:

`Process 3 - Throughput: 49.97 samples/second`, `Process 3 - Training time: 1.23 seconds`,
`Average Throughput: 49.97 samples/second`
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.ledger.formats import Format
from allranks.ledger.lines import Line
from allranks.ledger.record import FIGURES, SUMMARY, Record, Remark
from allranks.ledger.text import NUMBER, is_quoted, number
from allranks.text import printable

_MARKERS = (b" - Throughput: ", b" - Training time: ", b"Average Throughput: ")
_PATTERN = re.compile(
    rb"Process\s+(?P<rank>\d{1,9}) - Throughput: (?P<throughput>%(n)s)\s*samples/s(?:ec(?:ond)?)?"
    rb"|Process\s+(?P<timed_rank>\d{1,9}) - Training time: (?P<total_time>%(n)s)\s*s(?:ec(?:onds?)?)?"
    rb"|Average Throughput: (?P<average>%(n)s)\s*samples/s(?:ec(?:ond)?)?" % {b"n": NUMBER}
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
        elif match["average"] is not None:
            yield Record(SUMMARY, None, {"throughput_average": number(match["average"])})
        elif match["rank"] is not None:
            yield Record(FIGURES, int(match["rank"]), {"throughput": number(match["throughput"])})
        else:
            yield Record(FIGURES, int(match["timed_rank"]), {"total_time": number(match["total_time"])})
    if found < sum(line.text.count(marker, line.start, line.end) for marker in _MARKERS):
        yield Remark("malformed", "a figure that is not whole", printable(line.text[line.start :], 200))


FORMAT = Format("nvidia-bert", _MARKERS, lambda: _read)
