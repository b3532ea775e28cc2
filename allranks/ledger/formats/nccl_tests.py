"""The tables of nccl-tests:

`#  Rank  0 Group  0 Pid 895544 on     h100-2 device  0 [0002:00:01] NVIDIA H100 80GB HBM3`
`# Out of bounds values : 0 OK`
`# Avg bus bandwidth    : 123.456`

Rank: the table's head names every rank that takes part, and the bandwidth at its end is theirs: a rank has reported when
both were read. World size: one more than the head's last rank. Of several tables in one log the worst bandwidth counts.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from allranks.ledger.formats import Format, Reader
from allranks.ledger.formats.steps import found
from allranks.ledger.lines import Line
from allranks.ledger.record import FAILURE, FIGURES, MEMBER, SUMMARY, Record, Remark
from allranks.ledger.text import NUMBER, number
from allranks.text import printable

_MARKERS = (b"# Avg bus", b"# Out of bounds", b"#  Rank ", b"#   Rank ", b"Test NCCL failure", b"Test CUDA failure")
_RANK = re.compile(
    rb"#\s+Rank\s+(\d{1,7})\s+(?:Group\s+\d+\s+)?Pid\s+(\d+)\s+on\s+([\w.-]+)\s+device\s+(\d+)\s+\[[\w:.]+\]"
)
_AVERAGE = re.compile(rb"# Avg bus bandwidth\s*:\s*(%(n)s)(?=\s|$)" % {b"n": NUMBER})
_BOUNDS = re.compile(rb"# Out of bounds values\s*:\s*(\d+)\s+(OK|FAILED|N/A)")
_FAILED = re.compile(rb"Test (?:NCCL|CUDA) failure[^\r\n]*")


def _reader() -> Reader:
    members: dict[int, None] = {}
    """The ranks of the table's head."""
    complete = [False]

    def read(line: Line) -> Iterator[Record | Remark]:
        for match in found(line, _RANK):
            if complete[0]:
                members.clear()
                complete[0] = False
            rank = int(match[1])
            host = printable(match[3])
            twice = {"conflict": f"named twice in one table, now as pid {int(match[2])} on {host}"}
            yield Record(MEMBER, rank, {"pending": True} | (twice if rank in members else {}), span=match.span())
            members[rank] = None
        for match in found(line, _BOUNDS):
            if match[2] == b"FAILED":
                message = f"{int(match[1])} values out of bounds: the collective's results are wrong"
                fields = {"message": message, "kind": "launcher", "launcher": "nccl-tests", "phase": "check"}
                yield Record(FAILURE, None, fields, span=match.span())
        for match in found(line, _AVERAGE):
            complete[0] = True
            figures = {"bus_bandwidth": number(match[1])}
            yield Record(SUMMARY, None, figures, span=match.span())
            for rank in members:
                yield replace(Record(FIGURES, rank, figures, span=match.span()), world=max(members) + 1)
        for match in found(line, _FAILED):
            fields = {"message": printable(match.group()), "kind": "launcher", "launcher": "nccl-tests"}
            yield Record(FAILURE, None, fields, span=match.span())

    return read


FORMAT = Format("nccl-tests", _MARKERS, _reader, lasting=True, unit="GB/s")
