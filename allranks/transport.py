"""What a node's log tells beside the ranks' figures: its clock, and which network NCCL really uses.

`host:123:456 [0] NCCL INFO Using network AWS Libfabric` is printed per communicator with NCCL_DEBUG=INFO, in these
words since NCCL 2.7. It names the process, not the rank: the process id is the one in the rank's start record. NCCL
falls back to sockets silently when the EFA plugin is missing, and the run is green at TCP speed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from allranks.ledger import Ledger
from allranks.plan import EFA, Plan, format_ranks
from allranks.result import Finding, Judgement, Phase, Verdict
from allranks.text import printable

_SLOW = {"Socket"}
_RECORD, _STEP = b'ALLRANKS {"v"', b'"event":"step"'
_USING = b"NCCL INFO Using network "
_NETWORK = re.compile(rb":(\d{1,10}):\d{1,10} \[\d{1,4}\] NCCL INFO Using network ([\w ./-]{1,40})")
_TIME = re.compile(rb'"t":(\d{9,11}(?:\.\d{1,9})?)[,}]')
_MOST_PROCESSES, _MOST_NAMES = 4096, 8
_LONGEST = 8192
"""Of a line of interest: a record is at most 4096 bytes."""
_SHOWN = 6


class NodeLog:
    """One log, in chunks of any size."""

    def __init__(self) -> None:
        self._rest = b""
        self.newest: float | None = None
        """The latest time that a record gave, by the node's clock (Unix seconds)."""
        self.stepped = False
        """Whether a rank has told of a step."""
        self.networks: dict[int, tuple[str, ...]] = {}
        """Process id → the networks that its communicators use."""

    def feed(self, chunk: bytes) -> None:
        """A log is mostly noise: it is passed over at the speed of `bytes.find`."""
        end = chunk.rfind(b"\n") + 1
        if not end:
            self._rest = (self._rest + chunk)[-_LONGEST:]
            return
        lines, self._rest = self._rest + chunk[:end], chunk[end:][-_LONGEST:]
        self._clock(lines)
        if _USING in lines:
            for match in _NETWORK.finditer(lines):
                self._uses(int(match[1]), printable(match[2].decode().strip()))

    def _clock(self, lines: bytes) -> None:
        at = lines.find(_RECORD)
        while at >= 0:
            end = lines.find(b"\n", at)
            record = lines[at : min(end, at + _LONGEST) if end > 0 else at + _LONGEST]
            times = [float(match) for match in _TIME.findall(record)]
            self.newest = max([*times, *([self.newest] if self.newest else [])], default=None)
            self.stepped = self.stepped or _STEP in record
            at = lines.find(_RECORD, at + len(record))

    def _uses(self, process: int, name: str) -> None:
        known = self.networks.get(process, ())
        if name not in known and len(known) < _MOST_NAMES and len(self.networks) < _MOST_PROCESSES:
            self.networks[process] = (*known, name)


def networks_of_ranks(ledger: Ledger, logs: Mapping[str, NodeLog]) -> dict[int, tuple[str, ...]]:
    """Rank → networks; `logs` are by the name of their source. Ranks whose process says nothing are absent."""
    found = {}
    for rank, account in ledger.accounts().items():
        for start in account.starts:
            log = logs.get(start.where.source)
            if log is not None and start.pid in log.networks:
                found[rank] = log.networks[start.pid]
    return found


def wrong_network(plan: Plan, ledger: Ledger, networks: Mapping[int, tuple[str, ...]], at: float) -> Finding | None:
    """EFA was requested for each of several nodes, and ranks use sockets."""
    if plan.nodes < 2 or EFA not in dict(plan.resources):
        return None
    slow = {rank: sorted(_SLOW.intersection(names)) for rank, names in sorted(networks.items())}
    slow = {rank: names for rank, names in slow.items() if names}
    if not slow:
        return None
    used = ", ".join(sorted({name for names in slow.values() for name in names}))
    noun = "rank" if len(slow) == 1 else "ranks"
    nodes = sorted({start.node for rank in slow for start in ledger.accounts()[rank].starts if start.node})
    message = (
        f"EFA is planned, but NCCL of {noun} {format_ranks(slow)} on {', '.join(nodes[:_SHOWN]) or 'their nodes'} "
        f"uses {used}: is the EFA plugin (aws-ofi-nccl) in the image, and does the device plugin give out EFA?"
    )
    lines = tuple(f"rank {rank}: NCCL INFO Using network {', '.join(names)}" for rank, names in slow.items())
    node = nodes[0] if len(nodes) == 1 else None
    return Finding(
        "transport", message, phase=Phase.RENDEZVOUS, ranks=tuple(slow), node=node, at=at, evidence=lines[:_SHOWN]
    )


def untold(plan: Plan, ledger: Ledger, networks: Mapping[int, tuple[str, ...]]) -> Finding | None:
    """A note where EFA is planned and nothing proves that it is used."""
    if plan.nodes < 2 or EFA not in dict(plan.resources):
        return None
    nccl = [
        rank
        for rank, account in ledger.accounts().items()
        if rank not in networks and any(start.backend == "nccl" and not start.standin for start in account.starts)
    ]
    if not nccl:
        return None
    message = f"EFA is planned, but NCCL of ranks {format_ranks(nccl)} did not say which network it uses"
    return Finding("note-transport-unknown", message, Verdict.PASSED, ranks=tuple(nccl))


def with_networks(judgement: Judgement, networks: Mapping[int, tuple[str, ...]]) -> Judgement:
    """The judgement, whose ranks say which network they used."""
    if not networks:
        return judgement
    ranks = (replace(rank, transport=", ".join(networks.get(rank.rank, ())) or None) for rank in judgement.ranks)
    return replace(judgement, ranks=tuple(ranks))
