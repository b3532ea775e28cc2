"""The objects, their versions and the history that watches read. One thread, no I/O: every call is atomic."""

from __future__ import annotations

import builtins
import secrets
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from allranks.standin import errors
from allranks.standin.objects import Object, clone, name_of, namespace_of, timestamp
from allranks.standin.resources import STORED, Resource

NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Kubernetes's alphabet for generated names: no vowels, no look-alikes."""


class Change(NamedTuple):
    """One entry of the history."""

    version: int
    kind: str
    """ADDED, MODIFIED or DELETED."""
    new: Object
    """The object after the change; for DELETED its last state, with the version of the deletion."""
    old: Object | None


Listener = Callable[[Resource, Change], None]


@dataclass(slots=True)
class _Shelf:
    objects: dict[tuple[str, str], Object]
    history: deque[Change]
    forgotten: int = 0
    """The version of the newest change that the history no longer holds."""


def random_suffix(length: int = 5) -> str:
    return "".join(secrets.choice(NAME_ALPHABET) for _ in range(length))


class Store:
    """All objects of the cluster. Objects handed out are shared and must not be changed in place."""

    def __init__(self, window: int = 4096) -> None:
        """`window` is how many changes per kind a watch can look back."""
        self.window = window
        self.version = 1
        self._shelves = {resource: _Shelf({}, deque()) for resource in STORED}
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` after every change, in order. Returns a function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return self._shelves[resource].objects.get((namespace, name))

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """Raises StatusError 404."""
        found = self.find(resource, namespace, name)
        if found is None:
            raise errors.not_found(resource, name)
        return found

    def list(self, resource: Resource, namespace: str = "") -> builtins.list[Object]:
        """Of one namespace, or of all when it is empty; sorted by namespace and name."""
        objects = self._shelves[resource].objects
        return [objects[key] for key in sorted(objects) if not namespace or key[0] == namespace]

    def create(self, resource: Resource, obj: Object) -> Object:
        """Stores a copy with name, uid, times and version filled in. Raises StatusError 409 when the name is taken."""
        return self.add(resource, self.prepare(resource, obj))

    def add(self, resource: Resource, made: Object) -> Object:
        """Stores what `prepare` made (and the caller completed). Raises StatusError 409 when the name is taken."""
        key = (namespace_of(made), name_of(made))
        if key in self._shelves[resource].objects:
            raise errors.already_exists(resource, key[1])
        return self._write(resource, "ADDED", made, None)

    def prepare(self, resource: Resource, obj: Object) -> Object:
        """The copy that `create` would store, but for its version."""
        made: Object = clone(obj)
        meta = made.setdefault("metadata", {})
        if not meta.get("name"):
            meta["name"] = f"{meta.get('generateName', '')}{random_suffix()}"
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = timestamp()
        for server_owned in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
            meta.pop(server_owned, None)
        if "spec" in made and resource.subresources:
            meta["generation"] = 1
        return made

    def update(self, resource: Resource, obj: Object) -> Object:
        """Replaces an object; an unchanged one is not written. Raises StatusError 404, or 409 for a stale version."""
        held = self.get(resource, namespace_of(obj), name_of(obj))
        wanted = obj["metadata"].get("resourceVersion")
        if wanted and wanted != held["metadata"]["resourceVersion"]:
            raise errors.stale(resource, name_of(obj))
        if obj["metadata"].get("uid", held["metadata"]["uid"]) != held["metadata"]["uid"]:
            why = f"Precondition failed: UID in precondition: {obj['metadata']['uid']}, UID in object meta: "
            raise errors.conflict(resource, name_of(obj), why + held["metadata"]["uid"])
        return self._replace(resource, held, clone(obj))

    def _replace(self, resource: Resource, held: Object, made: Object) -> Object:
        for fixed in ("uid", "creationTimestamp", "resourceVersion", "generation"):
            if fixed in held["metadata"]:
                made["metadata"][fixed] = held["metadata"][fixed]
        if made == held:
            return held
        if "generation" in held["metadata"] and made.get("spec") != held.get("spec"):
            made["metadata"]["generation"] += 1
        return self._write(resource, "MODIFIED", made, held)

    def mutate(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        change: Callable[[Object], None],
        *,
        status_only: bool = False,
    ) -> Object | None:
        """Applies `change` to a copy, of which it keeps nothing, and stores it. None when the object is not there.

        With `status_only` it must leave the spec as it is.
        """
        held = self.find(resource, namespace, name)
        if held is None:
            return None
        if status_only:
            made = {**held, "metadata": dict(held["metadata"]), "status": clone(held["status"])}
        else:
            made = clone(held)
        change(made)
        return self._replace(resource, held, made)

    def remove(self, resource: Resource, namespace: str, name: str) -> Object:
        """Takes the object out at once. Raises StatusError 404."""
        held = self.get(resource, namespace, name)
        return self._write(resource, "DELETED", clone(held), held)

    def changes(self, resource: Resource, since: int) -> builtins.list[Change]:
        """The changes of one kind after version `since`. Raises StatusError 410 beyond the history."""
        shelf = self._shelves[resource]
        if since < shelf.forgotten:
            raise errors.expired(f"too old resource version: {since} ({shelf.forgotten})")
        recent: list[Change] = []
        for change in reversed(shelf.history):
            if change.version <= since:
                break
            recent.append(change)
        recent.reverse()
        return recent

    def forget_history(self) -> None:
        """As if an etcd compaction had happened: watches from any earlier version get 410."""
        for shelf in self._shelves.values():
            shelf.history.clear()
            shelf.forgotten = self.version

    def _write(self, resource: Resource, kind: str, made: Object, old: Object | None) -> Object:
        shelf = self._shelves[resource]
        self.version += 1
        made["metadata"]["resourceVersion"] = str(self.version)
        key = (namespace_of(made), name_of(made))
        if kind == "DELETED":
            del shelf.objects[key]
        else:
            shelf.objects[key] = made
        change = Change(self.version, kind, made, old)
        shelf.history.append(change)
        if len(shelf.history) > self.window:
            shelf.forgotten = shelf.history.popleft().version
        for listener in tuple(self._listeners):
            listener(resource, change)
        return made
