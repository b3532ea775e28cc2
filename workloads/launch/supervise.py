"""A run on this node: attempts, signals, the second channel, and the exit code that says how it went."""

from __future__ import annotations

import os
import signal
import time

from workloads.launch import devices, numa, report, rundir, spawn, status
from workloads.launch.console import HIGH_WATER, LOW_WATER, Console
from workloads.launch.environment import Placement, free_port, rank_environment
from workloads.launch.group import Group
from workloads.launch.guard import Guard
from workloads.launch.logs import LogFolder
from workloads.launch.loop import Loop, Signals
from workloads.launch.master import MasterWatch, is_name
from workloads.launch.status import Figures, FirstFailure, TerminationLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from workloads.launch.args import Launch

    T = TypeVar("T")

OUTPUT_PATIENCE = 10.0
"""Seconds without the console's reader taking anything, after which the rest of the output is given up at the end."""
SWEEP_PATIENCE = 2.0
_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)


def run(launch: Launch, environ: Mapping[str, str]) -> int:
    """The exit code: 0, the first failing rank's code, 128+n for a signal, 1 for the launcher's own failure.

    Raises UsageError before anything is started when this machine cannot do what was asked.
    """
    processes = devices.count(launch.processes_per_node, environ)
    run_id = launch.run_id or f"local-{os.urandom(6).hex()}"
    placement = Placement(launch, processes, run_id)
    rank_environment(placement, processes - 1, environ)
    cpus = numa.bindings(launch.numa_binding, processes, environ) if launch.numa_binding else None
    supervisor = Supervisor(placement, environ, cpus)
    try:
        return supervisor.run()
    except BaseException as error:
        supervisor.broke(error)
        raise
    finally:
        supervisor.close()


def _own_failure(why: str) -> FirstFailure:
    """The launcher's, without a failing rank."""
    return FirstFailure(None, None, 1, time.time(), why)


