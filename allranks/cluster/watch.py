"""List, then watch, for ever: a stream of changes to one kind of object that survives whatever a watch does.

Three nested generators: for ever → one listing and its watches → one request.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum

from allranks.cluster import ClusterError
from allranks.cluster.backoff import Backoff
from allranks.cluster.client import TRANSIENT, Api, ApiError, Object, Query

# Seconds that a watch must have lasted to count as one that worked.
_WORKING = 5.0


class Type(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    SYNCED = "SYNCED"
    """A listing is complete: what was reported until now is all there is."""


@dataclass(frozen=True, slots=True)
class Change:
    type: Type
    object: Object
    """The object's newest state, or its last known one when it was deleted; empty for SYNCED."""


class _Gone(Exception):
    """410: the server no longer has the history since our last word. Routine; a new listing bridges it.

    What is no event at all is taken for the same.
    """


Known = dict[str, Object]


async def watch(api: Api, path: str, query: Query | None = None) -> AsyncGenerator[Change]:
    """Never ends by itself. Raises ClusterError only when the very first listing fails (no permission, no server)."""
    known: Known = {}
    backoff, synced = Backoff(), False
    while True:
        wait: float | None = None
        try:
            async with aclosing(_listing_and_watches(api, path, query or {}, known, backoff)) as changes:
                async for change in changes:
                    synced = synced or change.type is Type.SYNCED
                    yield change
        except _Gone:
            pass
        except ApiError as error:
            # Once it has worked, a refusal (a token being renewed, an overloaded server) must not end the run.
            if not synced and not error.transient:
                raise
            wait = error.retry_after
        except ClusterError:
            if not synced:
                raise
        except TRANSIENT:
            pass
        await asyncio.sleep(backoff.delay(wait))


async def _listing_and_watches(
    api: Api, path: str, query: Query, known: Known, backoff: Backoff
) -> AsyncGenerator[Change]:
    listing = await api.call("GET", path, query=query)
    version = listing["metadata"]["resourceVersion"]
    present = {item["metadata"]["uid"]: item for item in listing.get("items") or ()}
    for uid in [uid for uid in known if uid not in present]:
        yield Change(Type.DELETED, known.pop(uid))
    for uid, item in present.items():
        before = known.get(uid)
        known[uid] = item
        if before is None:
            yield Change(Type.ADDED, item)
        elif before["metadata"].get("resourceVersion") != item["metadata"].get("resourceVersion"):
            yield Change(Type.MODIFIED, item)
    yield Change(Type.SYNCED, {})
    while True:
        opened = time.monotonic()
        cut = False
        try:
            async with aclosing(_one_watch(api, path, query, version)) as events:
                async for kind, item in events:
                    backoff.reset()
                    version = item["metadata"].get("resourceVersion", version)
                    if kind == "BOOKMARK":
                        continue
                    uid = item["metadata"]["uid"]
                    if kind == Type.DELETED:
                        known.pop(uid, None)
                    else:
                        known[uid] = item
                    yield Change(Type(kind), item)
        except TRANSIENT:
            cut = True
        if time.monotonic() - opened > _WORKING:
            backoff.reset()
        if cut or time.monotonic() - opened < _WORKING:  # a server that ends every watch at once must not be hammered
            await asyncio.sleep(backoff.delay())


async def _one_watch(api: Api, path: str, query: Query, version: str) -> AsyncGenerator[tuple[str, Object]]:
    """Events of one request until the server closes it; a short one, so that a dead connection is noticed soon.

    A watch may go silent without a sign (a proxy, a network that drops): nothing but asking anew shows it.
    """
    seconds = random.randint(7, 10)
    asked = {**query, "watch": True, "allowWatchBookmarks": True}
    asked |= {"resourceVersion": version, "timeoutSeconds": seconds}
    async with api.stream(path, asked, idle=seconds + 3) as response:
        buffer = bytearray()
        async for chunk in response.content.iter_any():
            buffer += chunk
            *lines, rest = buffer.split(b"\n")
            buffer = bytearray(rest)
            for line in filter(None, lines):
                try:
                    event = json.loads(line)
                except ValueError:
                    raise _Gone from None  # a proxy broke off in the middle of a line, or speaks itself: list anew
                if event["type"] == "ERROR":
                    raise _failure(path, event["object"])
                yield event["type"], event["object"]


def _failure(path: str, status: Object) -> Exception:
    if status.get("code") == 410:
        return _Gone()
    return ApiError(int(status.get("code") or 500), f"watch {path}", str(status.get("message")))
