"""The one loop: descriptors, deadlines and signals. Everything the launcher does happens in its turns."""

from __future__ import annotations

import os
import selectors
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Loop:
    """Single-threaded, so that forking is safe at any point."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._deadlines: dict[str, tuple[float, Callable[[], None]]] = {}

    def watch(self, fd: int, events: int, callback: Callable[[], object]) -> None:
        """Raises PermissionError for what is always ready (regular files, /dev/null)."""
        self._selector.register(fd, events, callback)

    def unwatch(self, fd: int) -> None:
        self._selector.unregister(fd)

    def after(self, seconds: float, name: str, callback: Callable[[], None]) -> None:
        """Call once, unless cancelled; a name has one deadline at a time, the latest given."""
        self._deadlines[name] = (time.monotonic() + seconds, callback)

    def cancel(self, name: str) -> None:
        self._deadlines.pop(name, None)

    def pending(self, name: str) -> bool:
        return name in self._deadlines

    def turn(self) -> None:
        """Wait for something to happen, then let everything that happened be dealt with."""
        timeout = None
        if self._deadlines:
            timeout = max(0.0, min(when for when, _ in self._deadlines.values()) - time.monotonic())
        for key, _ in self._selector.select(timeout):
            # An earlier callback of this turn may have closed it.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        now = time.monotonic()
        for name in [name for name, (when, _) in self._deadlines.items() if when <= now]:
            entry = self._deadlines.pop(name, None)
            if entry:
                entry[1]()


class Signals:
    """Signals as events of the loop, in the order in which they came.

    A signal that is ignored when the launcher starts (nohup) stays ignored, for it and for its children.
    """

    def __init__(self, loop: Loop, numbers: tuple[int, ...], callback: Callable[[int], None]) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._callback = callback
        self.handled: list[int] = []
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *numbers):
            if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _noted)
                self.handled.append(number)
        loop.watch(self._read, READ, self._deliver)

    def _deliver(self) -> None:
        try:
            numbers = os.read(self._read, 4096)
        except BlockingIOError:
            return
        for number in dict.fromkeys(numbers):
            self._callback(number)


def _noted(number: int, frame: object) -> None:
    """The number is already in the wake-up pipe."""
