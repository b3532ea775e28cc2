"""What runs left on a cluster that were killed, or kept to look at: removed by age, and nothing that is not ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from typing import Any

from allranks.cluster import paths
from allranks.cluster.client import Api, ApiError, Object
from allranks.cluster.objects import delete
from allranks.names import EXPIRES, MANAGED_BY, RUN_LABEL

_OURS = {"labelSelector": ",".join([*(f"{name}={value}" for name, value in MANAGED_BY.items()), RUN_LABEL])}
"""Both labels: other tools may be `managed-by` whatever they like."""


async def clean(
    api: Api, *, older_than: float | None = None, namespace: str | None = None, now: datetime | None = None
) -> list[str]:
    """Removes leftovers; returns what was removed, in words.

    Without `older_than` (seconds), namespaces of ours whose time is over and in which no pod is left. With it, those
    that were made so long ago and in which nothing runs, and finished jobs of ours in other people's namespaces.
    """
    now = now or datetime.now(timezone.utc)
    removed = []
    if namespace is None:
        async for name in _namespaces(api, now, older_than):
            if await delete(api, f"{paths.NAMESPACES}/{name}"):
                removed.append(f"namespace {name}")
    if older_than is not None:
        async for place, name in _jobs(api, now, older_than, namespace):
            if await delete(api, paths.namespaced("jobs", place, name)):
                removed.append(f"job {name} in namespace {place}")
    return removed


async def _namespaces(api: Api, now: datetime, older_than: float | None) -> AsyncIterator[str]:
    listing = await api.call("GET", paths.NAMESPACES, query=_OURS)
    for namespace in listing.get("items") or ():
        metadata = namespace["metadata"]
        name = str(metadata["name"])
        if metadata.get("deletionTimestamp") or not _over(metadata, now, older_than):
            continue
        pods = (await api.call("GET", paths.namespaced("pods", name))).get("items") or ()
        left = pods if older_than is None else [pod for pod in pods if _runs(pod)]
        if not left:
            yield name


def _over(metadata: Object, now: datetime, older_than: float | None) -> bool:
    if older_than is not None:
        return _older(metadata, now, older_than)
    expires = _time((metadata.get("annotations") or {}).get(EXPIRES))
    return expires is not None and expires < now


async def _jobs(api: Api, now: datetime, older_than: float, namespace: str | None) -> AsyncIterator[tuple[str, str]]:
    """Finished ones; those in a namespace of their own go with it."""
    path = "/apis/batch/v1/jobs" if namespace is None else paths.namespaced("jobs", namespace)
    try:
        listing = await api.call("GET", path, query=_OURS)
    except ApiError as error:
        if error.status == 403 and namespace is None:
            return  # who may not look everywhere gives --namespace
        raise
    for job in listing.get("items") or ():
        metadata, status = job["metadata"], job.get("status") or {}
        own = metadata["namespace"] == f"allranks-{metadata['labels'][RUN_LABEL]}"
        ended = any(
            c.get("type") in ("Complete", "Failed") and c.get("status") == "True"
            for c in status.get("conditions") or ()
        )
        if ended and not own and not metadata.get("deletionTimestamp") and _older(metadata, now, older_than):
            yield str(metadata["namespace"]), str(metadata["name"])


def _runs(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _older(metadata: Object, now: datetime, than: float) -> bool:
    made = _time(metadata.get("creationTimestamp"))
    return made is not None and made < now - timedelta(seconds=than)


def _time(text: Any) -> datetime | None:
    """RFC 3339; None for what was not written by a machine."""
    try:
        when = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return when if when.tzinfo else None
