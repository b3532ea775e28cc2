"""A rank's output: one pipe per stream, read in large pieces, passed on in whole lines."""

from __future__ import annotations

import os
import sys

from workloads.launch.lines import LineBuffer, prefixed
from workloads.launch.loop import READ, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workloads.launch.console import Outlet

_READ_SIZE = 1 << 18
_F_SETPIPE_SZ = 1031


def open_pipe() -> tuple[int, int]:
    """A pipe roomy enough (on Linux) that a rank rarely waits for the launcher; the reading end does not block."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    if sys.platform == "linux":
        import fcntl

        try:
            fcntl.fcntl(writer, _F_SETPIPE_SZ, _READ_SIZE)
        except OSError:  # the user's allowance of pipe memory is used up: 64 KiB do
            return reader, writer
    return reader, writer


class Stream:
    """The reading end of a rank's pipe, and where what comes out of it goes."""

    def __init__(
        self,
        loop: Loop,
        fd: int,
        *,
        outlet: Outlet | None,
        file: int | None,
        prefix: bytes,
        hear: Callable[[bytes], None],
    ) -> None:
        """`hear` is given every block of whole lines; `file` gets every byte as it comes."""
        self.open = True
        self.outlet = outlet
        self.file_error: OSError | None = None
        self._loop = loop
        self._fd = fd
        self._file = file
        self._prefix = prefix
        self._hear = hear
        self._buffer = LineBuffer()
        self._paused = False
        loop.watch(fd, READ, self.pump)

    def pump(self) -> bool:
        """Pass on what is there, one piece; False when there was nothing more."""
        try:
            piece = os.read(self._fd, _READ_SIZE)
        except BlockingIOError:
            return False
        if not piece:
            self.close()
            return False
        self._store(piece)
        lines = self._buffer.feed(piece)
        if lines:
            self._pass_on(lines)
        return True

    def drain(self) -> None:
        """What a rank that has ended left in its pipe: at most the pipe's capacity, in few pieces."""
        for _ in range(64):
            if not self.open or not self.pump():
                return

    def pause(self, paused: bool) -> None:
        """Leave the rank's output in its pipe for now: the console's reader is behind."""
        if paused == self._paused or not self.open:
            return
        self._paused = paused
        if paused:
            self._loop.unwatch(self._fd)
        else:
            self._loop.watch(self._fd, READ, self.pump)

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        last = self._buffer.flush()
        if last:
            self._pass_on(last)
        if not self._paused:
            self._loop.unwatch(self._fd)
        os.close(self._fd)
        if self._file is not None:
            os.close(self._file)

    def _pass_on(self, lines: bytes) -> None:
        self._hear(lines)
        if self.outlet is not None:
            self.outlet.write(prefixed(lines, self._prefix))

    def _store(self, piece: bytes) -> None:
        if self._file is None or self.file_error is not None:
            return
        view = memoryview(piece)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            self.file_error = error
