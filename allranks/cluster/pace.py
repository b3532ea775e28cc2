"""When log streams are read, where there are many of them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Self

# Seconds between two readings of a stream: for each stream there is, and at most.
_EACH, _MOST = 0.0004, 0.5
# Streams read in one round of the event loop.
_TOGETHER = 64


class Pace:
    """Shared by the streams of a run: each rests between two readings, and they are read a few at a time.

    A kubelet sends each line by itself, and a thousand streams that woke us for every line would take more than a core.
    And the watch is one among them: were they all read in each round of the event loop, it would be the last to tell.
    """

    def __init__(self, pause: float) -> None:
        """`pause` is in seconds."""
        self._pause = pause
        self._waiting: deque[asyncio.Future[None]] = deque()

    @classmethod
    def of(cls, streams: int) -> Self:
        """The pace for so many streams."""
        return cls(min(_EACH * streams, _MOST))

    async def rest(self) -> None:
        await asyncio.sleep(self._pause)
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._next)
        await turn

    def _next(self) -> None:
        for _ in range(min(_TOGETHER, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # its stream may have ended meanwhile
                turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
