"""Following one container's log from its start to its end: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from allranks.cluster import paths
from allranks.cluster.backoff import Backoff
from allranks.cluster.client import TRANSIENT, Api, ApiError
from allranks.cluster.tail import Tail

# A follow request may go silent for good when the log is rotated; asking again costs little and repeats nothing.
_SILENCE = 30.0
_DRAIN = 5.0
_RECONCILE = 12.0


class LogFollower:
    """`run()` gives the log's bytes to `sink` as they come; call `ended()` when the container has terminated.

    A stream's end is not the container's: while it runs, the stream is opened again. After the end, one more reading
    without following fetches what the stream had not brought yet.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        pod: str,
        container: str,
        sink: Callable[[bytes], None],
        *,
        silence: float = _SILENCE,
        look: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._api = api
        self._path = f"{paths.namespaced('pods', namespace, pod)}/log"
        self._container = container
        self._sink = sink
        self._silence = silence
        self._look = look
        self._tail = Tail()
        self._over = asyncio.Event()
        self.reconnects = 0
        self.whole = False
        """Whether the log was read to its end: by a last reading, or by a stream that was not cut."""

    def ended(self) -> None:
        self._over.set()

    async def run(self) -> None:
        backoff = Backoff()
        while not self._over.is_set():
            opened = time.monotonic()
            try:
                if await self._follow(backoff):
                    return
            except (*TRANSIENT, ApiError):
                pass
            if time.monotonic() - opened > self._silence / 2:
                backoff.reset()
            self.reconnects += 1
            try:
                async with asyncio.timeout(backoff.delay()):
                    await self._over.wait()
            except TimeoutError:
                if self._look is not None:
                    await self._look()  # whether the container has ended, should nobody have told us
        await self._reconcile()

    def _query(self, *, follow: bool) -> dict[str, str | int | bool]:
        query: dict[str, str | int | bool] = {"container": self._container, "timestamps": True}
        if follow:
            query["follow"] = True
        if self._tail.since:
            query["sinceTime"] = self._tail.since
        return query

    async def _follow(self, backoff: Backoff) -> bool:
        """One stream. True when the log is complete, False when it has to be asked for again."""
        silence = random.uniform(self._silence, self._silence * 1.3)
        over: asyncio.Future[Any] = asyncio.ensure_future(self._over.wait())
        reading: asyncio.Future[Any] | None = None
        try:
            async with self._api.stream(self._path, self._query(follow=True), idle=silence) as body:
                self._tail.begin()
                self.whole = False
                while True:
                    reading = reading or asyncio.ensure_future(body.readany())
                    await asyncio.wait([reading, over], return_when=asyncio.FIRST_COMPLETED)
                    if reading.done():
                        chunk = reading.result()
                        reading = None
                        if not chunk:
                            self.whole = True  # unless the container still runs, which the next stream shows
                            return False
                        backoff.reset()
                        self._feed(chunk)
                    elif await self._reconcile():
                        return True
                    else:
                        # The pod is gone, its log with it: the open stream carries the last there is.
                        await self._drain(body, reading)
                        return True
        finally:
            over.cancel()
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _drain(self, body: aiohttp.StreamReader, reading: asyncio.Future[Any]) -> None:
        try:
            async with asyncio.timeout(_DRAIN):
                chunk = await reading
                while chunk:
                    self._feed(chunk)
                    chunk = await body.readany()
                self.whole = True
        except TRANSIENT:
            pass

    async def _reconcile(self) -> bool:
        """Reads what is left after the container's end. False when the log is not served (any more)."""
        backoff, until = Backoff(), time.monotonic() + _RECONCILE
        while True:
            try:
                async with self._api.stream(self._path, self._query(follow=False), idle=_RECONCILE) as body:
                    self._tail.begin()
                    while chunk := await body.readany():
                        self._feed(chunk)
                self.whole = True
                return True
            except ApiError as error:
                if not error.transient or time.monotonic() > until:
                    return False
            except TRANSIENT:
                if time.monotonic() > until:
                    return False
            await asyncio.sleep(backoff.delay())

    def _feed(self, chunk: bytes) -> None:
        content = self._tail.feed(chunk)
        if content:
            self._sink(content)
