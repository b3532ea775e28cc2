"""The scheduler: binds pods to nodes that have what they ask for, and says why it cannot."""

from __future__ import annotations

import asyncio
import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from allranks.standin import selectors
from allranks.standin.objects import (
    Object,
    condition_of,
    is_finished,
    labels_of,
    name_of,
    namespace_of,
    quantity,
    set_condition,
)
from allranks.standin.recorder import Recorder
from allranks.standin.resources import NODES, PODS, Resource
from allranks.standin.store import Change, Store

_BLOCKING = ("NoSchedule", "NoExecute")
_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def requests_of(pod: Object) -> dict[str, Decimal]:
    """What a pod needs in all: the sum over containers, or the largest init container where that is more."""
    total: dict[str, Decimal] = {"pods": Decimal(1)}
    for container in pod["spec"]["containers"]:
        for name, value in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = total.get(name, Decimal(0)) + quantity(value)
    for container in pod["spec"].get("initContainers") or ():
        for name, value in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = max(total.get(name, Decimal(0)), quantity(value))
    return total


def tolerates(tolerations: Iterable[Mapping[str, Any]], taint: Mapping[str, Any]) -> bool:
    for toleration in tolerations:
        if toleration.get("effect") and toleration["effect"] != taint["effect"]:
            continue
        if toleration.get("operator", "Equal") == "Exists":
            if not toleration.get("key") or toleration["key"] == taint["key"]:
                return True
        elif toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""):
            return True
    return False


def _taints(node: Object) -> list[Mapping[str, Any]]:
    taints = list(node["spec"].get("taints") or ())
    if node["spec"].get("unschedulable"):
        taints.append(_CORDON)
    ready = condition_of(node, "Ready")
    if ready is None or ready["status"] != "True":
        taints.append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
    return taints


def _affinity(pod: Object) -> Callable[[Object], bool]:
    """Whether a node meets the pod's node selector and required node affinity."""
    selector = pod["spec"].get("nodeSelector") or {}
    affinity = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not affinity:
        return lambda node: selector.items() <= labels_of(node).items()
    names: set[str] = set()
    others: list[tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]] = []
    for term in affinity["nodeSelectorTerms"]:
        expressions: Sequence[Mapping[str, Any]] = term.get("matchExpressions") or ()
        on_fields: Sequence[Mapping[str, Any]] = term.get("matchFields") or ()
        if not expressions and [(e["key"], e["operator"]) for e in on_fields] == [("metadata.name", "In")]:
            names.update(on_fields[0]["values"])  # a Job pinned to a thousand nodes has a thousand of these
        elif expressions or on_fields:
            others.append((expressions, on_fields))

    def affine(node: Object) -> bool:
        labels = labels_of(node)
        if not selector.items() <= labels.items():
            return False
        fields = {"metadata.name": name_of(node)}
        return fields["metadata.name"] in names or any(
            all(selectors.matches_expression(e, labels) for e in expressions)
            and all(selectors.matches_expression(e, fields) for e in on_fields)
            for expressions, on_fields in others
        )

    return affine