class Supervisor:
    """Owns everything that has to be gone when the launcher is."""

    def __init__(self, placement: Placement, environ: Mapping[str, str], cpus: list[list[int]] | None) -> None:
        self._placement = placement
        self._launch = placement.launch
        self._environ = environ
        self._cpus = cpus
        self._temporary = environ.get("TMPDIR") or "/tmp"
        self._loop = Loop()
        self._console = Console(self._loop)
        self._log = TerminationLog(environ.get("ALLRANKS_TERMINATION_LOG"))
        self._figures = Figures(placement.run_id)
        self._logs = LogFolder(self._launch.log_dir, placement.run_id, self._temporary)
        self._group: Group | None = None
        self._guard: Guard | None = None
        self._master: MasterWatch | None = None
        self._first: FirstFailure | None = None
        self._signal: int | None = None
        self._paused = False
        self._spared = frozenset(spawn.children())
        """Those that were ours before we were the launcher (a shell that became us by exec)."""
        self._dirty = True

    def run(self) -> int:
        spawn.become_subreaper()
        Signals(self._loop, tuple(dict.fromkeys((*self._launch.signals, *_FORWARDED))), self._on_signal)
        self._write_status()
        self._guard = self._obtain("the guard process could not be started", Guard)
        if self._guard is not None:
            self._find_master()
        while self._first is None:
            self._attempt()
            if not self._again():
                break
        return self._conclude()

    def broke(self, error: BaseException) -> None:
        """A defect of the launcher's own: the second channel says so, the traceback goes to stderr."""
        self._first = self._first or _own_failure(f"the launcher broke: {error!r}")
        self._write_status()

    def _obtain(self, trouble: str, make: Callable[[], T]) -> T | None:
        """What the system may refuse; then the run has failed, and the answer is None."""
        try:
            return make()
        except OSError as error:
            self._fail(_own_failure(f"{trouble}: {error}"))
            return None

    # -- one attempt

    def _attempt(self) -> None:
        placement, launch = self._placement, self._launch
        port = self._obtain("no port for the master", lambda: launch.master_port or free_port(launch.master_addr))
        folder = self._obtain(
            "the run directory could not be made",
            lambda: rundir.create(placement.run_id, launch.node_rank, self._temporary),
        )
        if port is None or folder is None or self._guard is None:
            return
        placement.master_port, placement.run_dir = port, folder
        self._guard.directory(folder)
        self._group = Group(
            self._loop, self._console, self._guard, self._logs, placement, hear=self._hear, failed=self._fail
        )
        self._group.start(self._environ, self._cpus)
        while not self._group.finished:
            self._turn()
        self._group.finish()
        rundir.remove(placement.run_dir)

    def _again(self) -> bool:
        """Whether the group is to be started once more, after a failure of one of its ranks."""
        first, placement = self._first, self._placement
        if first is None or first.rank is None or self._signal is not None:
            return False
        if placement.attempt >= self._launch.max_restarts:
            return False
        self._report(first)
        placement.attempt += 1
        self._console.say(f"starting attempt {placement.attempt} of at most {self._launch.max_restarts}")
        self._first, self._group, self._dirty = None, None, True
        self._figures.by_rank.clear()
        self._sweep()
        return True

    def _turn(self) -> None:
        self._loop.turn()
        self._console.flush()
        group = self._group
        if group is not None:
            pending = self._console.pending
            if pending > HIGH_WATER if not self._paused else pending < LOW_WATER:
                self._paused = not self._paused
                for stream in group.streams:
                    stream.pause(self._paused and stream.outlet is not None)
        if self._dirty:
            self._write_status()

    # -- events

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number not in self._launch.signals:
            if self._group is not None:
                self._group.forward(number)
        elif self._signal is None:
            self._signal = number
            why = f"the launcher received {report.signal_name(number)}"
            self._fail(FirstFailure(None, None, -number, time.time(), why))
            if self._group is not None:
                self._group.stop(number)
        elif number == signal.SIGINT and self._group is not None:
            self._group.kill()  # somebody presses Ctrl-C again

    def _reap(self) -> None:
        ends: dict[int, int] = {}
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            ends[pid] = os.waitstatus_to_exitcode(wait_status)
            for helper in (self._guard, self._master):
                if helper is not None:
                    helper.reaped(pid)
        if self._group is not None and self._group.reaped(ends):
            self._dirty = True

    def _fail(self, first: FirstFailure) -> None:
        if self._first is None:
            self._first = first
            self._dirty = True

    def _hear(self, lines: bytes) -> None:
        if self._figures.hear(lines):
            self._dirty = True

    # -- the master

    def _find_master(self) -> None:
        launch = self._launch
        timeout = launch.rdzv_timeout
        name, elsewhere = is_name(launch.master_addr), launch.node_rank > 0
        if not launch.several_nodes or not timeout or not (name or elsewhere):
            return
        port = launch.master_port or 0
        self._master = self._obtain(
            "the watch for the master could not be started",
            lambda: MasterWatch(
                self._loop, launch.master_addr, port, until_answered=elsewhere, answered=self._master_answered
            ),
        )
        if self._master is None:
            return
        self._loop.after(timeout, "rendezvous", self._no_master)
        while not self._master.resolved and self._first is None:
            self._turn()
        if not elsewhere:
            self._master_answered()

    def _master_answered(self) -> None:
        self._loop.cancel("rendezvous")
        if self._master is not None:
            self._master.close()

    def _no_master(self) -> None:
        launch, master = self._launch, self._master
        assert master is not None
        master.close()
        self._fail(
            _own_failure(
                f"the master {launch.master_addr}:{launch.master_port} was not reached within "
                f"{launch.rdzv_timeout:g} s: {master.problem}; is pod 0 running, and is this its address?"
            )
        )
        if self._group is not None:
            self._group.stop(signal.SIGTERM)

    # -- what is said

    def _write_status(self) -> None:
        self._dirty = False
        if not self._log.wanted:
            return
        first, group = self._first, self._group
        ranks = group.ranks if group else []
        if first is not None and first.local_rank is not None and ranks:
            first.lines = report.last_lines(ranks[first.local_rank].last_words)
        codes = [rank.code for rank in ranks] or [None] * self._placement.processes
        state = "failed" if first else "succeeded" if all(code == 0 for code in codes) else "running"
        self._log.write(
            status.encode(
                run_id=self._placement.run_id,
                attempt=self._placement.attempt,
                node=self._launch.node_rank,
                nodes=self._launch.nodes,
                state=state,
                codes=codes,
                first=first,
                figures=self._figures.by_rank,
            )
        )

    def _report(self, first: FirstFailure) -> None:
        """The cause is the last line that people see."""
        here = report.place(self._launch.node_rank, self._environ)
        if self._group is not None:
            self._console.say(f"{here}: {self._group.aftermath()}")
        if first.local_rank is not None and self._group is not None:
            for line in report.last_lines(self._group.ranks[first.local_rank].last_words):
                self._console.say(f"| {line}")
        local = "" if first.local_rank is None else f" (local rank {first.local_rank})"
        self._console.say(f"FAILED: {first.why}{local}, {here}")

    def _conclude(self) -> int:
        first = self._first
        if self._logs.used:
            self._console.say(f"log files are in {self._logs.path}")
        if self._log.error is not None:
            self._console.say(f"the termination log could not be written: {self._log.error}")
        if self._console.out.lost is not None:
            self._console.say(f"output was lost, stdout cannot be written: {self._console.out.lost}")
        self._sweep()
        if first is not None:
            self._report(first)
        self._write_status()
        self._console.finish(OUTPUT_PATIENCE)
        return report.exit_code(first.code) if first else 0

    # -- leaving nothing behind

    def _sweep(self) -> None:
        """Orphans that left their process group are ours by now (Linux): they end with the run."""
        ours = self._spared | ({self._guard.pid} if self._guard else frozenset())
        deadline = time.monotonic() + SWEEP_PATIENCE
        while time.monotonic() < deadline:
            self._reap()
            orphans = [pid for pid in spawn.children() if pid not in ours]
            if not orphans:
                return
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)  # SIGKILL takes effect when the kernel gets to it

    def close(self) -> None:
        """On every way out, an unforeseen exception included."""
        if self._master is not None:
            self._master.close()
        if self._group is not None:
            self._group.forward(signal.SIGKILL)
        self._sweep()
        if self._placement.run_dir:
            rundir.remove(self._placement.run_dir)
        if self._guard is not None:
            self._guard.close()
