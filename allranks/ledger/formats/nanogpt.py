"""nanoGPT's iteration lines:

`iter 100: loss 3.1234, time 123.45ms, mfu 12.34%`
`tokens per iteration will be: 491,520`

Rank: not in the lines; nanoGPT's master process alone prints them. Throughput, tokens per iteration over time, is the
job's. The last step is the one that the furthest rank reached.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.ledger.formats import Format, Reader
from allranks.ledger.formats.steps import found, missed, step
from allranks.ledger.lines import Line
from allranks.ledger.record import Record, Remark
from allranks.ledger.text import NUMBER, UNIT, number, seconds

_MARKER = b", time "
_TOKENS = b"tokens per iteration will be: "
_PATTERN = re.compile(
    rb"iter (?P<step>\d+): loss (?P<loss>%(n)s), time (?P<_time>%(n)s)\s*(?P<_unit>%(u)s)(?:, mfu %(n)s%%)?"
    % {b"n": NUMBER, b"u": UNIT}
)
_SIZE = re.compile(rb"tokens per iteration will be: (%(n)s)(?=\s|$)" % {b"n": NUMBER})


def _reader() -> Reader:
    tokens: list[float] = []

    def read(line: Line) -> Iterator[Record | Remark]:
        for match in found(line, _SIZE):
            tokens[:] = [number(match[1])]
        count = 0
        for match in found(line, _PATTERN):
            count += 1
            time = seconds(match["_time"], match["_unit"])
            yield step(match, step_time=time, throughput=tokens[0] / time if tokens and time > 0 else None)
        if b": loss " in line.text:
            yield from missed(line, _MARKER, count)

    return read


FORMAT = Format("nanogpt", (_MARKER, _TOKENS), _reader, unit="tokens/s")
