"""Creating a run's objects, and removing them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from allranks.cluster import ClusterError, paths
from allranks.cluster.client import MERGE_PATCH, Api, ApiError, Object
from allranks.cluster.watch import Type, watch
from allranks.names import MANAGED_BY, RUN_LABEL


async def create_namespace(api: Api, namespace: Object) -> None:
    """Raises ClusterError with what to do instead where that is not allowed."""
    try:
        await create(api, namespace)
    except ApiError as error:
        if error.status != 403:
            raise
        raise ClusterError(f"{error} (without the right to create namespaces, name one with --namespace)") from error


async def deploy(api: Api, objects: Sequence[Object], *, resume: bool = True) -> None:
    """Creates the suspended Job, and what the Job then owns; resumes the Job, unless a queue is to do it.

    In that order because the Job's time to live removes what it owns: whatever happens to us, all of it ends.
    """
    by_kind = {thing["kind"]: thing for thing in objects}
    job = await create(api, by_kind["Job"])
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "blockOwnerDeletion": False,
    }
    for kind, thing in by_kind.items():
        if kind not in ("Namespace", "Job"):
            await create(api, {**thing, "metadata": {**thing["metadata"], "ownerReferences": [owner]}})
    if resume:
        body = {"spec": {"suspend": False}}
        await api.call("PATCH", paths.of(by_kind["Job"])[1], body=body, content_type=MERGE_PATCH)


async def copy_secret(api: Api, source: str, namespace: str, run_id: str) -> None:
    """`NAMESPACE/NAME` → a secret of that name in the run's namespace; a plain name is there already.

    Its content goes from the API server to the API server, and nowhere else.
    """
    there, slash, name = source.partition("/")
    if not slash:
        return
    secret = await api.call("GET", paths.namespaced("secrets", there, name))
    labels = {**MANAGED_BY, RUN_LABEL: run_id}
    copy = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "type": secret.get("type", "Opaque"),
        "data": secret.get("data") or {},
    }
    await create(api, copy)


async def create(api: Api, thing: Object) -> Object:
    """Creates the object. One that exists with our run's label is ours: a lost answer was repeated."""
    collection, path = paths.of(thing)
    try:
        return await api.call("POST", collection, body=thing)
    except ApiError as error:
        if error.status != 409:
            raise
        present = await api.call("GET", path)
        wanted = thing["metadata"]["labels"][RUN_LABEL]
        if present["metadata"].get("labels", {}).get(RUN_LABEL) != wanted:
            raise
        return present


async def delete(api: Api, path: str, *, propagation: str = "Background", grace: int | None = None) -> bool:
    """False when there was nothing to delete."""
    body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
    if grace is not None:
        body["gracePeriodSeconds"] = grace
    try:
        await api.call("DELETE", path, body=body)
    except ApiError as error:
        if error.status in (404, 409):  # 409: a namespace that is already terminating
            return False
        raise
    return True


async def stop_pods(api: Api, namespace: str, job: str, pods: Sequence[str], *, grace: int) -> None:
    """Ends a run early: the Job first, so that its controller starts nothing more, then its pods at once.

    The pods would follow by garbage collection, but that takes its time, and they need to be told now.
    """
    await delete(api, paths.namespaced("jobs", namespace, job))
    await asyncio.gather(*(delete(api, paths.namespaced("pods", namespace, pod), grace=grace) for pod in pods))


async def end_job(api: Api, namespace: str, job: str) -> None:
    """Ends a run early and keeps its Job: the controller ends a Job that is past its deadline, pods first."""
    body = {"spec": {"activeDeadlineSeconds": 1}}
    try:
        await api.call("PATCH", paths.namespaced("jobs", namespace, job), body=body, content_type=MERGE_PATCH)
    except ApiError as error:
        if error.status != 404:
            raise


async def remove(api: Api, objects: Sequence[Object]) -> None:
    """Deletes a run's objects, whichever of them exist; the Job's pods go with it.

    One that cannot be deleted keeps none of the others; the first such error is raised at the end.
    """
    order = ("Job", "Service", "ConfigMap", "Namespace")
    errors = []
    for thing in sorted(objects, key=lambda thing: order.index(thing["kind"])):
        try:
            await delete(api, paths.of(thing)[1])
        except ClusterError as error:
            errors.append(error)
    if errors:
        raise errors[0]


async def end_pods(api: Api, namespace: str, run_id: str, *, grace: int) -> None:
    """Tells the run's pods to go at once, with less time than their specification gives them."""
    listing = await api.call("GET", paths.namespaced("pods", namespace), query=_of_run(run_id))
    names = [pod["metadata"]["name"] for pod in listing.get("items") or ()]
    await asyncio.gather(*(delete(api, paths.namespaced("pods", namespace, name), grace=grace) for name in names))


async def gone(api: Api, namespace: str, run_id: str, *, own_namespace: bool) -> None:
    """Returns when the run's namespace, or else each of its pods, is gone; bound it with a timeout."""
    if own_namespace:
        # It goes when everything in it has gone, pods that were being created meanwhile included.
        changes = watch(api, paths.NAMESPACES, {"fieldSelector": f"metadata.name={namespace}"})
    else:
        changes = watch(api, paths.namespaced("pods", namespace), _of_run(run_id))
    alive: set[str] = set()
    synced = False
    async with aclosing(changes):
        async for change in changes:
            if change.type is Type.SYNCED:
                synced = True
            elif change.type is Type.DELETED:
                alive.discard(change.object["metadata"]["uid"])
            else:
                alive.add(change.object["metadata"]["uid"])
            if synced and not alive:
                return


def _of_run(run_id: str) -> dict[str, str]:
    return {"labelSelector": f"{RUN_LABEL}={run_id}"}
