"""Deletion: grace, finalizers, owners and what they own, namespaces and what is in them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from allranks.standin import errors
from allranks.standin.objects import Object, is_finished, name_of, namespace_of, timestamp
from allranks.standin.resources import (
    CONFIG_MAPS,
    JOBS,
    NAMESPACED,
    NAMESPACES,
    PODS,
    SERVICE_ACCOUNTS,
    STORED,
    Resource,
)
from allranks.standin.store import Change, Store

_PAUSE = 2.0
"""After each look at all objects, times its length: a thousand pods go one by one, and are looked at together."""
_POLICIES = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}


def delete(store: Store, resource: Resource, obj: Object, options: dict[str, Any]) -> tuple[Object, list[str]]:
    """Deletes as DeleteOptions ask. Returns the object as it now is, and warnings. Raises StatusError 409 or 422."""
    _check_preconditions(resource, obj, options.get("preconditions") or {})
    warnings: list[str] = []
    policy = options.get("propagationPolicy")
    if policy is None:
        policy = "Orphan" if options.get("orphanDependents") else "Background"
        if resource is JOBS and options.get("orphanDependents") is None:
            # batch/v1 keeps this trap for compatibility: a Job deleted with no policy leaves its pods running.
            policy = "Orphan"
            warnings.append(
                "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background "
                "to remove them or set propagationPolicy=Orphan to suppress this warning"
            )
    elif policy not in ("Background", "Foreground", "Orphan"):
        raise errors.bad_request(f'invalid propagationPolicy "{policy}": must be Background, Foreground or Orphan')
    finalizers = list(obj["metadata"].get("finalizers") or ())
    if policy in _POLICIES and _POLICIES[policy] not in finalizers:
        finalizers.append(_POLICIES[policy])
    grace = _grace(resource, obj, options.get("gracePeriodSeconds"))
    if resource is not NAMESPACES and not finalizers and grace == 0:
        return store.remove(resource, namespace_of(obj), name_of(obj)), warnings

    def mark(made: Object) -> None:
        meta = made["metadata"]
        if finalizers:
            meta["finalizers"] = finalizers
        if "deletionTimestamp" not in meta or grace < meta.get("deletionGracePeriodSeconds", grace):
            meta["deletionTimestamp"] = timestamp()
            meta["deletionGracePeriodSeconds"] = grace
        if resource is NAMESPACES:
            made["status"]["phase"] = "Terminating"
            meta.pop("deletionGracePeriodSeconds", None)

    return store.mutate(resource, namespace_of(obj), name_of(obj), mark) or obj, warnings


def finish(store: Store, resource: Resource, obj: Object) -> Object:
    """Removes an object that is marked for deletion once nothing holds it back any more."""
    meta = obj["metadata"]
    if "deletionTimestamp" not in meta or meta.get("finalizers") or resource is NAMESPACES:
        return obj
    if meta.get("deletionGracePeriodSeconds"):
        return obj
    return store.remove(resource, namespace_of(obj), name_of(obj))


def _check_preconditions(resource: Resource, obj: Object, wanted: dict[str, Any]) -> None:
    for field, held in (("uid", "uid"), ("resourceVersion", "resourceVersion")):
        if wanted.get(field) and wanted[field] != obj["metadata"][held]:
            label = "UID" if field == "uid" else "ResourceVersion"
            why = f"Precondition failed: {label} in precondition: {wanted[field]}, {label} in object meta: "
            raise errors.conflict(resource, name_of(obj), why + obj["metadata"][held])


def _grace(resource: Resource, obj: Object, asked: int | None) -> int:
    """Seconds until a pod may be killed; 0 where nothing runs."""
    if resource is not PODS or not obj["spec"].get("nodeName") or is_finished(obj):
        return 0
    grace = obj["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return max(int(grace), 0)


class Collector:
    """Deletes dependents of deleted owners and the contents of deleted namespaces; furnishes new namespaces."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wake = asyncio.Event()
        store.listen(self._hear)

    def _hear(self, resource: Resource, change: Change) -> None:
        if resource is NAMESPACES and change.kind == "ADDED":
            asyncio.get_running_loop().call_soon(self._furnish, name_of(change.new))
        meta, before = change.new["metadata"], (change.old or {"metadata": {}})["metadata"]
        owners = meta.get("ownerReferences")
        if change.kind == "DELETED" or owners != before.get("ownerReferences") or "deletionTimestamp" in meta:
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            began = time.monotonic()
            self._collect()
            self._empty_namespaces()
            await asyncio.sleep(_PAUSE * (time.monotonic() - began))

    def _furnish(self, namespace: str) -> None:
        meta = {"namespace": namespace}
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**meta, "name": "default"}}
        bundle = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**meta, "name": "kube-root-ca.crt"}}
        wanted: list[tuple[Resource, Object]] = [(SERVICE_ACCOUNTS, account), (CONFIG_MAPS, bundle | {"data": {}})]
        for resource, obj in wanted:
            if self._store.find(resource, namespace, obj["metadata"]["name"]) is None:
                self._store.create(resource, obj)

    def _collect(self) -> None:
        everything: list[tuple[Resource, Object]] = [
            (resource, obj) for resource in STORED for obj in self._store.list(resource)
        ]
        alive = {obj["metadata"]["uid"]: obj for _, obj in everything}
        dependents: dict[str, list[tuple[Resource, Object]]] = {}
        for resource, obj in everything:
            for owner in obj["metadata"].get("ownerReferences") or ():
                dependents.setdefault(owner["uid"], []).append((resource, obj))
        for uid, children in dependents.items():
            if uid not in alive:
                for resource, child in children:
                    self._lose_owner(resource, child, alive)
        for resource, obj in everything:
            finalizers = obj["metadata"].get("finalizers") or ()
            if "deletionTimestamp" not in obj["metadata"]:
                continue
            children = dependents.get(obj["metadata"]["uid"], [])
            if "orphan" in finalizers:
                for kind, child in children:
                    self._drop_reference(kind, child, obj["metadata"]["uid"])
                self._release(resource, obj, "orphan")
            elif "foregroundDeletion" in finalizers:
                self._delete_first(resource, obj, children)

    def _delete_first(self, resource: Resource, owner: Object, children: list[tuple[Resource, Object]]) -> None:
        blocking = False
        for kind, child in children:
            current = self._store.find(kind, namespace_of(child), name_of(child))
            if current is None or current["metadata"]["uid"] != child["metadata"]["uid"]:
                continue
            if "deletionTimestamp" not in current["metadata"]:
                delete(self._store, kind, current, {"propagationPolicy": "Background"})
            if self._store.find(kind, namespace_of(child), name_of(child)) is not None:
                blocking = True
        if not blocking:
            self._release(resource, owner, "foregroundDeletion")

    def _lose_owner(self, resource: Resource, child: Object, alive: dict[str, Object]) -> None:
        current = self._store.find(resource, namespace_of(child), name_of(child))
        if current is None or current["metadata"]["uid"] != child["metadata"]["uid"]:
            return
        owners = current["metadata"].get("ownerReferences") or ()
        left = [owner for owner in owners if owner["uid"] in alive]
        if left:
            for owner in owners:
                if owner["uid"] not in alive:
                    self._drop_reference(resource, current, owner["uid"])
        elif "deletionTimestamp" not in current["metadata"]:
            delete(self._store, resource, current, {"propagationPolicy": "Background"})

    def _drop_reference(self, resource: Resource, obj: Object, uid: str) -> None:
        def drop(made: Object) -> None:
            kept = [owner for owner in made["metadata"].get("ownerReferences") or () if owner["uid"] != uid]
            made["metadata"]["ownerReferences"] = kept
            if not kept:
                del made["metadata"]["ownerReferences"]

        self._store.mutate(resource, namespace_of(obj), name_of(obj), drop)

    def _release(self, resource: Resource, obj: Object, finalizer: str) -> None:
        def drop(made: Object) -> None:
            kept = [name for name in made["metadata"].get("finalizers") or () if name != finalizer]
            made["metadata"]["finalizers"] = kept
            if not kept:
                del made["metadata"]["finalizers"]

        updated = self._store.mutate(resource, namespace_of(obj), name_of(obj), drop)
        if updated is not None:
            finish(self._store, resource, updated)

    def _empty_namespaces(self) -> None:
        for namespace in self._store.list(NAMESPACES):
            if "deletionTimestamp" not in namespace["metadata"]:
                continue
            name = name_of(namespace)
            for resource in NAMESPACED:
                for obj in self._store.list(resource, name):
                    if "deletionTimestamp" not in obj["metadata"]:
                        delete(self._store, resource, obj, {"propagationPolicy": "Background"})
            left = any(self._store.list(resource, name) for resource in NAMESPACED)
            if not left and not namespace["metadata"].get("finalizers"):
                self._store.remove(NAMESPACES, "", name)
