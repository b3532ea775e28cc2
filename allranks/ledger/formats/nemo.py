"""NeMo's iteration lines (2.x) and progress bars (1.x):

`Training epoch 0, iteration 9/99 | lr: 0.0006 | consumed_samples: 320 | global_batch_size: 32 | global_step: 9 | reduced_train_loss: 11.02 | train_step_timing in s: 0.031`
`Epoch 0:  10%|█ | 10/100 [01:10<10:30, 7.0s/it, v_num=, reduced_train_loss=10.9, global_step=9.000, consumed_samples=320.0]`

One rank speaks for all: the throughput, batch over time, is the job's. Iterations count from 0, the last is n−1 of n−1.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.ledger.formats import Format
from allranks.ledger.formats.steps import fields_of, found, missed, step
from allranks.ledger.lines import Line
from allranks.ledger.record import STEP, Record, Remark
from allranks.ledger.text import NUMBER, number

_MARKER = b"reduced_train_loss"
_LINE = re.compile(
    rb"Training epoch \d+, iteration (?P<step>\d+)/(?P<planned>\d+) \|"
    rb"(?P<_rest>(?: [\w. ]{1,60}: %(n)s(?: \||(?=\s|$|[\x00\[])))+)" % {b"n": NUMBER}
)
_BAR = re.compile(
    rb"Epoch \d+:[^\r\n]{0,120}?\|\s*(?P<_done>\d+)/(?P<_all>\d+) \[[^\]\r\n]{0,120}reduced_train_loss=(?P<loss>%(n)s)"
    rb"(?:, [\w. ]+=%(n)s)*?, global_step=(?P<step>%(n)s)(?P<_rest>(?:, [\w. ]+=%(n)s)*)\]" % {b"n": NUMBER}
)
_FIELD = re.compile(rb"(reduced_train_loss|train_step_timing in s|global_batch_size)[:=] ?(%(n)s)" % {b"n": NUMBER})


def _read(line: Line) -> Iterator[Record | Remark]:
    count = 0
    for match in found(line, _LINE):
        told = {name: number(value) for name, value in _FIELD.findall(match["_rest"])}
        if b"reduced_train_loss" not in told:
            continue
        count += 1
        time, batch = told.get(b"train_step_timing in s"), told.get(b"global_batch_size")
        rate = batch / time if time and batch else None
        yield step(match, loss=told[b"reduced_train_loss"], step_time=time, throughput=rate)
    for match in found(line, _BAR):
        count += 1
        told = {name: number(value) for name, value in _FIELD.findall(match["_rest"])}
        fields = fields_of(match.groupdict()) | {"planned": float(match["_all"]) - 1}
        if b"train_step_timing in s" in told:
            fields["step_time"] = told[b"train_step_timing in s"]
        yield Record(STEP, None, fields, span=match.span())
    yield from missed(line, _MARKER, count)


FORMAT = Format("nemo", (_MARKER,), lambda: _read, one_for_all=True, lasting=True)
