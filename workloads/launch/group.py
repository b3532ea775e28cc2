"""The processes of one attempt on this node, from their start to the last byte they wrote (mission L5).

The first abnormal exit stops the others: SIGTERM to every process group, a deadline, SIGKILL, a bounded wait.
"""

from __future__ import annotations

import os
import signal
import time

from workloads.launch import report
from workloads.launch.args import ERR, OUT
from workloads.launch.environment import rank_environment
from workloads.launch.logs import routes
from workloads.launch.pipes import Stream, open_pipe
from workloads.launch.spawn import signal_group, start
from workloads.launch.status import FirstFailure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from workloads.launch.console import Console
    from workloads.launch.environment import Placement
    from workloads.launch.guard import Guard
    from workloads.launch.logs import LogFolder
    from workloads.launch.loop import Loop

LEFTOVER_PATIENCE = 5.0
"""Seconds that processes which a rank left behind may go on writing, once all ranks have exited 0."""
DRAIN_PATIENCE = 2.0
REAP_PATIENCE = 10.0
"""Seconds from SIGKILL until a process that the kernel does not let go (a hung driver) is given up."""
_TAIL = 8192


class Rank:
    """One process and what is known of it."""

    def __init__(self, local_rank: int, rank: int) -> None:
        self.local_rank = local_rank
        self.rank = rank
        self.pid = 0
        self.code: int | None = None
        """As in Python's subprocess: negative for a signal."""
        self.ended = 0.0
        """When, in time.monotonic()."""
        self.grouped = False
        """Whether its process group may still have somebody in it."""
        self.streams: list[Stream] = []
        self._tail = b""

    @property
    def alive(self) -> bool:
        return self.pid > 0 and self.code is None

    def hear(self, lines: bytes) -> None:
        self._tail = (self._tail + lines[-_TAIL:])[-_TAIL:]

    @property
    def last_words(self) -> bytes:
        """The last lines it printed; a line of which only the end is kept is left out, unless it is the only one."""
        first = self._tail.find(b"\n") + 1
        return self._tail[first:] if len(self._tail) == _TAIL and first < _TAIL else self._tail


