"""Waiting for the master: its name must resolve before the ranks start, and its port answer within a deadline.

A helper process does the asking, because a name look-up cannot be interrupted and may take longer than a pod has to
shut down; the launcher only reads what it says.
"""

from __future__ import annotations

import os
import signal
import socket
import time

from workloads.launch.loop import READ, Loop
from workloads.launch.spawn import start_helper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def is_name(host: str) -> bool:
    """Whether there is something to resolve."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return False
    return True


class MasterWatch:
    """Says when the name is `resolved`; then, if it is to wait for that, calls `answered`.

    Raises OSError when the helper cannot be started.
    """

    def __init__(self, loop: Loop, host: str, port: int, *, until_answered: bool, answered: Callable[[], None]) -> None:
        self.problem = "no answer yet"
        """What the last attempt met with."""
        self.resolved = False
        self._loop = loop
        self._on_answered = answered
        self._said = b""
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        try:
            self._pid = start_helper(lambda: _ask(host, port, until_answered, writer), keep=(writer,))
        finally:
            os.close(writer)
        loop.watch(self._reader, READ, self._hear)

    def reaped(self, pid: int) -> None:
        if pid == self._pid:
            self._pid = 0

    def close(self) -> None:
        if self._reader < 0:
            return
        self._loop.unwatch(self._reader)
        os.close(self._reader)
        self._reader = -1
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)

    def _hear(self) -> None:
        said = os.read(self._reader, 65536)
        if not said:
            self.close()
            return
        *lines, self._said = (self._said + said).split(b"\n")
        for line in lines:
            if line == b"resolved":
                self.resolved = True
            elif line == b"answered":
                self._on_answered()
            else:
                self.problem = line.decode("utf-8", "replace")


def _ask(host: str, port: int, until_answered: bool, writer: int) -> None:
    said = ""
    resolved = False
    pause = 0.05
    while True:
        problem = ""
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            if not resolved:
                os.write(writer, b"resolved\n")
                resolved = True
            if not until_answered:
                return
            problem = _connect(addresses)
            if not problem:
                os.write(writer, b"answered\n")
                return
        except socket.gaierror as error:
            problem = f"the name does not resolve ({error.strerror})"
        if problem != said:
            os.write(writer, problem.encode("utf-8", "replace") + b"\n")
            said = problem
        time.sleep(pause)
        pause = min(1.0, pause * 1.5)


def _connect(addresses: Sequence[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[object, ...]]]) -> str:
    """Empty when one of the addresses answers, else what the last of them said."""
    problem = "no address"
    for family, kind, protocol, _, address in addresses:
        with socket.socket(family, kind, protocol) as probe:
            probe.settimeout(5)
            try:
                probe.connect(address)
            except OSError as error:
                problem = f"{address[0]} does not answer ({error.strerror or error})"
            else:
                return ""
    return problem
