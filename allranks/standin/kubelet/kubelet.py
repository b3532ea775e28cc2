"""The kubelet of all nodes: hears of pods bound to them, gives each a worker, answers for their logs."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from allranks.standin import errors, garbage
from allranks.standin.faults import Faults
from allranks.standin.kubelet import generator, logs
from allranks.standin.kubelet.logs import ContainerLog, LogOptions
from allranks.standin.kubelet.names import Addresses
from allranks.standin.kubelet.pods import PodWorker
from allranks.standin.kubelet.process import Guardian, Reaper
from allranks.standin.kubelet.status import ENDED, WAITING
from allranks.standin.nodes import DeviceBindings
from allranks.standin.objects import Object, is_finished, name_of, namespace_of
from allranks.standin.recorder import Recorder
from allranks.standin.resources import NODES, PODS, Resource
from allranks.standin.store import Change, Store

_BAD_REGISTRY = re.compile(r"(?:[\w.-]+\.)?invalid(?::\d+)?/")


class Kubelet:
    """Runs the pods of every node as processes of this machine."""

    node_address = "127.0.0.1"

    def __init__(
        self,
        store: Store,
        faults: Faults,
        guardian: Guardian,
        *,
        instance: str,
        root: Path,
        log_max_size: int,
        log_max_files: int,
    ) -> None:
        self.store = store
        self.instance = instance
        self.root = root
        self.log_max_size = log_max_size
        self.log_max_files = log_max_files
        self.addresses = Addresses(instance)
        self.reaper = Reaper()
        self.faults = faults
        self.lost: set[str] = set()
        """Nodes without a word from their kubelet: what runs there stands still, and nothing is reported."""
        self.skew: dict[str, float] = {}
        """Node → how many seconds its clock is off."""
        self._found = asyncio.Event()
        self._guardian = guardian
        self._devices = DeviceBindings()
        self._workers: dict[str, PodWorker] = {}
        self._recorders: dict[str, Recorder] = {}
        self._cleaning: set[asyncio.Task[None]] = set()
        """Held here: the event loop alone would let them be collected before they have run."""

    def start(self) -> None:
        self.reaper.start()
        self.store.listen(self._hear)

    def _hear(self, resource: Resource, change: Change) -> None:
        if resource is not PODS:
            return
        pod = change.new
        worker = self._workers.get(pod["metadata"]["uid"])
        if change.kind == "DELETED":
            if worker is not None:
                self._forget(worker)
        elif worker is not None:
            if worker.node not in self.lost:
                worker.changed(pod)
        elif pod["spec"].get("nodeName") and not is_finished(pod) and self._knows(pod["spec"]["nodeName"]):
            self._workers[pod["metadata"]["uid"]] = PodWorker(self, pod)

    def _knows(self, node: str) -> bool:
        return self.store.find(NODES, "", node) is not None

    def _forget(self, worker: PodWorker) -> None:
        del self._workers[worker.uid]
        worker.gone()
        self._devices.release(worker.uid)
        cleaning = asyncio.create_task(self._clean(worker))
        self._cleaning.add(cleaning)
        cleaning.add_done_callback(self._cleaning.discard)

    async def _clean(self, worker: PodWorker) -> None:
        await worker.ended()
        await asyncio.to_thread(worker.clean)

    def finished(self, worker: PodWorker) -> None:
        """A pod's last container has ended and its status says so."""
        self._devices.release(worker.uid)
        pod = self.store.find(PODS, *worker.key)
        if pod is None or pod["metadata"]["uid"] != worker.uid or "deletionTimestamp" not in pod["metadata"]:
            return

        def now(made: Object) -> None:
            made["metadata"]["deletionGracePeriodSeconds"] = 0

        updated = self.store.mutate(PODS, *worker.key, now)
        if updated is not None:
            garbage.finish(self.store, PODS, updated)

    # What befalls a node.

    def worker(self, uid: str) -> PodWorker | None:
        """The one that carries the pod; None when it is gone."""
        return self._workers.get(uid)

    def lose(self, node: str) -> None:
        self.lost.add(node)
        for worker in self._workers.values():
            if worker.node == node:
                worker.freeze()

    def regain(self, node: str) -> None:
        """As when a partition heals: the pods go on, and what was asked of them meanwhile is heard."""
        self.lost.discard(node)
        found, self._found = self._found, asyncio.Event()
        found.set()
        for worker in tuple(self._workers.values()):
            if worker.node == node:
                worker.thaw()
                pod = self.store.find(PODS, *worker.key)
                if pod is not None and pod["metadata"]["uid"] == worker.uid:
                    worker.changed(pod)

    async def heard(self, node: str) -> None:
        """Returns when the node's kubelet can be heard."""
        while node in self.lost:
            await self._found.wait()

    def clock(self, node: str) -> float:
        """Unix seconds by the node's clock."""
        return time.time() + self.skew.get(node, 0.0)

    def recorder(self, node: str) -> Recorder:
        return self._recorders.setdefault(node, Recorder(self.store, "kubelet", node))

    def devices_env(self, pod: Object, container: Mapping[str, Any]) -> dict[str, str]:
        """Variables that bind a container to its devices, or say that a stand-in device takes their place."""
        node = self.store.find(NODES, "", pod["spec"]["nodeName"])
        return self._devices.environment(node, pod["metadata"]["uid"], container) if node else {}

    def refuses_image(self, image: str) -> str | None:
        """The registry's answer for an image that cannot be had: registries named `invalid`, and `bad-image` faults."""
        fault = self.faults.hit(("bad-image",), "PULL", image)
        if fault is None and not _BAD_REGISTRY.match(image):
            return None
        why = (fault.message if fault else "") or f"{image}: not found"
        return f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": {why}'

    def note_group(self, group: int, *, running: bool) -> None:
        if group != generator.NO_PROCESS:
            self._guardian.note(group, running=running)

    def read_log(self, pod: Object, query: Mapping[str, str]) -> AsyncGenerator[bytes]:
        """The answer of a pod's log endpoint. Raises StatusError 400 or 404 in the words of a real one."""
        node = pod["spec"].get("nodeName", "")
        if node in self.lost:
            where = f"https://{self.node_address}:10250/containerLogs/{namespace_of(pod)}/{name_of(pod)}"
            message = f'Get "{where}": dial tcp {self.node_address}:10250: i/o timeout'
            raise errors.StatusError(500, "InternalError", message)
        container = query.get("container") or self._only_container(pod)
        log = self._find_log(pod, container, previous=query.get("previous") in ("true", "1"))
        path = f"/api/v1/namespaces/{namespace_of(pod)}/pods/{name_of(pod)}/log"
        stop = query.get("follow") in ("true", "1") and self.faults.hit(("stop-at-rotation",), "GET", path) is not None
        return logs.read(log, parse_options(query, stop_at_rotation=stop))

    def _only_container(self, pod: Object) -> str:
        named = [c["name"] for c in pod["spec"]["containers"]]
        if len(named) == 1:
            return str(named[0])
        init = [c["name"] for c in pod["spec"].get("initContainers") or ()]
        message = f"a container name must be specified for pod {name_of(pod)}, choose one of: [{' '.join(named)}]"
        if init:
            message += f" or one of the init containers: [{' '.join(init)}]"
        raise errors.bad_request(message)

    def _find_log(self, pod: Object, container: str, *, previous: bool) -> ContainerLog:
        everyone = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
        if container not in [c["name"] for c in everyone]:
            raise errors.bad_request(f"container {container} is not valid for pod {name_of(pod)}")
        worker = self._workers.get(pod["metadata"]["uid"])
        if worker is None:
            if not pod["spec"].get("nodeName"):
                raise errors.bad_request(f"pod {name_of(pod)} does not have a host assigned")
            raise errors.bad_request(f'container "{container}" in pod "{name_of(pod)}" is not available')
        held = worker.logs.get(container, [])
        if previous:
            if len(held) < 2:
                what = f'previous terminated container "{container}" in pod "{name_of(pod)}" not found'
                raise errors.bad_request(what)
            return held[-2]
        state = worker.state_of(container)
        if held and not (state and WAITING in state.state and ENDED not in state.last):
            return held[-1]
        waiting = (state.state.get(WAITING) if state else None) or {"reason": "ContainerCreating"}
        why = {
            "ErrImagePull": "trying and failing to pull image",
            "ImagePullBackOff": "trying and failing to pull image",
        }.get(waiting["reason"], waiting["reason"])
        what = "is waiting to start" if state and WAITING in state.state else "is terminated"
        raise errors.bad_request(f'container "{container}" in pod "{name_of(pod)}" {what}: {why}')

    async def stop(self) -> None:
        """Kills every process of every pod."""
        for worker in self._workers.values():
            worker.kill()
        await asyncio.gather(*(worker.ended() for worker in self._workers.values()))


def parse_options(query: Mapping[str, str], *, stop_at_rotation: bool = False) -> LogOptions:
    """The log endpoint's query. Raises StatusError 400."""
    from allranks.standin.objects import unix

    def number(name: str) -> int | None:
        text = query.get(name)
        if text is None:
            return None
        if not text.isdigit():
            raise errors.bad_request(f'Invalid value for {name}: "{text}" must be a whole number of at least 0')
        return int(text)

    since: float | None = None
    try:
        if query.get("sinceTime"):
            since = unix(query["sinceTime"])
    except ValueError as error:
        raise errors.bad_request(f"invalid sinceTime: {error}") from error
    seconds = number("sinceSeconds")
    if seconds is not None:
        if since is not None:
            raise errors.bad_request("at most one of `sinceTime` or `sinceSeconds` may be specified")
        since = time.time() - seconds
    return LogOptions(
        follow=query.get("follow") in ("true", "1"),
        timestamps=query.get("timestamps") in ("true", "1"),
        since=since,
        tail_lines=number("tailLines"),
        limit_bytes=number("limitBytes"),
        stop_at_rotation=stop_at_rotation,
    )
