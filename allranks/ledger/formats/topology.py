"""What a log says of its node, by which a local rank becomes a global one:

`RANK=5 LOCAL_RANK=1 WORLD_SIZE=8` (a program's or `env`'s), `GROUP_RANK=1`, `LOCAL_WORLD_SIZE=4`
`torchrun --nnodes 2 --nproc-per-node 4 --node-rank 1 train.py`
`  group_rank=1`, `  local_ranks=[0, 1, 2, 3]`, `  global_ranks=[4, 5, 6, 7]` (torchrun's rendezvous result, LOGLEVEL=INFO)
`  nproc_per_node   : 4` (torchrun's launch configuration)

None of this is a rank's report, and no world size: that is for process groups to say.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.ledger.formats import Format, Reader
from allranks.ledger.formats.steps import found
from allranks.ledger.lines import Line
from allranks.ledger.record import FACT, Record, Remark

_MARKERS = (
    b"RANK=",
    b"LOCAL_WORLD_SIZE=",
    b"group_rank=",
    b"_ranks=[",
    b"nproc_per_node",
    b"nproc-per-node",
    b"node_rank",
    b"node-rank",
)
_NUMBERS = re.compile(
    rb"(?<![\w$])(?P<name>RANK|LOCAL_RANK|GROUP_RANK|NODE_RANK|LOCAL_WORLD_SIZE|group_rank)=[\"']?(?P<value>\d{1,7})(?![\w.])"
    rb"|--?(?P<option>nproc[_-]per[_-]node|node[_-]rank)[= ]+[\"']?(?P<number>\d{1,7})(?![\w.])"
    rb"|(?<!\S)nproc_per_node\s+: (?P<nproc>\d{1,7})\s*$"
)
_LISTS = re.compile(rb"(?<!\w)(local|global)_ranks=\[(\d[\d, ]*)\]")
_NAMES = {
    b"RANK": "rank",
    b"LOCAL_RANK": "local",
    b"GROUP_RANK": "node",
    b"NODE_RANK": "node",
    b"group_rank": "node",
    b"LOCAL_WORLD_SIZE": "nproc",
}


def _reader() -> Reader:
    locals_: list[int] = []

    def read(line: Line) -> Iterator[Record | Remark]:
        fields: dict[str, object] = {}
        span = (line.end, line.end)
        for match in found(line, _NUMBERS):
            span = min(span, match.span())
            if match["name"] is not None:
                fields[_NAMES[match["name"]]] = int(match["value"])
            elif match["option"] is not None:
                name = "nproc" if match["option"].startswith(b"nproc") else "node"
                fields[name] = int(match["number"])
            else:
                fields["nproc"] = int(match["nproc"])
        for match in found(line, _LISTS):
            span = min(span, match.span())
            numbers = [int(number) for number in match[2].split(b",") if number.strip().isdigit()]
            if match[1] == b"local":
                locals_[:] = numbers
            elif len(numbers) == len(locals_):
                fields |= {"locals": tuple(locals_), "ranks": tuple(numbers)}
        if fields:
            yield Record(FACT, None, fields, span=span)

    return read


FORMAT = Format("topology", _MARKERS, _reader)
