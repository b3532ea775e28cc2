"""Following one container's log from its start to its end: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import aiohttp

from allranks.cluster import paths
from allranks.cluster.backoff import Backoff
from allranks.cluster.client import TRANSIENT, Api, ApiError
from allranks.cluster.pace import Pace
from allranks.cluster.tail import Tail

# A follow request may go silent for good when the log is rotated; asking again costs little and repeats nothing.
_SILENCE = 30.0
_DRAIN = 5.0
_RECONCILE = 12.0
# Bytes. Who has much to say is listened to at once.
_MUCH = 1 << 16


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
        pace: Pace | None = None,
        look: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`silence` is in seconds: a stream without a word for so long is opened again. Without a `pace` there is no
        rest between readings.
        """
        self._api = api
        self._path = f"{paths.namespaced('pods', namespace, pod)}/log"
        self._container = container
        self._sink = sink
        self._silence = silence
        self._pace = pace
        self._look = look
        self._tail = Tail()
        self._over = asyncio.Event()
        self._reading: asyncio.Timeout | None = None
        """What ends the reading of the open stream."""
        self.reconnects = 0
        self.whole = False
        """Whether the log was read to its end: by a last reading, or by a stream that was not cut."""

    def ended(self) -> None:
        if self._over.is_set():
            return
        self._over.set()
        if self._reading is not None:
            self._reading.reschedule(0.0)

    async def told(self, seconds: float) -> bool:
        """Whether `ended` is called within so many seconds; returns as soon as it is."""
        try:
            async with asyncio.timeout(seconds):
                return await self._over.wait()
        except TimeoutError:
            return False

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
            if not await self.told(backoff.delay()) and self._look is not None:
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
        async with self._api.stream(self._path, self._query(follow=True), idle=silence) as response:
            self._tail.begin()
            self.whole = False
            try:
                async with asyncio.timeout(0.0 if self._over.is_set() else None) as reading:
                    self._reading = reading
                    while chunk := await response.content.readany():
                        backoff.reset()
                        self._feed(chunk)
                        if len(chunk) < _MUCH:
                            await self._rest(response)
                    self.whole = True  # unless the container still runs, which the next stream shows
                    return False
            except TimeoutError:
                if not reading.expired():
                    raise
            finally:
                self._reading = None
            if not await self._reconcile():
                # The pod is gone, its log with it: the open stream carries the last there is.
                await self._drain(response)
            return True

    async def _rest(self, response: aiohttp.ClientResponse) -> None:
        """Leaves what comes next to the kernel for a moment, to be read by the handful."""
        transport = response.connection and response.connection.transport
        if transport is None or self._pace is None:
            return  # without a transport all of it is here
        transport.pause_reading()
        try:
            await self._pace.rest()
        finally:
            transport.resume_reading()

    async def _drain(self, response: aiohttp.ClientResponse) -> None:
        try:
            async with asyncio.timeout(_DRAIN):
                while chunk := await response.content.readany():
                    self._feed(chunk)
                self.whole = True
        except TRANSIENT:
            pass

    async def _reconcile(self) -> bool:
        """Reads what is left after the container's end. False when the log is not served (any more)."""
        backoff, until = Backoff(), time.monotonic() + _RECONCILE
        while True:
            try:
                async with self._api.stream(self._path, self._query(follow=False), idle=_RECONCILE) as response:
                    self._tail.begin()
                    while chunk := await response.content.readany():
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
