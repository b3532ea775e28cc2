"""The step lines of the C++ training framework's GPT-2 and Llama 3 examples (mission L12), one line each:

`step    3/10 | train loss 4.370156 | lr 1.00e-05 | (120.50 ms | 42482 tok/s | peak used:  1234 MB | peak reserved: …, DP=8, TP=1, SP=1, PP=1)`

Rank: not in the line; from prefixes or the log's name. World size: DP × TP × PP (SP shares TP's ranks).
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.ledger.formats import Format
from allranks.ledger.formats.steps import found, missed, step
from allranks.ledger.lines import Line
from allranks.ledger.record import Record, Remark
from allranks.ledger.text import NUMBER, RATE, UNIT, seconds

_MARKER = b"| train loss "
_PATTERN = re.compile(
    rb"step\s+(?P<step>\d+)/(?P<planned>\d+) \| train loss\s+(?P<loss>%(n)s) \| lr\s+(?P<lr>%(n)s)"
    rb" \| \(\s*(?P<_time>%(n)s)\s*(?P<_unit>%(u)s) \|\s+(?P<throughput>%(r)s)\s*tok/s"
    rb"(?P<_rest>[^()\r\n]{0,200}\))" % {b"n": NUMBER, b"r": RATE, b"u": UNIT}
)
_SIZES = re.compile(rb"\b(DP|TP|PP)=(\d{1,6})")


def _read(line: Line) -> Iterator[Record | Remark]:
    count = 0
    for match in found(line, _PATTERN):
        count += 1
        sizes = {name: int(value) for name, value in _SIZES.findall(match["_rest"])}
        world = sizes[b"DP"] * sizes[b"TP"] * sizes[b"PP"] if len(sizes) == 3 else None
        yield step(match, world or None, step_time=seconds(match["_time"], match["_unit"]))
    yield from missed(line, _MARKER, count)


FORMAT = Format("step-lines", (_MARKER,), lambda: _read, unit="tokens/s")
