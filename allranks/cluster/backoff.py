"""The one reconnect policy: exponential, jittered, reset by success; the caller bounds the whole."""

from __future__ import annotations

import random


class Backoff:
    """Delays in seconds between attempts. Jitter keeps a thousand streams from reconnecting in step."""

    def __init__(self, first: float = 0.1, most: float = 10.0) -> None:
        self._first, self._most = first, most
        self._next = first

    def delay(self, at_least: float | None = None) -> float:
        """The next delay; never below what the server asked for (Retry-After)."""
        ceiling, self._next = self._next, min(self._next * 2, self._most)
        return max(random.uniform(ceiling / 2, ceiling), at_least or 0.0)

    def reset(self) -> None:
        self._next = self._first