class Group:
    """All ranks of this node in one attempt."""

    def __init__(
        self,
        loop: Loop,
        console: Console,
        guard: Guard,
        logs: LogFolder,
        placement: Placement,
        *,
        hear: Callable[[bytes], None],
        failed: Callable[[FirstFailure], None],
    ) -> None:
        """`hear` is given all output in blocks of whole lines; `failed` the first failure, at once."""
        self._loop, self._console, self._guard, self._logs = loop, console, guard, logs
        self._placement = placement
        self._hear = hear
        self._failed = failed
        self._stopping = False
        self._forced: list[Rank] = []
        self._abandoned = False
        self.ranks = [Rank(local, placement.first_rank + local) for local in range(placement.processes)]

    def start(self, base: Mapping[str, str], cpus: Sequence[Sequence[int]] | None) -> None:
        """Stops at the first process that cannot be started, which fails the attempt."""
        for rank in self.ranks:
            try:
                self._start_one(rank, base, cpus[rank.local_rank] if cpus else None)
            except OSError as error:
                why = f"rank {rank.rank} could not be started: {report.error_text(error)}"
                self.fail(FirstFailure(None, None, 1, time.time(), why))
                if not any(other.alive for other in self.ranks):
                    self._all_ended()
                return

    def _start_one(self, rank: Rank, base: Mapping[str, str], cpus: Sequence[int] | None) -> None:
        launch = self._placement.launch
        prefix = _prefix(launch.prefix, launch.role, rank)
        ends: dict[int, int] = {}
        try:
            for route in routes(launch, rank.local_rank):
                reader, writer = open_pipe()
                ends.update(dict.fromkeys([bit for bit in (OUT, ERR) if route.bits & bit], writer))
                file = self._logs.open(self._placement.attempt, rank.local_rank, route.file) if route.file else None
                outlet = self._console.err if route.bits == ERR else self._console.out
                stream = Stream(
                    self._loop,
                    reader,
                    outlet=outlet if route.shown else None,
                    file=file,
                    prefix=prefix,
                    hear=lambda lines: self._heard(rank, lines),
                )
                rank.streams.append(stream)
            rank.pid = start(
                self._placement.command(rank.local_rank),
                rank_environment(self._placement, rank.local_rank, base),
                stdout=ends[OUT],
                stderr=ends[ERR],
                cpus=cpus,
                before=self._guard.group,
            )
            rank.grouped = True
        finally:
            for writer in set(ends.values()):
                os.close(writer)

    def _heard(self, rank: Rank, lines: bytes) -> None:
        rank.hear(lines)
        self._hear(lines)

    @property
    def alive(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.alive]

    @property
    def streams(self) -> list[Stream]:
        return [stream for rank in self.ranks for stream in rank.streams if stream.open]

    @property
    def finished(self) -> bool:
        return (self._abandoned or not self.alive) and not self.streams

    def reaped(self, ends: Mapping[int, int]) -> bool:
        """Enter exits noticed together, code by pid; False when none of them was a rank's.

        All are entered before any is acted on: a pid that has been reaped must not be signalled.
        """
        now = time.monotonic()
        ended = [rank for rank in self.ranks if rank.alive and rank.pid in ends]
        for rank in ended:
            rank.code, rank.ended = ends[rank.pid], now
            for stream in rank.streams:
                stream.drain()
        for rank in self.ranks:  # an orphan's end may have been the last of what a rank had left behind
            self._look_behind(rank)
        if not self._stopping:
            self._judge(ended)
        if ended and not self.alive:
            self._all_ended()
        return bool(ended)

    def _judge(self, ended: Sequence[Rank]) -> None:
        # A rank killed by a signal comes before those that merely lost their peer.
        failed = sorted((rank for rank in ended if rank.code), key=lambda rank: rank.code is not None and rank.code > 0)
        if failed:
            rank, code = failed[0], failed[0].code or 0
            self.fail(FirstFailure(rank.rank, rank.local_rank, code, time.time(), self._why(rank)))
        elif ended and self.alive:
            self._expect_others()

    def _look_behind(self, rank: Rank) -> None:
        if rank.grouped and rank.code is not None and not signal_group(rank.pid, 0):
            rank.grouped = False
            self._guard.forget(rank.pid)

    def fail(self, first: FirstFailure) -> None:
        self._failed(first)
        self.stop(signal.SIGTERM)

    def _why(self, rank: Rank) -> str:
        why = f"rank {rank.rank} {report.ended(rank.code or 0)}"
        early = [other for other in self.ranks if other.code == 0]
        if early:
            ago = time.monotonic() - min(other.ended for other in early)
            why += f"; {report.ranks(other.rank for other in early)} had already exited 0, {ago:.1f} s before"
        return why

    def forward(self, number: int) -> None:
        for rank in self.ranks:
            # A process just started may not lead its group yet.
            if rank.grouped and not signal_group(rank.pid, number) and rank.alive:
                os.kill(rank.pid, number)

    def stop(self, number: int) -> None:
        """Ask everybody to end, and see to it that they do."""
        self._loop.cancel("notice")
        if not self._stopping:
            self._stopping = True
            self._loop.after(self._placement.launch.shutdown_timeout, "kill", self.kill)
        self.forward(number)

    def kill(self) -> None:
        self._stopping = True
        self._forced = self._forced or self.alive
        self._loop.cancel("kill")
        self._loop.after(REAP_PATIENCE, "abandon", self._abandon)
        self.forward(signal.SIGKILL)

    def _abandon(self) -> None:
        stuck = self.alive
        self._console.say(
            f"{report.ranks(rank.rank for rank in stuck)} (pid {report.ranges(rank.pid for rank in stuck)}) "
            f"still there {REAP_PATIENCE:.0f} s after SIGKILL: the kernel does not let go (a hung driver?); left behind"
        )
        self._abandoned = True
        self._close_streams()

    def _all_ended(self) -> None:
        for name in ("kill", "abandon", "notice"):
            self._loop.cancel(name)
        if self._stopping:
            self._end_leftovers()
        elif self.streams:
            self._loop.after(LEFTOVER_PATIENCE, "leftovers", self._name_leftovers)

    def _name_leftovers(self) -> None:
        holding = [rank.rank for rank in self.ranks if any(stream.open for stream in rank.streams)]
        self._console.say(
            f"{report.ranks(holding)} exited 0 but left a process behind that still holds the output open; "
            f"it is killed after {LEFTOVER_PATIENCE:.0f} s"
        )
        self._end_leftovers()

    def _end_leftovers(self) -> None:
        self.forward(signal.SIGKILL)
        self._loop.after(DRAIN_PATIENCE, "close", self._close_streams)

    def _close_streams(self) -> None:
        for stream in self.streams:
            stream.drain()
            stream.close()

    def finish(self) -> None:
        """After the last byte: nobody stays behind."""
        for name in ("kill", "abandon", "notice", "leftovers", "close"):
            self._loop.cancel(name)
        self.forward(signal.SIGKILL)
        for rank in self.ranks:
            if rank.pid:
                rank.grouped = False
                self._guard.forget(rank.pid)
        errors = {str(stream.file_error) for rank in self.ranks for stream in rank.streams if stream.file_error}
        for error in sorted(errors):
            self._console.say(f"the log files are incomplete: {error}")

    def _expect_others(self) -> None:
        patience = self._placement.launch.early_exit_notice
        if patience and not self._loop.pending("notice"):
            self._loop.after(patience, "notice", self._notice)

    def _notice(self) -> None:
        early = [rank for rank in self.ranks if rank.code == 0]
        longest = time.monotonic() - min(rank.ended for rank in early)
        self._console.say(
            f"{report.ranks(rank.rank for rank in early)} exited 0 up to {longest:.0f} s ago while "
            f"{report.ranks(rank.rank for rank in self.alive)} still run; what they wait for from it will not come"
        )

    def aftermath(self) -> str:
        """How the others ended, once the first failure is known."""
        by_end: dict[str, list[int]] = {}
        for rank in self.ranks:
            if rank.code is not None:
                by_end.setdefault(report.ended(rank.code), []).append(rank.rank)
            elif rank.pid:
                by_end.setdefault("could not be reaped", []).append(rank.rank)
            else:
                by_end.setdefault("had not been started", []).append(rank.rank)
        text = "; ".join(f"{report.ranks(numbers)} {end}" for end, numbers in by_end.items())
        if self._forced:
            text += f" (SIGTERM was not enough for {report.ranks(rank.rank for rank in self._forced)})"
        return text


def _prefix(template: str, role: str, rank: Rank) -> bytes:
    values = {"role_name": role, "rank": str(rank.rank), "local_rank": str(rank.local_rank)}
    for name, value in values.items():
        template = template.replace("${" + name + "}", value)
    return template.encode("utf-8", "surrogateescape")
