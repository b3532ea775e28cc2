"""The second channel (contract 3): what a launcher leaves in its pod's termination message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from allranks.ledger.record import as_number
from allranks.text import printable

VERSION = 1
_MOST = 1 << 16
"""Processes of a node that are believed; run lengths are multiplied out."""


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """What a launcher saw fail first on its node."""

    rank: int | None
    """None when the launcher itself failed: a fork, the rendezvous."""
    local_rank: int | None
    code: int | None
    """Exit code; negative for a signal."""
    at: float | None
    """Unix seconds."""
    why: str
    lines: tuple[str, ...]
    """The last ones of the failed process."""


@dataclass(frozen=True, slots=True)
class RankFigures:
    """A rank's final figures as they passed through its launcher."""

    throughput: float | None
    epoch_time: float | None


@dataclass(frozen=True, slots=True)
class LauncherStatus:
    """One node's word on its processes."""

    run: str | None
    attempt: int
    node: int
    nnodes: int | None
    nproc: int
    state: str
    """running, succeeded or failed."""
    codes: tuple[int | None, ...]
    """Exit codes by local rank; None for a process that has not ended."""
    first: FirstFailure | None = None
    figures: Mapping[int, RankFigures] | None = field(default=None)
    """By global rank; None when the message had no room for them."""

    def exit_code(self, local_rank: int) -> int | None:
        """None for a process that has not ended, or that this launcher does not have."""
        return self.codes[local_rank] if 0 <= local_rank < len(self.codes) else None


def parse_status(text: str | bytes) -> LauncherStatus | None:
    """The launcher's status; None when the message is not one (with FallbackToLogsOnError it may be any log's tail)."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("v") != VERSION:
        return None
    node, nproc, state = data.get("node"), data.get("nproc"), data.get("state")
    codes = _runs(data.get("codes"), _is_code)
    if codes is None and isinstance(data.get("counts"), list):
        codes = []  # too many changes for the message: the launcher counts the codes without saying whose they are
    if not _is_count(node) or not _is_count(nproc) or codes is None or state not in ("running", "succeeded", "failed"):
        return None
    run, attempt, nnodes = data.get("run"), data.get("attempt", 0), data.get("nnodes")
    return LauncherStatus(
        run=run if isinstance(run, str) else None,
        attempt=attempt if _is_count(attempt) else 0,
        node=node,
        nnodes=nnodes if _is_count(nnodes) else None,
        nproc=nproc,
        state=state,
        codes=tuple(codes),
        first=_first(data.get("first")),
        figures=_figures(data.get("figures")),
    )


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_code(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _runs(value: Any, valid: Any) -> list[Any] | None:
    """[[value, count], …] multiplied out; None when it is not of that form."""
    if not isinstance(value, list):
        return None
    result: list[Any] = []
    for item in value:
        if not isinstance(item, list) or len(item) != 2 or not valid(item[0]) or not _is_count(item[1]):
            return None
        if len(result) + item[1] > _MOST:
            return None
        result += [item[0]] * item[1]
    return result


def _first(value: Any) -> FirstFailure | None:
    if not isinstance(value, dict):
        return None
    lines = value.get("lines")
    rank, local_rank, code = value.get("rank"), value.get("local_rank"), value.get("code")
    return FirstFailure(
        rank=rank if _is_count(rank) else None,
        local_rank=local_rank if _is_count(local_rank) else None,
        code=code if _is_code(code) else None,
        at=as_number(value.get("at")),
        why=printable(str(value.get("why") or "")),
        lines=tuple(printable(line) for line in lines if isinstance(line, str)) if isinstance(lines, list) else (),
    )


def _figures(value: Any) -> dict[int, RankFigures] | None:
    if not isinstance(value, dict):
        return None
    ranks: list[int] = []
    for run in value.get("ranks") or ():
        if not isinstance(run, list) or len(run) != 2 or not all(map(_is_count, run)) or len(ranks) + run[1] > _MOST:
            return None
        ranks += range(run[0], run[0] + run[1])
    columns = [value.get(name) for name in ("throughput", "epoch_time")]
    if any(not isinstance(column, list) or len(column) != len(ranks) for column in columns):
        return None
    throughput, epoch_time = ([as_number(item) for item in column or ()] for column in columns)
    return {rank: RankFigures(throughput[at], epoch_time[at]) for at, rank in enumerate(ranks)}
