"""Megatron-LM's iteration lines, and those of its forks:

` [2025-01-15 10:00:00] iteration      100/  500000 | consumed samples:        25600 | elapsed time per iteration (ms): 1234.5 | … | global batch size:   256 | lm loss: 1.012345E+01 | … | number of nan iterations:   0 |`

One rank (the last) speaks for all: the throughput, batch over time, is the job's. World size: `using world size: 8, …`.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from allranks.ledger.formats import Format
from allranks.ledger.formats.steps import found, missed, step
from allranks.ledger.lines import Line
from allranks.ledger.record import MEMBER, Record, Remark
from allranks.ledger.text import NUMBER, number

_MARKER = b"elapsed time per iteration (ms): "
_WORLD = b"using world size: "
_PATTERN = re.compile(
    rb"iteration\s+(?P<step>\d+)/\s*(?P<planned>\d+) \|(?P<_first>(?:[^|\r\n]{1,120}\|){0,8}?)"
    rb" elapsed time per iteration \(ms\): (?P<_time>%(n)s) \|(?P<_rest>(?:[^|\r\n]{1,120}\|){1,24})" % {b"n": NUMBER}
)
_BATCH = re.compile(rb"global batch size:\s*(%(n)s) \|" % {b"n": NUMBER})
_LOSS = re.compile(rb" (?:lm|total|train)[ _]loss:\s*(%(n)s) \|" % {b"n": NUMBER})
_NAN = re.compile(rb"number of nan iterations:\s*(\d+) \|")
_SIZE = re.compile(rb"using world size: (\d{1,7}),")


def _read(line: Line) -> Iterator[Record | Remark]:
    count = 0
    for match in found(line, _PATTERN):
        count += 1
        rest, time = match["_first"] + match["_rest"], number(match["_time"]) / 1000
        batch, loss, nan = _BATCH.search(rest), _LOSS.search(rest), _NAN.search(rest)
        broken = nan is not None and int(nan[1]) > 0
        yield step(
            match,
            step_time=time,
            throughput=number(batch[1]) / time if batch and time > 0 else None,
            loss=float("nan") if broken else number(loss[1]) if loss else None,
        )
    yield from missed(line, _MARKER, count)
    for match in found(line, _SIZE):
        yield replace(Record(MEMBER, None, {}, span=match.span()), world=int(match[1]) or None)


FORMAT = Format("megatron", (_MARKER, _WORLD), lambda: _read, one_for_all=True)
