"""Containers as process groups: started in a session of their own, reaped at once, killed with all they started."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

MARKER = "ALLRANKS_STANDIN_CONTAINER"
"""In the environment of every container process: instance id of the stand-in, pod uid, container, each with a `/`."""
_PIPE_READ = 256 * 1024
_SUBREAPER = 36


def marked(value: str) -> list[int]:
    """The processes whose environment carries a marker that begins with `value` (Linux; elsewhere none are found)."""
    wanted = b"\0" + f"{MARKER}={value}".encode()
    found = []
    for entry in os.scandir("/proc") if sys.platform == "linux" else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in b"\0" + Path("/proc", entry.name, "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def kill_all(value: str, groups: Sequence[int] = ()) -> None:
    """SIGKILL to the groups and to every marked process, also those that moved to sessions of their own."""
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for _ in range(10):
        # Again until none is found: one may have been forking while its parent was killed.
        found = [pid for pid in marked(value) if pid != os.getpid()]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def catches_sigterm(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM. True where that cannot be known."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return True


class Reaper:
    """Waits for all children on SIGCHLD, orphans of containers included (Linux: this process adopts them)."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[int]] = {}

    def start(self) -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def expect(self, pid: int) -> asyncio.Future[int]:
        """A future for the exit code: negative for a signal, as in Python's subprocess."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[pid] = future
        return future

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            future = self._waiting.pop(pid, None)
            if future is not None and not future.done():
                future.set_result(os.waitstatus_to_exitcode(status))


class Container:
    """A running container: its first process, its output, its end."""

    def __init__(
        self,
        reaper: Reaper,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        output: Callable[[bytes, bytes], None],
    ) -> None:
        """Starts it. `output` takes (stream, bytes). Raises FileNotFoundError or PermissionError as exec would."""
        self._marker = env[MARKER]
        self._output = output
        self._loop = asyncio.get_running_loop()
        program = shutil.which(argv[0], path=env.get("PATH", os.defpath))
        if program is None and "/" in argv[0]:
            program = str(cwd / argv[0])
        if program is None:
            raise FileNotFoundError(argv[0])
        reads, writes = zip(*(os.pipe() for _ in range(2)), strict=True)
        self._readers: dict[int, bytes] = dict(zip(reads, (b"stdout", b"stderr"), strict=True))
        try:
            process = subprocess.Popen(
                list(argv),
                executable=program,
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=writes[0],
                stderr=writes[1],
                start_new_session=True,
            )
        except OSError:
            for descriptor in reads:
                os.close(descriptor)
            raise
        finally:
            for descriptor in writes:
                os.close(descriptor)
        process.returncode = 0  # The reaper waits for it; Popen must not.
        self.pid = process.pid
        self._exit = reaper.expect(process.pid)
        for descriptor in reads:
            os.set_blocking(descriptor, False)
            self._loop.add_reader(descriptor, self._read, descriptor)

    def _read(self, descriptor: int) -> bool:
        """One read. False when there is nothing (more) to read now."""
        try:
            data = os.read(descriptor, _PIPE_READ)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
            del self._readers[descriptor]
            return False
        self._output(self._readers[descriptor], data)
        return True

    async def wait(self) -> int:
        """The exit code of the first process, once all its output is delivered and all it started is killed."""
        try:
            code = await asyncio.shield(self._exit)
            kill_all(self._marker, [self.pid])
            for descriptor in tuple(self._readers):
                while self._read(descriptor):
                    pass
            return code
        finally:
            for descriptor in self._readers:
                self._loop.remove_reader(descriptor)
                os.close(descriptor)
            self._readers.clear()

    def terminate(self) -> None:
        """SIGTERM to the first process; the kernel drops it, as for any init, when there is no handler."""
        if catches_sigterm(self.pid):
            self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        if not self._exit.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stand_still(self, *, still: bool) -> None:
        """Every process of the container stops, or goes on."""
        number = signal.SIGSTOP if still else signal.SIGCONT
        for pid in {self.pid, *marked(self._marker)} if not self._exit.done() else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def kill_one(self) -> None:
        """SIGKILL to the youngest process; to the first one when it is alone, or where others cannot be found."""
        pids = {self.pid, *marked(self._marker)}
        if not self._exit.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(max(pids), signal.SIGKILL)

    def kill(self) -> None:
        if not self._exit.done():
            kill_all(self._marker, [self.pid])


class Guardian:
    """A small process that outlives the stand-in for a moment: when it is gone, however, no container is left."""

    def __init__(self, instance: str, scratch: Path | None) -> None:
        """Forks; call it before threads or an event loop exist. `scratch` is a directory to remove at the end."""
        read, self._write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            with contextlib.suppress(BaseException):
                os.setsid()
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                self._detach(read)
                _guard(read, instance, scratch)
            os._exit(0)
        os.close(read)

    @staticmethod
    def _detach(read: int) -> None:
        """Keeps nothing of the stand-in's open but the pipe: whoever reads its output sees the end."""
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        os.closerange(3, read)
        os.closerange(read + 1, 4096)

    def note(self, group: int, *, running: bool) -> None:
        """Tells of a container's process group, for systems where marked processes cannot be found."""
        with contextlib.suppress(BrokenPipeError):  # Somebody killed it; the stand-in can do without.
            os.write(self._write, f"{'+' if running else '-'}{group}\n".encode())

    def dismiss(self) -> None:
        """The stand-in ends in order; the guardian still does its rounds, and this waits for them."""
        os.close(self._write)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _guard(read: int, instance: str, scratch: Path | None) -> None:
    groups: set[int] = set()
    with os.fdopen(read, "r") as notes:
        for note in notes:
            (groups.add if note[0] == "+" else groups.discard)(int(note[1:]))
    kill_all(f"{instance}/", sorted(groups))
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)
