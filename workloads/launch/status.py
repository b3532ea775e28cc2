"""The second channel (contract 3): what the launcher writes into the container's termination log.

Columns, not an object a rank: the kubelet keeps 4096 bytes. What must fit goes in whole; last lines go first when it
does not, then figures, never exit codes.
"""

from __future__ import annotations

import errno
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Figure = float | int | str | None

LIMIT = 4096
DEFAULT_PATH = "/dev/termination-log"
_LINES, _LINE_LENGTH, _WHY_LENGTH = 20, 400, 600
_END = b'"event":"end"'
_RECORD = b"ALLRANKS {"


class FirstFailure:
    """What went wrong first. `rank` is None when it was the launcher itself, or a signal to it."""

    __slots__ = ("at", "code", "lines", "local_rank", "rank", "why")

    def __init__(self, rank: int | None, local_rank: int | None, code: int, at: float, why: str) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.code = code
        """As in Python's subprocess: negative for a signal."""
        self.at = at
        self.why = why
        self.lines: list[str] = []


class Figures:
    """Per global rank, what its `end` record said: (throughput in samples/s, epoch time in s)."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.by_rank: dict[int, tuple[Figure, Figure]] = {}

    def hear(self, lines: bytes) -> bool:
        """Look for `end` records in a block of whole lines; True when there was one of this run."""
        found = False
        at = lines.find(_END)
        while at >= 0:
            begin = lines.rfind(_RECORD, 0, at)
            if begin >= 0:
                found = self._enter(lines[begin + len(_RECORD) - 1 : lines.find(b"\n", at)]) or found
            at = lines.find(_END, at + len(_END))
        return found

    def _enter(self, text: bytes) -> bool:
        try:
            record, _ = json.JSONDecoder().raw_decode(text.decode("utf-8", "replace"))
            rank = record["rank"]
            ours = (
                record["event"] == "end" and str(record["run"]) == self._run_id and isinstance(rank, int) and rank >= 0
            )
        except (ValueError, KeyError, TypeError):
            return False
        if ours:
            self.by_rank[rank] = (_figure(record.get("throughput")), _figure(record.get("epoch_time")))
        return ours


def _figure(value: object) -> Figure:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(f"{value:.6g}")
    return value if value in ("nan", "inf", "-inf") else None


def encode(
    *,
    run_id: str,
    attempt: int,
    node: int,
    nodes: int,
    state: str,
    codes: Sequence[int | None],
    first: FirstFailure | None = None,
    figures: Mapping[int, tuple[Figure, Figure]] | None = None,
) -> bytes:
    """At most 4096 bytes of compact JSON; `codes` per local rank, None while a rank runs or was not started."""
    message: dict[str, object] = {
        "v": 1,
        "run": run_id,
        "attempt": attempt,
        "node": node,
        "nnodes": nodes,
        "nproc": len(codes),
        "state": state,
        "codes": _runs(codes),
        "first": None,
        "figures": _columns(figures) if figures else None,
    }
    lines = [line[:_LINE_LENGTH] for line in first.lines[-_LINES:]] if first else []
    while True:
        if first:
            message["first"] = _first(first, lines)
        data = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        if len(data) <= LIMIT:
            return data
        if lines:
            del lines[0]
        elif message["figures"] is not None:
            message["figures"] = None
        elif first and len(first.why) > 80:
            first = FirstFailure(first.rank, first.local_rank, first.code, first.at, first.why[:77] + "…")
        else:
            # More than four hundred changes of code between neighbours: say how many of each there are.
            return _counted(message, codes)


def _counted(message: dict[str, object], codes: Sequence[int | None]) -> bytes:
    message["codes"] = None
    message["counts"] = [[code, codes.count(code)] for code in dict.fromkeys(codes)]
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")[:LIMIT]


def _first(first: FirstFailure, lines: list[str]) -> dict[str, object]:
    return {
        "rank": first.rank,
        "local_rank": first.local_rank,
        "code": first.code,
        "at": round(first.at, 3),
        "why": first.why[:_WHY_LENGTH],
        "lines": lines,
    }


def _columns(figures: Mapping[int, tuple[Figure, Figure]]) -> dict[str, object]:
    ranks = sorted(figures)
    return {
        "ranks": _ranges(ranks),
        "throughput": [figures[rank][0] for rank in ranks],
        "epoch_time": [figures[rank][1] for rank in ranks],
    }


def _runs(values: Iterable[int | None]) -> list[list[int | None]]:
    runs: list[list[int | None]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1][1] = (runs[-1][1] or 0) + 1
        else:
            runs.append([value, 1])
    return runs


def _ranges(ranks: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for rank in ranks:
        if ranges and rank == sum(ranges[-1]):
            ranges[-1][1] += 1
        else:
            ranges.append([rank, 1])
    return ranges


class TerminationLog:
    """The file, rewritten in place: it is a mount of its own, which a rename could not replace."""

    def __init__(self, path: str | None) -> None:
        self._fd = -1
        self._length = 0
        self.error: OSError | None = None
        """Why the status could not be written, when it could not."""
        try:
            if path:
                self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            elif os.access(DEFAULT_PATH, os.W_OK):
                self._fd = os.open(DEFAULT_PATH, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        except OSError as error:
            self.error = error

    @property
    def wanted(self) -> bool:
        return self._fd >= 0

    def write(self, data: bytes) -> None:
        try:
            # Blanks over the longer message before, then cut: at any moment there is one whole message.
            os.pwrite(self._fd, data.ljust(self._length), 0)
            os.ftruncate(self._fd, len(data))
            self._length = len(data)
        except OSError as error:
            # A character device has no length to cut; anything else is worth a word.
            if error.errno != errno.EINVAL:
                self.error = error
