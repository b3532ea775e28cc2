"""What launchers say of a job that failed: ours, and torchrun's.

`allranks: FAILED: rank 3 exited with code 17 (local rank 1), node 1, pod bert-1, on ip-10-0-3-7`
`torch.distributed.elastic.multiprocessing.errors.ChildFailedError:`
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.ledger.formats import Format
from allranks.ledger.lines import Line
from allranks.ledger.record import FAILURE, Record, Remark
from allranks.ledger.text import is_quoted
from allranks.text import printable

_OURS = b"allranks: FAILED: "
_TORCHRUN = b"errors.ChildFailedError:"
_RANK = re.compile(r"rank (\d{1,9}) ")
_NODE = re.compile(r"(node \d{1,9})\b(?:, pod [\w.-]+)?(?:, on [\w.-]+)?$")


def _read(line: Line) -> Iterator[Record | Remark]:
    text = line.without_escapes().text.rstrip()
    at = text.find(_OURS)
    if at >= 0 and not is_quoted(text, at, len(text)):
        said = printable(text[at + len(_OURS) :])
        rank, node = _RANK.match(said), _NODE.search(said)
        fields = {"message": said, "launcher": node.group(1) if node else "ours"}
        yield Record(FAILURE, int(rank.group(1)) if rank else None, fields)
    if _TORCHRUN in text:
        yield Record(FAILURE, None, {"message": "torchrun reports a failed process (ChildFailedError)"})


FORMAT = Format("launchers", (_OURS, _TORCHRUN), lambda: _read)
