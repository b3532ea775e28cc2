"""The node lifecycle controller: taints for nodes that are not ready, and the end of pods that do not tolerate them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from allranks.standin import garbage
from allranks.standin.objects import (
    Object,
    clone,
    condition_of,
    is_finished,
    name_of,
    namespace_of,
    set_condition,
    timestamp,
)
from allranks.standin.recorder import Recorder
from allranks.standin.resources import NODES, PODS, Resource
from allranks.standin.scheduler import tolerates
from allranks.standin.store import Change, Store

DEFAULT_TOLERATION = 300.0
"""Seconds that admission lets every pod tolerate a node that is not ready or cannot be reached."""
NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
_TAINTS = {"False": NOT_READY, "Unknown": UNREACHABLE}


class NodeLifecycle:
    """Keeps a node's taints in step with its Ready condition, and evicts by NoExecute taints, whoever set them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recorder = Recorder(store, "taint-eviction-controller")
        self._wake = asyncio.Event()
        self._tainted: dict[tuple[str, str], float] = {}
        """(node, taint key) → when it was seen first, in monotonic time."""
        self._any_taints = False
        self.tolerance: dict[str, float] = {}
        """Node → the most seconds that pods may tolerate its taints: faults shorten what takes minutes."""
        store.listen(self._hear)

    def _hear(self, resource: Resource, change: Change) -> None:
        # Where no node is tainted, no pod has to go: a thousand of them tell news all the time.
        if resource is NODES or (resource is PODS and change.kind == "MODIFIED" and self._any_taints):
            self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            wait = self._sync()
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _sync(self) -> float | None:
        """One round; the seconds until the next eviction that is known now."""
        for node in self._store.list(NODES):
            self._taint(node)
        due: list[float] = []
        nodes = {name_of(node): node for node in self._store.list(NODES)}
        self._forget(nodes)
        for pod in self._store.list(PODS):
            host = nodes.get(pod["spec"].get("nodeName", ""))
            if host is None or is_finished(pod) or "deletionTimestamp" in pod["metadata"]:
                continue
            at = self._eviction(pod, host)
            if at is not None and at <= time.monotonic():
                self._evict(pod)
            elif at is not None:
                due.append(at)
        return max(min(due) - time.monotonic(), 0.0) if due else None

    def _taint(self, node: Object) -> None:
        ready = condition_of(node, "Ready") or {"status": "Unknown"}
        wanted = _TAINTS.get(ready["status"])
        held = node["spec"].get("taints") or []
        others = [taint for taint in held if taint["key"] not in _TAINTS.values()]
        mine = [taint for taint in held if taint["key"] == wanted]
        if wanted is not None and not mine:
            now = {"timeAdded": timestamp()}
            mine = [{"key": wanted, "effect": effect} | now for effect in ("NoSchedule", "NoExecute")]
        if others + mine == held:
            return

        def change(made: Object) -> None:
            made["spec"]["taints"] = clone(others + mine)
            if not made["spec"]["taints"]:
                del made["spec"]["taints"]

        self._store.mutate(NODES, "", name_of(node), change)
        if ready["status"] != "True" and wanted is not None:
            self._unready_pods(name_of(node))

    def _unready_pods(self, node: str) -> None:
        """Pods of a node without a word are not ready, whatever they say last."""
        for pod in self._store.list(PODS):
            ready = condition_of(pod, "Ready")
            if pod["spec"].get("nodeName") == node and not is_finished(pod) and ready and ready["status"] == "True":
                key = (namespace_of(pod), name_of(pod))
                self._store.mutate(PODS, *key, _unready)
                self._recorder.warning(pod, "NodeNotReady", "Node is not ready")

    def _forget(self, nodes: Mapping[str, Object]) -> None:
        present = {(name, taint["key"]) for name, node in nodes.items() for taint in node["spec"].get("taints") or ()}
        self._any_taints = bool(present)
        self._tainted = {key: at for key, at in self._tainted.items() if key in present}

    def _eviction(self, pod: Object, node: Object) -> float | None:
        """When the pod has to go, in monotonic time; None: it may stay."""
        times = []
        for taint in node["spec"].get("taints") or ():
            if taint["effect"] != "NoExecute":
                continue
            since = self._tainted.setdefault((name_of(node), taint["key"]), time.monotonic())
            patience = _patience(pod, taint)
            if patience is not None:
                times.append(since + min(patience, self.tolerance.get(name_of(node), patience)))
        return min(times, default=None)

    def _evict(self, pod: Object) -> None:
        why = "Taint manager: deleting due to NoExecute taint"
        key = (namespace_of(pod), name_of(pod))

        def disrupt(made: Object) -> None:
            set_condition(made, "DisruptionTarget", "True", "DeletionByTaintManager", why)

        marked = self._store.mutate(PODS, *key, disrupt)
        self._recorder.normal(pod, "TaintManagerEviction", f"Marking for deletion Pod {key[0]}/{key[1]}")
        if marked is not None:
            garbage.delete(self._store, PODS, marked, {})


def _unready(pod: Object) -> None:
    set_condition(pod, "Ready", "False")


def _patience(pod: Object, taint: Mapping[str, Any]) -> float | None:
    """Seconds that the pod tolerates a NoExecute taint; None: for ever."""
    matching = [each for each in pod["spec"].get("tolerations") or () if tolerates([each], taint)]
    if not matching:
        return DEFAULT_TOLERATION if taint["key"] in _TAINTS.values() else 0.0
    limits = [each["tolerationSeconds"] for each in matching if each.get("tolerationSeconds") is not None]
    return float(min(limits)) if limits else None
