"""The launcher's own stdout and stderr, written without ever waiting for their reader.

A reader that is slow holds the ranks back (their pipes fill), as it would without a launcher; but it must not hold
back the launcher itself, which has deadlines to keep. Setting O_NONBLOCK on an inherited descriptor would set it for
everybody who shares it, so each kind of stream has its own way.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import time

from workloads.launch.loop import WRITE, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

HIGH_WATER = 8 << 20
LOW_WATER = 1 << 20
_WRITE_SIZE = 1 << 20


class Outlet:
    """One of our streams. Blocks of whole lines go in; they come out in order, as fast as the reader takes them."""

    def __init__(self, fd: int, loop: Loop) -> None:
        self._loop = loop
        self._fd = fd
        self._pending = bytearray()
        self._watched = False
        self.lost: OSError | None = None
        """Why nothing can be written any more; what is written from then on is dropped."""
        self._send = self._choose()

    @property
    def pending(self) -> int:
        return len(self._pending)

    def write(self, lines: bytes) -> None:
        if self.lost is None:
            self._pending += lines

    def flush(self) -> None:
        """Write what the reader takes now; the rest follows when it is ready."""
        try:
            while self._pending:
                view = memoryview(self._pending)[:_WRITE_SIZE]
                try:
                    sent = self._send(view)
                finally:
                    view.release()
                del self._pending[:sent]
        except BlockingIOError:
            self._wait()
            return
        except OSError as error:  # the reader has gone, the disk is full: the ranks go on without
            self.lost = error
            self._pending.clear()
        if self._watched:
            self._loop.unwatch(self._fd)
            self._watched = False

    def finish(self, patience: float) -> bool:
        """Wait until everything is written, as long as the reader takes something every `patience` seconds."""
        self.flush()
        deadline, before = time.monotonic() + patience, len(self._pending)
        while self._pending and time.monotonic() < deadline:
            select.select((), (self._fd,), (), max(0.0, min(0.5, deadline - time.monotonic())))
            self.flush()
            if len(self._pending) < before:
                deadline, before = time.monotonic() + patience, len(self._pending)
        return not self._pending

    def _wait(self) -> None:
        if not self._watched:
            self._loop.watch(self._fd, WRITE, self.flush)
            self._watched = True

    def _choose(self) -> Callable[[memoryview], int]:
        mode = os.fstat(self._fd).st_mode
        if stat.S_ISSOCK(mode):
            connection = socket.socket(fileno=os.dup(self._fd))
            return lambda data: connection.send(data, socket.MSG_DONTWAIT)
        if stat.S_ISFIFO(mode):
            try:
                self._fd = os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                return self._send_when_ready
            return lambda data: os.write(self._fd, data)
        if stat.S_ISREG(mode) or not os.isatty(self._fd):
            return lambda data: os.write(self._fd, data)
        return self._send_when_ready

    def _send_when_ready(self, data: memoryview) -> int:
        """A pipe or terminal that reports itself ready takes PIPE_BUF bytes without blocking."""
        if not select.select((), (self._fd,), (), 0)[1]:
            raise BlockingIOError
        return os.write(self._fd, data[: select.PIPE_BUF])


class Console:
    """Both streams; one outlet when they are the same pipe, so that neither breaks into the other's line."""

    def __init__(self, loop: Loop) -> None:
        self.out = Outlet(1, loop)
        first, second = os.fstat(1), os.fstat(2)
        same = (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
        self.err = self.out if same else Outlet(2, loop)

    def say(self, text: str) -> None:
        """A message of the launcher's own, on stderr."""
        lines = "".join(f"allranks: {line}\n" for line in text.split("\n"))
        self.err.write(lines.encode("utf-8", "replace"))

    @property
    def pending(self) -> int:
        return max(self.out.pending, self.err.pending)

    def flush(self) -> None:
        self.out.flush()
        self.err.flush()

    def finish(self, patience: float) -> None:
        self.out.finish(patience)
        self.err.finish(patience)
