"""The guard: a small process that cleans up if the launcher is killed before it can.

The kernel kills the ranks with the launcher (Linux), but not what the ranks started, and nobody would remove the run
directory. The guard holds the other end of a pipe: when it closes, the launcher is gone, and whatever the guard was
told of and not told to forget is killed and removed.
"""

from __future__ import annotations

import os
import signal

from workloads.launch import rundir
from workloads.launch.spawn import signal_group, start_helper


class Guard:
    """Raises OSError when it cannot be started."""

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        try:
            self.pid = start_helper(lambda: _watch(reader), keep=(reader,), survives=True)
        except OSError:
            os.close(self._writer)
            raise
        finally:
            os.close(reader)

    def group(self, pid: int) -> None:
        """This process group must not outlive the launcher; its leader says so itself, before it executes anything."""
        self._say(f"+{pid}")

    def forget(self, pid: int) -> None:
        self._say(f"-{pid}")

    def directory(self, path: str) -> None:
        self._say(f"d{path}")

    def reaped(self, pid: int) -> None:
        """Somebody killed it: its pid may be another's by now."""
        if pid == self.pid:
            self.pid = 0

    def close(self) -> None:
        """Everything has been cleaned up; the guard ends and is reaped."""
        os.close(self._writer)
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def _say(self, text: str) -> None:
        try:
            os.write(self._writer, os.fsencode(text) + b"\n")
        except BrokenPipeError:  # somebody killed the guard: the run goes on without
            return


def _watch(reader: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    said = bytearray()
    while chunk := os.read(reader, 65536):
        said += chunk
    groups: dict[int, None] = {}
    directories = []
    for line in bytes(said).splitlines():
        kind, rest = line[:1], line[1:]
        if kind == b"d":
            directories.append(os.fsdecode(rest))
        elif kind == b"+":
            groups[int(rest)] = None
        else:
            groups.pop(int(rest), None)
    for pid in groups:
        signal_group(pid, signal.SIGKILL)
    for path in directories:
        rundir.remove(path)