def _spread(pod: Object, node: Object, placed: _Placed, kind: str) -> bool:
    """Required pod affinity or anti-affinity."""
    held = ((pod["spec"].get("affinity") or {}).get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    for term in held or ():
        namespaces = term.get("namespaces") or [namespace_of(pod)]
        domain = labels_of(node).get(term["topologyKey"])
        near = any(
            namespace_of(other) in namespaces
            and selectors.matches_labels(term.get("labelSelector") or {}, labels_of(other))
            for other in placed.within(term["topologyKey"], domain)
        )
        if near == (kind == "podAntiAffinity"):
            return False
    return True


class _Placed:
    """Which pods are where, and what is free; kept up while one batch of pods is placed."""

    def __init__(self, store: Store) -> None:
        self.nodes = {name_of(node): node for node in store.list(NODES)}
        self._pods: list[tuple[Object, Object]] = []
        """Placed pods with their nodes."""
        self._within: dict[str, dict[str | None, list[Object]]] = {}
        """Topology key → its value at a node → the pods there: a look at all pods for each pod takes long."""
        self.free = {
            name: {key: quantity(value) for key, value in (node["status"].get("allocatable") or {}).items()}
            for name, node in self.nodes.items()
        }
        counts: Counter[str] = Counter()
        for pod in store.list(PODS):
            node = pod["spec"].get("nodeName")
            if node in self.nodes and not is_finished(pod):
                self._take(pod, node)
                counts[node] += 1
        self._order = sorted((counts[name], name) for name in self.nodes)

    def emptiest_first(self) -> Iterator[str]:
        return (name for _, name in self._order)

    def within(self, key: str, domain: str | None) -> Sequence[Object]:
        """The pods on the nodes that have this value of a topology key."""
        if key not in self._within:
            domains = self._within[key] = {}
            for pod, node in self._pods:
                domains.setdefault(labels_of(node).get(key), []).append(pod)
        return self._within[key].get(domain, ())

    def add(self, pod: Object, node: str) -> None:
        self._take(pod, node)
        at = next(at for at, (_, name) in enumerate(self._order) if name == node)
        count, _ = self._order.pop(at)
        bisect.insort(self._order, (count + 1, node))

    def _take(self, pod: Object, node: str) -> None:
        self._pods.append((pod, self.nodes[node]))
        for key, domains in self._within.items():
            domains.setdefault(labels_of(self.nodes[node]).get(key), []).append(pod)
        free = self.free[node]
        for name, value in requests_of(pod).items():
            free[name] = free.get(name, Decimal(0)) - value


class Scheduler:
    """Looks at waiting pods whenever pods or nodes change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recorder = Recorder(store, "default-scheduler")
        self._wake = asyncio.Event()
        self._refused = False
        """Whether pods wait for which there was no place."""
        store.listen(self._hear)

    def _hear(self, resource: Resource, change: Change) -> None:
        frees = change.kind == "DELETED" or is_finished(change.new)
        # That a thousand pods end one after the other concerns nobody but those that wait for their place.
        if resource is NODES or (resource is PODS and (change.kind == "ADDED" or (frees and self._refused))):
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting = [
                pod
                for pod in self._store.list(PODS)
                if not pod["spec"].get("nodeName")
                and "deletionTimestamp" not in pod["metadata"]
                and not is_finished(pod)
            ]
            self._refused = False
            if waiting:
                state = _Placed(self._store)
                for pod in sorted(waiting, key=lambda pod: int(pod["metadata"]["resourceVersion"])):
                    self._refused |= not self._place(pod, state)

    def _place(self, pod: Object, state: _Placed) -> bool:
        """On the emptiest node that fits, the first by name among equals. False when there is none."""
        reasons: Counter[str] = Counter()
        affine = _affinity(pod)
        for name in state.emptiest_first():
            refused = self._refusals(pod, affine, name, state)
            if not refused:
                state.add(pod, name)
                self._bind(pod, name)
                return True
            reasons.update(refused)
        self._refuse(pod, len(state.nodes), reasons)
        return False

    def _refusals(self, pod: Object, affine: Callable[[Object], bool], name: str, state: _Placed) -> list[str]:
        """Why a pod cannot go to a node: the first failing check, as a scheduler reports it."""
        node = state.nodes[name]
        for taint in _taints(node):
            if taint["effect"] in _BLOCKING and not tolerates(pod["spec"].get("tolerations") or (), taint):
                if taint is _CORDON:
                    return ["node(s) were unschedulable"]
                return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
        if not affine(node):
            return ["node(s) didn't match Pod's node affinity/selector"]
        free = state.free[name]
        short = [name for name, value in requests_of(pod).items() if value > free.get(name, Decimal(0)) and value > 0]
        if short:
            return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in short]
        if not _spread(pod, node, state, "podAntiAffinity"):
            return ["node(s) didn't match pod anti-affinity rules"]
        if not _spread(pod, node, state, "podAffinity"):
            return ["node(s) didn't match pod affinity rules"]
        return []

    def _bind(self, pod: Object, node: str) -> None:
        def bind(made: Object) -> None:
            made["spec"]["nodeName"] = node
            set_condition(made, "PodScheduled", "True")

        # The event first, so that a watcher of the pod finds it when it looks.
        message = f"Successfully assigned {namespace_of(pod)}/{name_of(pod)} to {node}"
        self._recorder.normal(pod, "Scheduled", message)
        self._store.mutate(PODS, namespace_of(pod), name_of(pod), bind)

    def _refuse(self, pod: Object, nodes: int, reasons: Counter[str]) -> None:
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        message = f"0/{nodes} nodes are available: {why}." if nodes else "no nodes available to schedule pods"
        if why:
            message += (
                f" preemption: 0/{nodes} nodes are available: {nodes} No preemption victims found for incoming pod."
            )

        def mark(made: Object) -> None:
            set_condition(made, "PodScheduled", "False", "Unschedulable", message)

        held = condition_of(pod, "PodScheduled")
        if held is None or held.get("message") != message:
            self._store.mutate(PODS, namespace_of(pod), name_of(pod), mark)
            self._recorder.warning(pod, "FailedScheduling", message)
