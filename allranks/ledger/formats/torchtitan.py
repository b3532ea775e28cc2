"""torchtitan's step lines:

`[rank0]:[titan] 2025-07-21 15:57:42,774 - root - INFO - step:  3  loss:  4.9925  grad_norm:  2.6422  memory:  0.00GiB(0.00%)  tps: 30,768  tflops: 3.15  mfu: 0.32%`

Rank: not in the line. The prefix is torchrun's (role `rank`), its number a local rank. `tps` is tokens per second of one
device. The last step is the one that the furthest rank reached, or any before `Training completed`.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.ledger.formats import Format
from allranks.ledger.formats.steps import found, missed, step
from allranks.ledger.lines import Line
from allranks.ledger.record import DONE, Record, Remark
from allranks.ledger.text import NUMBER, RATE

_MARKER = b"GiB("
_OVER = b"Training completed"
_PATTERN = re.compile(
    rb"step:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>%(n)s)\s+(?:[\w/]+:\s*%(n)s\s+)*memory:\s*%(n)sGiB\(%(n)s%%\)\s+"
    rb"(?:tps|wps):\s*(?P<throughput>%(r)s)(?=\s+(?:tflops|mfu): |\s*$|\s*[\r\n])" % {b"n": NUMBER, b"r": RATE}
)
_ENDED = re.compile(rb"Training completed\b")


def _read(line: Line) -> Iterator[Record | Remark]:
    count = 0
    for match in found(line, _PATTERN):
        count += 1
        yield step(match)
    if b"loss:" in line.text:
        yield from missed(line, _MARKER, count)
    if b"[titan]" in line.text or b"root - INFO" in line.text:
        for match in found(line, _ENDED):
            yield Record(DONE, None, {}, span=match.span())


FORMAT = Format("torchtitan", (_MARKER, _OVER), lambda: _read, unit="tokens/s")
