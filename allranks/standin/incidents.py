"""What befalls nodes and running pods when a fault says so: the kinds that are no answers to requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from allranks.standin import garbage
from allranks.standin.faults import NODES as NODE_KINDS
from allranks.standin.faults import Fault, Faults
from allranks.standin.kubelet.kubelet import Kubelet
from allranks.standin.kubelet.pods import PodWorker
from allranks.standin.lifecycle import NodeLifecycle
from allranks.standin.nodes import DEVICES
from allranks.standin.objects import Object, condition_of, is_finished, name_of, set_condition
from allranks.standin.recorder import Recorder
from allranks.standin.resources import NODES, PODS, Resource
from allranks.standin.store import Change, Store

_LOW_MEMORY = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 40Mi. "
_SILENT = ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
_NOT_READY = ("False", "KubeletNotReady", "container runtime network not ready: NetworkReady=false")
_READY = ("True", "KubeletReady", "the stand-in is running")


class Incidents:
    """Acts when a fault about a node begins or ends, and when a pod runs that a fault is about."""

    def __init__(self, store: Store, kubelet: Kubelet, lifecycle: NodeLifecycle, faults: Faults) -> None:
        self._store, self._kubelet, self._lifecycle, self._faults = store, kubelet, lifecycle, faults
        self._scheduler = Recorder(store, "default-scheduler")
        self._waiting: dict[int, tuple[Fault, set[str]]] = {}
        """Fault id → the fault, and the pods (uids) that it has met or will meet."""
        self._on_pods: dict[str, Callable[[Fault, PodWorker], None]] = {
            "evict-pod": lambda fault, worker: worker.evict(fault.message or _LOW_MEMORY),
            "preempt-pod": self._preempt,
            "oom-kill": lambda fault, worker: worker.run_out_of_memory(137 if fault.code == 500 else fault.code),
            "restart-container": lambda fault, worker: worker.restart(),
        }
        faults.listen(self._begun, self._ended)
        store.listen(self._hear)

    # Pods.

    def _hear(self, resource: Resource, change: Change) -> None:
        if resource is PODS and change.kind != "DELETED":
            for fault, met in tuple(self._waiting.values()):
                self._consider(fault, met, change.new)

    def _consider(self, fault: Fault, met: set[str], pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if uid in met or not fault.matches(name_of(pod)) or pod.get("status", {}).get("phase") != "Running":
            return
        if fault.times is None or len(met) < fault.times:
            met.add(uid)
            asyncio.get_running_loop().call_later(fault.after, self._strike, fault, uid)

    def _strike(self, fault: Fault, uid: str) -> None:
        worker = self._kubelet.worker(uid)
        if worker is None or fault.id not in self._waiting or is_finished(worker.pod):
            return
        self._faults.used(fault)
        self._on_pods[fault.kind](fault, worker)

    def _preempt(self, fault: Fault, worker: PodWorker) -> None:
        why = "default-scheduler: preempting to accommodate a higher priority pod"

        def disrupt(made: Object) -> None:
            set_condition(made, "DisruptionTarget", "True", "PreemptionByScheduler", why)

        pod = self._store.mutate(PODS, *worker.key, disrupt)
        if pod is not None:
            self._scheduler.normal(pod, "Preempted", f"Preempted by pod of higher priority on node {worker.node}")
            garbage.delete(self._store, PODS, pod, {})

    # Faults that begin and end.

    def _begun(self, fault: Fault) -> None:
        if fault.kind in self._on_pods:
            met: set[str] = set()
            self._waiting[fault.id] = fault, met
            for pod in self._store.list(PODS):
                self._consider(fault, met, pod)
        elif fault.kind in NODE_KINDS:
            for name in self._names(fault):
                self._faults.used(fault)
                self._befall(fault, name)

    def _ended(self, fault: Fault) -> None:
        self._waiting.pop(fault.id, None)
        if fault.kind in NODE_KINDS:
            for name in self._names(fault):
                self._recover(fault, name)

    def _names(self, fault: Fault) -> list[str]:
        return [name_of(node) for node in self._store.list(NODES) if fault.matches(name_of(node))]

    def _befall(self, fault: Fault, node: str) -> None:
        if fault.tolerance is not None:
            self._lifecycle.tolerance[node] = fault.tolerance
        if fault.kind == "node-lost":
            self._kubelet.lose(node)
            asyncio.get_running_loop().call_later(fault.seconds, self._notice, fault, node)
        elif fault.kind == "node-not-ready":
            self._ready(node, _NOT_READY)
        elif fault.kind == "device-plugin":
            self._allocatable(node, fault.count)
        elif fault.kind == "clock-skew":
            self._kubelet.skew[node] = fault.seconds

    def _recover(self, fault: Fault, node: str) -> None:
        self._lifecycle.tolerance.pop(node, None)
        if fault.kind == "node-lost":
            self._kubelet.regain(node)
        if fault.kind in ("node-lost", "node-not-ready"):
            self._ready(node, _READY)
        elif fault.kind == "device-plugin":
            self._allocatable(node, None)
        elif fault.kind == "clock-skew":
            self._kubelet.skew.pop(node, None)

    def _notice(self, fault: Fault, node: str) -> None:
        if node in self._kubelet.lost:
            self._ready(node, _SILENT)

    def _ready(self, node: str, what: tuple[str, str, str]) -> None:
        def change(made: Object) -> None:
            held = condition_of(made, "Ready")
            if held is None or held["status"] != what[0]:
                set_condition(made, "Ready", *what)

        self._store.mutate(NODES, "", node, change)

    def _allocatable(self, node: str, count: int | None) -> None:
        """`count` devices of each kind that the node has; None: all of them."""

        def change(made: Object) -> None:
            capacity = made["status"]["capacity"]
            for resource in DEVICES:
                if resource in capacity:
                    made["status"]["allocatable"][resource] = capacity[resource] if count is None else str(count)

        self._store.mutate(NODES, "", node, change)
