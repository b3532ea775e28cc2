"""The dictionaries of Hugging Face's Trainer, in versions that print numbers and in those that print strings:

`{'loss': 2.3456, 'grad_norm': 1.23, 'learning_rate': 4.5e-05, 'epoch': 0.1}`
`{'train_runtime': 123.4567, 'train_samples_per_second': 81.0, 'train_steps_per_second': 2.53, 'train_loss': 1.234, 'epoch': 3.0}`

One rank speaks for all: samples per second are the job's. Steps are counted in epochs; the last is the one before the
dictionary with the run time, without which a training is not over.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.ledger.formats import Format
from allranks.ledger.formats.steps import found
from allranks.ledger.lines import Line
from allranks.ledger.record import DONE, STEP, Record, Remark
from allranks.ledger.text import NUMBER, number
from allranks.text import printable

_STEP, _END = b"{'loss': ", b"{'train_runtime': "
_VALUE = rb"'?(?:%(n)s)'?" % {b"n": NUMBER}
_DICT = re.compile(rb"\{'(?:loss|train_runtime)': %(v)s(?:, '[\w/.-]{1,80}': %(v)s)*\}" % {b"v": _VALUE})
_ITEM = re.compile(rb"'([\w/.-]+)': '?(%(n)s)'?" % {b"n": NUMBER})
_LIST = re.compile(rb"(?:[\[(=,]|['\"]:)\s*$")
_NAMES = {
    b"train_runtime": "total_time",
    b"train_samples_per_second": "throughput",
    b"train_loss": "loss_mean",
    b"epoch": "epoch",
}


def _read(line: Line) -> Iterator[Record | Remark]:
    count = 0
    for match in found(line, _DICT):
        count += 1
        if _LIST.search(line.text[max(0, match.start() - 8) : match.start()]):
            continue  # an item of a dump: log_history=[{…}, {…}]
        items = {name: number(value) for name, value in _ITEM.findall(match.group())}
        if b"train_runtime" in items:
            fields = {_NAMES[name]: value for name, value in items.items() if name in _NAMES}
            yield Record(DONE, None, fields, span=match.span())
        elif b"epoch" in items:
            yield Record(STEP, None, {"step": items[b"epoch"], "loss": items[b"loss"]}, span=match.span())
    if count < sum(line.text.count(marker, line.start, line.end) for marker in (_STEP, _END)):
        yield Remark("malformed", "a dictionary that is not whole", printable(line.text[line.start :], 200))


FORMAT = Format("hf-trainer", (_STEP, _END), lambda: _read, one_for_all=True, lasting=True, needs_end=True)
