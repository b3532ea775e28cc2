"""Runs share a cluster by leases on nodes: a run deploys only when it holds every node that it will use.

Nodes are taken in the order of their names, and a run waits only for a node that comes after all it holds: no two runs
can wait for each other. A lease that its holder does not renew expires and is taken over.
"""

from __future__ import annotations

import asyncio
import getpass
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime, timezone
from typing import Any

from allranks.cluster import ClusterError, paths
from allranks.cluster.client import TRANSIENT, Api, ApiError, Object
from allranks.cluster.watch import Type, watch

DURATION = 30
"""Seconds without renewal after which a lease may be taken over."""
MARKED = {"allranks.dev/lease": "node"}
_SELECTED = {"labelSelector": "allranks.dev/lease=node"}
# Another machine's clock may be so far off; within that, only what we see ourselves counts.
_SKEW = 300.0
_RELEASE = 10.0


class NodeLeases:
    """One run's leases. `hold()` is the way in."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        run_id: str,
        waiting: Callable[[str], None],
        *,
        duration: int = DURATION,
    ) -> None:
        self._api, self._namespace = api, namespace
        self._holder = f"{run_id} ({_user()}@{socket.gethostname()})"
        self._waiting, self._duration = waiting, duration
        self._known: dict[str, Object] = {}
        self._seen: dict[str, tuple[str, float]] = {}
        """Node → version of its lease, and when (monotonic) we saw it first."""
        self._changed = asyncio.Event()
        self._mine: dict[str, Object] = {}
        self.lost: list[str] = []
        """Nodes whose lease somebody else took over while we held it."""

    @asynccontextmanager
    async def hold(self, names: Sequence[str], count: int, *, patience: float) -> AsyncIterator[tuple[str, ...]]:
        """`count` of the nodes, free ones first, held until the end of the block.

        Raises ClusterError after `patience` seconds of waiting: for which node, and who holds it.
        """
        await self._make_namespace()
        synced = asyncio.Event()
        watching = asyncio.create_task(self._watch(synced), name="watch leases")
        renewing: asyncio.Task[None] | None = None
        try:
            await _first(synced.wait(), watching)
            chosen = self._choose(names, count)
            renewing = asyncio.create_task(self._renew(), name="renew leases")
            await _first(self._acquire(chosen, patience), watching, renewing)
            yield chosen
        finally:
            for task in filter(None, (watching, renewing)):
                task.cancel()
            await asyncio.gather(*filter(None, (watching, renewing)), return_exceptions=True)
            await self._release()

    def _choose(self, names: Sequence[str], count: int) -> tuple[str, ...]:
        free = [name for name in sorted(names) if self._left(self._known.get(name)) <= 0]
        held = [name for name in sorted(names) if name not in free]
        return tuple(sorted((free + held)[:count]))

    async def _acquire(self, names: Sequence[str], patience: float) -> None:
        node = ""
        try:
            async with asyncio.timeout(patience):
                for node in names:
                    await self._take(node)
        except TimeoutError:
            who = _holder(self._known.get(node))
            raise ClusterError(f"node {node} is held by {who}: waited {patience:g} s (--lease-timeout)") from None

    async def _take(self, node: str) -> None:
        while True:
            self._changed.clear()
            lease = self._known.get(node)
            left = self._left(lease)
            if left <= 0:
                if await self._write(node, lease):
                    return
                await self._look(node)
                continue
            self._waiting(f"node {node} is held by {_holder(lease)}")
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()

    def _left(self, lease: Object | None) -> float:
        """Seconds for which the lease is still somebody else's."""
        spec = (lease or {}).get("spec") or {}
        if lease is None or not spec.get("holderIdentity") or spec["holderIdentity"] == self._holder:
            return 0.0
        duration = float(spec.get("leaseDurationSeconds") or self._duration)
        name, version = str(lease["metadata"]["name"]), str(lease["metadata"]["resourceVersion"])
        if self._seen.get(name, ("", 0.0))[0] != version:
            self._seen[name] = version, time.monotonic()
        left = self._seen[name][1] + duration - time.monotonic()
        renewed = _parse(spec.get("renewTime"))
        if renewed is not None and time.time() - renewed > duration + _SKEW:
            return 0.0
        return left

    async def _write(self, node: str, lease: Object | None) -> bool:
        """Takes the lease; False when somebody was faster."""
        now = _now()
        spec = {"holderIdentity": self._holder, "leaseDurationSeconds": self._duration, "renewTime": now}
        before = (lease or {}).get("spec") or {}
        spec |= {"acquireTime": now, "leaseTransitions": int(before.get("leaseTransitions") or 0) + (lease is not None)}
        metadata = {"name": node, "namespace": self._namespace, "labels": MARKED}
        body: Object = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        try:
            if lease is None:
                taken = await self._api.call("POST", self._path(), body=body)
            else:
                body["metadata"] = {**lease["metadata"], "labels": MARKED}
                taken = await self._api.call("PUT", self._path(node), body=body)
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        self._known[node] = self._mine[node] = taken
        return True

    async def _look(self, node: str) -> None:
        """After a conflict: what is there now. Our own name means that an answer was lost."""
        try:
            lease = await self._api.call("GET", self._path(node))
        except ApiError as error:
            if error.status != 404:
                raise
            self._known.pop(node, None)
        else:
            self._known[node] = lease

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._duration / 3)
            for node, lease in list(self._mine.items()):
                renewed = {**lease, "spec": {**lease["spec"], "renewTime": _now()}}
                try:
                    self._mine[node] = await self._api.call("PUT", self._path(node), body=renewed)
                except ApiError as error:
                    if error.status in (404, 409):
                        await self._renew_anew(node)
                except (ClusterError, *TRANSIENT):
                    pass  # the next turn comes before it expires

    async def _renew_anew(self, node: str) -> None:
        """Somebody wrote to our lease: it is still ours if it has our name."""
        with suppress(ClusterError, *TRANSIENT):
            await self._look(node)
            lease = self._known.get(node)
            if ((lease or {}).get("spec") or {}).get("holderIdentity") == self._holder:
                assert lease is not None
                self._mine[node] = lease
            else:
                del self._mine[node]
                self.lost.append(f"{node} (now held by {_holder(lease)})")

    async def _release(self) -> None:
        """Deletes what is still ours; what cannot be deleted expires."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_RELEASE):
                await asyncio.gather(*(self._give_back(node, lease) for node, lease in self._mine.items()))

    async def _give_back(self, node: str, lease: Object) -> None:
        with suppress(ClusterError, *TRANSIENT):
            if await self._delete(node, lease):
                return
            # A renewal that was on its way has changed it since, or somebody has taken it.
            await self._look(node)
            now = self._known.get(node)
            if now is not None and (now.get("spec") or {}).get("holderIdentity") == self._holder:
                await self._delete(node, now)

    async def _delete(self, node: str, lease: Object) -> bool:
        """False when it is not as it was."""
        metadata = lease["metadata"]
        as_it_was = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": as_it_was}
        try:
            await self._api.call("DELETE", self._path(node), body=body)
        except ApiError as error:
            if error.status == 409:
                return False
            raise
        return True

    async def _watch(self, synced: asyncio.Event) -> None:
        async with aclosing(watch(self._api, self._path(), _SELECTED)) as changes:
            async for change in changes:
                if change.type is Type.SYNCED:
                    synced.set()
                    continue
                name = str(change.object["metadata"]["name"])
                if change.type is Type.DELETED:
                    self._known.pop(name, None)
                else:
                    self._known[name] = change.object
                self._changed.set()

    async def _make_namespace(self) -> None:
        """Ours to make where we may; an administrator's otherwise. It stays: the next run needs it."""
        try:
            await self._api.call("GET", f"{paths.NAMESPACES}/{self._namespace}")
        except ApiError as error:
            if error.status == 403:
                return  # whether it is there shows when the leases are listed
            if error.status != 404:
                raise
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._namespace}}
            try:
                await self._api.call("POST", paths.NAMESPACES, body=namespace)
            except ApiError as refused:
                if refused.status == 409:
                    return
                raise ClusterError(
                    f"{refused}: it holds the nodes' leases; apply manifests/rbac.yaml, or name another with "
                    "--lease-namespace, or none"
                ) from refused

    def _path(self, node: str | None = None) -> str:
        return paths.namespaced("leases", self._namespace, node)


async def _first(work: Any, *others: asyncio.Task[None]) -> None:
    """Awaits the work, unless one of the others dies before."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task, *others], return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            if other.done():
                other.result()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user id without a name
        return "somebody"


def _holder(lease: Object | None) -> str:
    spec = (lease or {}).get("spec") or {}
    since = f" since {str(spec['acquireTime'])[:19]}Z" if spec.get("acquireTime") else ""
    return f"{spec.get('holderIdentity') or 'nobody'}{since}"


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _parse(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
