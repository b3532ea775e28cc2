"""DeepSpeed's timer lines, new and old, and those of its pipeline engine:

`[2024-07-17 19:53:24,981] [INFO] [timer.py:258:stop] epoch=0/micro_step=4500/global_step=4500, RunningAvgSamplesPerSec=16.12, CurrSamplesPerSec=16.81, MemAllocated=0.02GB, MaxMemAllocated=0.97GB`
`[2022-03-11 02:07:14,130] [INFO] [timer.py:189:stop] 0/50, SamplesPerSec=83.74, MemAllocated=0.26GB, MaxMemAllocated=9.02GB`
`steps: 10 loss: 1.2345 iter time (s): 0.512 samples/sec: 62.5`

Rank: not in the line. Samples per second are those of the whole batch. The last step is the furthest rank's.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.ledger.formats import Format
from allranks.ledger.formats.steps import found, missed, step
from allranks.ledger.lines import Line
from allranks.ledger.record import Record, Remark
from allranks.ledger.text import NUMBER, RATE

_RUNNING, _PIPE = b"SamplesPerSec=", b"iter time (s): "
_TIMER = re.compile(
    rb"(?:epoch=\d+/micro_step=\d+/global_step=|(?<![\d/])\d+/)"
    rb"(?P<step>\d+), (?:RunningAvg)?SamplesPerSec=(?P<throughput>%(n)s)"
    rb"(?:, CurrSamplesPerSec=%(n)s)?(?=,|\s|$)" % {b"n": NUMBER}
)
_STEPS = re.compile(
    rb"steps: (?P<step>\d+) loss:\s*(?P<loss>%(n)s) iter time \(s\):\s*(?P<step_time>%(n)s) "
    rb"samples/sec:\s*(?P<throughput>%(r)s)(?=\s|$)" % {b"n": NUMBER, b"r": RATE}
)


def _read(line: Line) -> Iterator[Record | Remark]:
    count = piped = 0
    for match in found(line, _TIMER):
        count += 1
        yield step(match)
    for match in found(line, _STEPS):
        piped += 1
        yield step(match)
    told = line.text.count(b"CurrSamplesPerSec=", line.start, line.end)
    if count + told < line.text.count(_RUNNING, line.start, line.end):
        yield from missed(line, _RUNNING, count, "a timer line")
    yield from missed(line, _PIPE, piped)


FORMAT = Format("deepspeed", (_RUNNING, _PIPE), lambda: _read, lasting=True)
