"""Lightning's progress bars, and what it says of its processes:

`Epoch 2: 100%|██████████| 100/100 [00:10<00:00,  9.85it/s, v_num=0, train_loss=0.123]`
`Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8`
"`Trainer.fit` stopped: `max_epochs=3` reached."

One rank speaks for all in the bars. Every rank says that it takes part, with its global rank and the world size. The
last step is the end of the last epoch's bar, or any before `Trainer.fit` stopped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from allranks.ledger.formats import Format
from allranks.ledger.formats.steps import found, step
from allranks.ledger.lines import Line
from allranks.ledger.record import DONE, MEMBER, Record, Remark
from allranks.ledger.text import NUMBER, number

_MARKERS = (b"Epoch ", b"GLOBAL_RANK: ", b"`Trainer.fit` stopped", b"distributed processes registered")
_BAR = re.compile(
    rb"Epoch (?P<_epoch>\d+):\s*\d+%%\|[^|\r\n]{0,200}\|\s*(?P<_done>\d+)/(?P<_all>\d+) "
    rb"\[[^\],\r\n]{1,40},\s*(?P<_speed>%(n)s)(?P<_way>it/s|s/it)(?P<_rest>(?:, [^,=\]\r\n]{1,60}=[^,\]\r\n]{0,60})*)\]"
    % {b"n": NUMBER}
)
_LOSS = re.compile(rb", (?:train[_/]?)?loss(?:_step)?=(%(n)s)(?=,|$)" % {b"n": NUMBER})
_MEMBER = re.compile(rb"GLOBAL_RANK: (\d{1,7}), MEMBER: (\d{1,7})/(\d{1,7})(?=\s|$)")
_STARTING = re.compile(rb"All distributed processes registered\. Starting with (\d{1,7}) process")
_STOPPED = re.compile(rb"`Trainer\.fit` stopped: `max_\w+=[^`\r\n]{1,40}` reached")


def _read(line: Line) -> Iterator[Record | Remark]:
    for match in found(line, _BAR):
        if b"reduced_train_loss" in match["_rest"]:
            continue  # NeMo's
        epoch, done, size = (int(match[name]) for name in ("_epoch", "_done", "_all"))
        speed = number(match["_speed"])
        time = (1 / speed if speed else None) if match["_way"] == b"it/s" else speed
        loss = _LOSS.search(match["_rest"])
        yield step(
            match,
            step=float(epoch * size + done),
            planned=float((epoch + 1) * size),
            step_time=time if done else None,
            loss=number(loss[1]) if loss else None,
        )
    for match in found(line, _MEMBER):
        yield replace(Record(MEMBER, int(match[1]), {}, span=match.span()), world=int(match[3]) or None)
    for match in found(line, _STARTING):
        yield replace(Record(MEMBER, None, {}, span=match.span()), world=int(match[1]) or None)
    for match in found(line, _STOPPED):
        yield Record(DONE, None, {}, span=match.span())


FORMAT = Format("lightning", _MARKERS, lambda: _read, one_for_all=True, lasting=True)
