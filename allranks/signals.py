"""Ctrl-C and SIGTERM as an orderly end: the first one cancels the work, which cleans up; later ones are ignored."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Interrupted(KeyboardInterrupt):
    """A signal ended the work, and what it had made has been removed."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, with both signals as cancellation. Raises Interrupted after one.

    Signals reach the main thread only: in another thread this is `asyncio.run`. Handlers that were set before (pytest
    has some) are put back.
    """
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in numbers}
    received: list[int] = []

    async def guarded() -> T:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()

        def on_signal(number: int) -> None:
            received.append(number)
            if len(received) == 1:
                task.cancel()

        for number in numbers:
            loop.add_signal_handler(number, on_signal, number)
        try:
            return await task
        except asyncio.CancelledError:
            if received:
                raise Interrupted(received[0]) from None
            raise

    try:
        result = asyncio.run(guarded())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:  # it came too late to change anything but must not be swallowed
        raise Interrupted(received[0])
    return result
