"""Lists and watches: selectors, pages, history, bookmarks."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple

from allranks.standin import errors, selectors
from allranks.standin.objects import Object, name_of, namespace_of
from allranks.standin.resources import Resource
from allranks.standin.store import Change, Store

BOOKMARK_SECONDS = 30.0
DEFAULT_TIMEOUT = 1800.0
"""Without timeoutSeconds a watch ends after half an hour; a real server picks 30 to 60 minutes."""
_KEPT_PAGES = 64
_TOGETHER = 32
"""Changes in one write at most: others want to be served meanwhile."""


class Event(NamedTuple):
    kind: str
    """ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""
    object: Object


class Selection:
    """The selectors of one request."""

    def __init__(self, resource: Resource, namespace: str, query: Mapping[str, str]) -> None:
        self.resource = resource
        self.namespace = namespace
        self._tests = [
            selectors.parse_labels(query.get("labelSelector", "")),
            selectors.parse_fields(resource, query.get("fieldSelector", "")),
        ]

    def takes(self, obj: Object | None) -> bool:
        if obj is None or (self.namespace and namespace_of(obj) != self.namespace):
            return False
        return all(test(obj) for test in self._tests)


class Pages:
    """Consistent pages: the rest of a list is kept as it was at the list's version, for the last few lists."""

    def __init__(self) -> None:
        self._rest: OrderedDict[str, tuple[int, list[Object]]] = OrderedDict()

    def first(self, objects: list[Object], version: int, limit: int) -> tuple[list[Object], dict[str, Any]]:
        return self._page(objects, version, limit)

    def next(self, token: str, limit: int) -> tuple[list[Object], dict[str, Any]]:
        """Raises StatusError 410 for a token that is not known (any more)."""
        if token not in self._rest:
            raise errors.expired("The provided continue parameter is too old to display a consistent list result.")
        version, rest = self._rest[token]
        return self._page(rest, version, limit or len(rest))

    def forget(self) -> None:
        self._rest.clear()

    def _page(self, objects: list[Object], version: int, limit: int) -> tuple[list[Object], dict[str, Any]]:
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        if not limit or len(objects) <= limit:
            return objects, meta
        after = [namespace_of(objects[limit - 1]), name_of(objects[limit - 1])]
        token = base64.urlsafe_b64encode(json.dumps({"rv": version, "after": after}).encode()).decode()
        self._rest[token] = (version, objects[limit:])
        if len(self._rest) > _KEPT_PAGES:
            self._rest.popitem(last=False)
        return objects[:limit], meta | {"continue": token, "remainingItemCount": len(objects) - limit}


def _bookmark(resource: Resource, version: int, *, initial_end: bool = False) -> Event:
    meta: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
    if initial_end:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    return Event("BOOKMARK", {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta})


def _event(selection: Selection, change: Change) -> Event | None:
    """A change as one watcher sees it: entering and leaving its selection are ADDED and DELETED."""
    before = change.kind != "ADDED" and selection.takes(change.old)
    after = change.kind != "DELETED" and selection.takes(change.new)
    if after:
        return Event("MODIFIED" if before else "ADDED", change.new)
    if not before:
        return None
    if change.kind == "DELETED":
        return Event("DELETED", change.new)
    left: Object = dict(change.old or {})
    left["metadata"] = left["metadata"] | {"resourceVersion": str(change.version)}
    return Event("DELETED", left)


async def watch(store: Store, selection: Selection, query: Mapping[str, str]) -> AsyncGenerator[list[Event]]:
    """The events of a watch until its time is over, those that are there together in one list.

    An ERROR event (410 for a version too old) ends it too.
    """
    timeout = float(query.get("timeoutSeconds") or DEFAULT_TIMEOUT)
    deadline = time.monotonic() + timeout
    bookmarks = query.get("allowWatchBookmarks", "") in ("true", "1")
    waiting: list[Change] = []
    more = asyncio.Event()

    def hear(resource: Resource, change: Change) -> None:
        if resource is selection.resource:
            waiting.append(change)
            more.set()

    forget = store.listen(hear)
    try:
        at, backlog = _start(store, selection, query)
        if backlog:
            yield backlog
        if query.get("sendInitialEvents") in ("true", "1") and bookmarks:
            yield [_bookmark(selection.resource, at, initial_end=True)]
        while (left := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(min(left, BOOKMARK_SECONDS)):
                    await more.wait()
            except TimeoutError:
                if bookmarks:
                    yield [_bookmark(selection.resource, store.version)]
                continue
            more.clear()
            changes = waiting[:_TOGETHER]
            del waiting[:_TOGETHER]
            if waiting:
                more.set()
            seen = (_event(selection, change) for change in changes if change.version > at)
            if events := [event for event in seen if event is not None]:
                yield events
    except errors.StatusError as error:
        yield [Event("ERROR", error.status())]
    finally:
        forget()


def _start(store: Store, selection: Selection, query: Mapping[str, str]) -> tuple[int, list[Event]]:
    """The version that the watch begins after, and the events up to there."""
    version = query.get("resourceVersion") or "0"
    if not version.isdigit():
        raise errors.bad_request(f'Invalid value: "{version}": strconv.ParseUint: parsing "{version}": invalid syntax')
    fresh = version == "0" or query.get("sendInitialEvents") in ("true", "1")
    if fresh:
        held = store.list(selection.resource, selection.namespace)
        return store.version, [Event("ADDED", obj) for obj in held if selection.takes(obj)]
    changes = store.changes(selection.resource, int(version))
    events = [event for change in changes if (event := _event(selection, change)) is not None]
    return store.version, events
