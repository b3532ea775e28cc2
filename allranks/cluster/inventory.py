"""Which nodes there are to train on: pools of equal accelerator nodes, and the nodes left out, with the reason."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from allranks.cluster import ClusterError, NoSuchPool, paths
from allranks.cluster.client import Api, Object
from allranks.cluster.watch import Type, watch
from allranks.plan import DEVICE, EFA, INSTANCE_TYPE, Accelerator, Plan, PlanError
from allranks.settings import Settings, Workload

CORE = "aws.amazon.com/neuroncore"
HUGEPAGES = "hugepages-2Mi"

# A node with one of these has the hardware even while its device plugin says 0.
_PRESENT = {
    Accelerator.NVIDIA: {"nvidia.com/gpu.present": "true", "feature.node.kubernetes.io/pci-10de.present": "true"},
    Accelerator.NEURON: {"aws.amazon.com/neuron.present": "true"},
}
_PRODUCT = ("nvidia.com/gpu.product", "aws.amazon.com/neuron.product")
_DETAILS = (
    ("driver", ("nvidia.com/cuda.driver-version.full", "aws.amazon.com/neuron.driver-version")),
    ("cuda", ("nvidia.com/cuda.runtime-version.full",)),
    ("memory", ("nvidia.com/gpu.memory",)),
    ("mig", ("nvidia.com/mig.config",)),
    ("zone", ("topology.kubernetes.io/zone",)),
    ("node pool", ("karpenter.sh/nodepool", "eks.amazonaws.com/nodegroup", "cloud.google.com/gke-nodepool")),
)
_DRIVER_PARTS = ("nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev")
_NODE_INFO = (
    ("kernel", "kernelVersion"),
    ("os", "osImage"),
    ("runtime", "containerRuntimeVersion"),
    ("kubelet", "kubeletVersion"),
)
# Physical NeuronCores of a device, and how many of them make a logical one by default.
_NEURON_CORES = {"inf1": (4, 1), "inf2": (2, 1), "trn1": (2, 1), "trn1n": (2, 1), "trn2": (8, 2), "trn2u": (8, 2)}
_TOLERATED = {
    Accelerator.NVIDIA: {"nvidia.com/gpu"},
    Accelerator.NEURON: {"aws.amazon.com/neuron"},
    Accelerator.CPU: set[str](),
}
_CPU_PROCESSES = 2
_EFA_HUGEPAGES = 5 * 2**30  # what the EFA device plugin's documentation asks for
_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclass(frozen=True, slots=True)
class Node:
    """A usable node: Ready, not cordoned, no taint that the pods do not tolerate."""

    name: str
    instance_type: str = ""
    devices: int = 0
    """Allocatable; `expected` is what it should be: its capacity, or what its peers have."""
    capacity: int = 0
    cores: int = 0
    """Allocatable NeuronCores; 0 elsewhere."""
    efa: int = 0
    hugepages: int = 0
    """Bytes of allocatable 2 MiB pages."""
    product: str = ""
    details: tuple[tuple[str, str], ...] = ()
    """What its labels and its kubelet say of driver, runtime, kernel and place."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """An accelerator node that is left out, and why."""

    name: str
    reason: str
    passing: bool = False
    """It may come right by itself within minutes (NotReady)."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes of one instance type with one kind of accelerator."""

    accelerator: Accelerator
    instance_type: str
    nodes: tuple[Node, ...]

    @property
    def devices(self) -> int:
        """Devices that a node of this pool should have."""
        return max((max(node.devices, node.capacity) for node in self.nodes), default=0)

    @property
    def cores(self) -> int:
        return max((node.cores for node in self.nodes), default=0)

    @property
    def even(self) -> tuple[Node, ...]:
        """The nodes that have all their devices."""
        if self.accelerator is Accelerator.CPU:
            return self.nodes
        devices, cores = self.devices, self.cores
        return tuple(n for n in self.nodes if n.devices == devices and n.cores == cores and n.devices)

    def odd(self) -> list[str]:
        """One sentence for each node that has not."""
        even = {node.name for node in self.even}
        resource = DEVICE.get(self.accelerator, "")
        found = []
        for node in self.nodes:
            if node.name in even:
                continue
            if node.devices != self.devices or not node.devices:
                found.append(f"node {node.name}: {node.devices} of {self.devices or '?'} {resource} allocatable")
            else:
                found.append(f"node {node.name}: {node.cores} of {self.cores} {CORE} allocatable")
        return found

    def __str__(self) -> str:
        return f"{self.instance_type or 'no instance type'} ({len(self.nodes)})"


@dataclass(frozen=True, slots=True)
class Inventory:
    pools: tuple[Pool, ...]
    skipped: tuple[Skipped, ...] = ()


def read(nodes: Iterable[Object], accelerator: Accelerator, selector: Mapping[str, str] | None = None) -> Inventory:
    """Node objects → the pools of one accelerator. CPU pools are of nodes without accelerators."""
    selected = [node for node in nodes if (selector or {}).items() <= _labels(node).items()]
    with_devices = {_labels(node).get(INSTANCE_TYPE) for node in selected if has_device(node, accelerator)} - {None}
    pools: dict[str, list[Node]] = {}
    skipped = []
    for node in sorted(selected, key=lambda node: str(node["metadata"]["name"])):
        if accelerator is Accelerator.CPU:
            mine = not any(has_device(node, other) for other in DEVICE)
        else:
            mine = has_device(node, accelerator) or _labels(node).get(INSTANCE_TYPE) in with_devices
        if not mine:
            continue
        reason = _unusable(node, accelerator)
        if reason is not None:
            skipped.append(reason)
        else:
            usable = _node(node, accelerator)
            pools.setdefault(usable.instance_type, []).append(usable)
    return Inventory(
        tuple(Pool(accelerator, name, tuple(members)) for name, members in sorted(pools.items())), tuple(skipped)
    )


def choose_pool(inventory: Inventory, settings: Settings) -> Pool:
    """The one pool that is meant. Raises NoSuchPool when there is none, ClusterError when there are several."""
    pools = [pool for pool in inventory.pools if settings.instance_type in (None, pool.instance_type)]
    if not pools:
        left_out = "; ".join(f"{each.name}: {each.reason}" for each in inventory.skipped)
        others = ", ".join(str(pool) for pool in inventory.pools)
        what = f"{settings.accelerator} nodes" + (
            f" of type {settings.instance_type}" if settings.instance_type else ""
        )
        raise NoSuchPool(
            f"the cluster has no usable {what}"
            + (f" (left out: {left_out})" if left_out else "")
            + (f"; there are: {others}" if others else "")
        )
    if len(pools) > 1 and settings.accelerator is Accelerator.CPU:
        return Pool(Accelerator.CPU, "", tuple(node for pool in pools for node in pool.nodes))
    if len(pools) > 1:
        names = ", ".join(str(pool) for pool in pools)
        raise ClusterError(
            f"{settings.accelerator} nodes of {len(pools)} instance types: {names}; choose with --instance-type"
        )
    return pools[0]


def make_plan(pool: Pool, settings: Settings, workload: Workload, run_id: str) -> Plan:
    """The pool's even nodes → who runs where. Raises ClusterError when they do not suffice for what was asked."""
    even = pool.even
    wanted = settings.nodes or len(even)
    if wanted > len(even) or not even:
        odd = "; ".join(pool.odd())
        raise ClusterError(
            f"{wanted} {settings.accelerator} nodes asked for, {pool} has {len(even)} usable"
            + (f": {odd}" if odd else "")
        )
    threads = settings.threads_per_process
    ranks = pool.devices if pool.accelerator is Accelerator.NVIDIA else _cores(pool, settings)
    if pool.accelerator is Accelerator.CPU:
        ranks = _CPU_PROCESSES * threads
    elif pool.accelerator is Accelerator.NEURON and not ranks:
        if settings.processes_per_node is None:
            raise ClusterError(f"the nodes of {pool} do not say how many {CORE} they have: give --nproc-per-node")
        ranks = settings.processes_per_node * threads
    processes = settings.processes_per_node or max(1, ranks // threads)
    if processes * threads > ranks and pool.accelerator is not Accelerator.CPU:
        raise PlanError(
            f"{processes} processes of {threads} threads per node need {processes * threads} devices; "
            f"the nodes of {pool} have {ranks}"
        )
    return Plan(
        nodes=wanted,
        processes_per_node=processes,
        threads_per_process=threads,
        run_id=run_id,
        workload=workload.name,
        accelerator=pool.accelerator,
        node_names=tuple(sorted(node.name for node in even)),
        resources=_resources(pool, even, processes * threads, ranks, settings.efa),
        instance_type=pool.instance_type or None,
    )


def provisioned_plan(settings: Settings, workload: Workload, run_id: str) -> Plan:
    """The plan on nodes that a provisioner is yet to make. Raises PlanError for what only existing nodes would tell."""
    accelerator, kind = settings.accelerator, settings.instance_type
    if kind is None or settings.nodes is None or settings.processes_per_node is None:
        raise PlanError("--provision needs --instance-type, --nodes and --nproc-per-node: there is no node to ask")
    ranks = settings.processes_per_node * settings.threads_per_process
    resources: list[tuple[str, str]] = []
    if accelerator is Accelerator.NVIDIA:
        resources.append((DEVICE[accelerator], str(ranks)))
    elif accelerator is Accelerator.NEURON:
        per_device = _cores_per_device(kind, settings.neuron_logical_cores)
        if per_device is None:
            raise PlanError(f"how many NeuronCores a device of {kind} has is not known here: provision it beforehand")
        resources.append((DEVICE[accelerator], str(-(-ranks // per_device))))
    if settings.efa:
        resources += [(EFA, str(settings.efa)), (HUGEPAGES, f"{_EFA_HUGEPAGES // 2**20}Mi"), ("memory", "8Gi")]
    return Plan(
        nodes=settings.nodes,
        processes_per_node=settings.processes_per_node,
        threads_per_process=settings.threads_per_process,
        run_id=run_id,
        workload=workload.name,
        accelerator=accelerator,
        resources=tuple(resources),
        instance_type=kind,
    )


def _cores_per_device(instance_type: str, logical: int | None) -> int | None:
    """Logical NeuronCores of one device; None for a family that is not known."""
    physical, usual = _NEURON_CORES.get(instance_type.partition(".")[0], (0, 1))
    return physical // (logical or usual) or None


def _cores(pool: Pool, settings: Settings) -> int:
    """NeuronCores of a node as the processes will see them: the plugin counts what the node is set to."""
    if settings.neuron_logical_cores is None:
        return pool.cores
    per_device = _cores_per_device(pool.instance_type, settings.neuron_logical_cores)
    if per_device is not None:
        return per_device * pool.devices
    if settings.processes_per_node is None:
        raise PlanError(
            f"--neuron-logical-cores on {pool}: how many cores that makes is not known: give --nproc-per-node"
        )
    return settings.processes_per_node * settings.threads_per_process


async def settle(api: Api, settings: Settings) -> tuple[Inventory, Pool]:
    """Waits until the pool's nodes have all their devices, up to `settings.ready_timeout`; then names the odd ones.

    A device plugin that restarts shows 0 or 7 of 8 devices for a while; training on the rest would hide it.
    """
    nodes: dict[str, Object] = {}
    inventory = Inventory(())
    try:
        async with asyncio.timeout(settings.ready_timeout), aclosing(watch(api, paths.NODES)) as changes:
            synced = False
            async for change in changes:
                synced = synced or change.type is Type.SYNCED
                if change.type is Type.DELETED:
                    nodes.pop(change.object["metadata"]["uid"], None)
                elif change.object:
                    nodes[change.object["metadata"]["uid"]] = change.object
                if not synced:
                    continue
                inventory = read(nodes.values(), settings.accelerator, dict(settings.node_selector))
                if inventory.pools or not any(skipped.passing for skipped in inventory.skipped):
                    pool = choose_pool(inventory, settings)
                    if len(pool.even) >= (settings.nodes or len(pool.nodes)):
                        return inventory, pool
    except TimeoutError:
        pool = choose_pool(inventory, settings)
        odd = [f"{sentence} (device plugin restarting?)" for sentence in pool.odd()]
        odd += [f"node {skipped.name}: {skipped.reason}" for skipped in inventory.skipped]
        missing = f"{len(pool.even)} of {settings.nodes or len(pool.nodes)} nodes of {pool} usable"
        waited = f"waited {settings.ready_timeout:g} s (--ready-timeout)"
        raise ClusterError(f"{missing}: {'; '.join(odd) or 'there are no more'} — {waited}") from None
    raise AssertionError("a watch never ends by itself")


def _labels(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def amount(node: Object, field: str, resource: str) -> int:
    """How much of a resource the node has; `field` is `capacity` or `allocatable`."""
    return parse_quantity((node.get("status", {}).get(field) or {}).get(resource, "0"))


def parse_quantity(text: Any) -> int:
    """A whole Kubernetes quantity (`8`, `5Gi`) as a number; 0 for what is none."""
    match = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti|k|M|G|T|)", str(text))
    return int(match[1]) * _UNITS[match[2]] if match else 0


def has_device(node: Object, accelerator: Accelerator) -> bool:
    """Whether the node says that it has the hardware, even while its device plugin says 0."""
    if accelerator is Accelerator.CPU:
        return False
    resource = DEVICE[accelerator]
    labelled = any(_labels(node).get(label) == value for label, value in _PRESENT[accelerator].items())
    return labelled or bool(amount(node, "capacity", resource) or amount(node, "allocatable", resource))


def _unusable(node: Object, accelerator: Accelerator) -> Skipped | None:
    name = str(node["metadata"]["name"])
    ready = [c for c in node.get("status", {}).get("conditions") or () if c.get("type") == "Ready"]
    if not ready or ready[0].get("status") != "True":
        why = ready[0].get("reason") or ready[0].get("message") if ready else "no word from its kubelet"
        return Skipped(name, f"NotReady ({why})", passing=True)
    if node.get("spec", {}).get("unschedulable"):
        return Skipped(name, "cordoned")
    for taint in node.get("spec", {}).get("taints") or ():
        if taint.get("effect") != "PreferNoSchedule" and taint["key"] not in _TOLERATED[accelerator]:
            value = f"={taint['value']}" if taint.get("value") else ""
            return Skipped(name, f"tainted {taint['key']}{value}:{taint.get('effect')}, which the pods do not tolerate")
    return None


def _node(node: Object, accelerator: Accelerator) -> Node:
    resource = DEVICE.get(accelerator, "")
    labels = _labels(node)
    return Node(
        name=str(node["metadata"]["name"]),
        instance_type=labels.get(INSTANCE_TYPE, ""),
        devices=amount(node, "allocatable", resource),
        capacity=amount(node, "capacity", resource),
        cores=amount(node, "allocatable", CORE),
        efa=amount(node, "allocatable", EFA),
        hugepages=amount(node, "allocatable", HUGEPAGES),
        product=next((labels[label] for label in _PRODUCT if label in labels), ""),
        details=tuple(_details(node)),
    )


def _details(node: Object) -> Iterator[tuple[str, str]]:
    labels, info = _labels(node), node.get("status", {}).get("nodeInfo") or {}
    found = {what: next((labels[name] for name in names if name in labels), "") for what, names in _DETAILS}
    # GPU feature discovery before 0.17 gives the driver's version in parts only.
    found["driver"] = found["driver"] or ".".join(labels[name] for name in _DRIVER_PARTS if labels.get(name))
    found |= {what: str(info.get(name) or "") for what, name in _NODE_INFO}
    yield from ((what, value) for what, value in found.items() if value)


def _resources(
    pool: Pool, nodes: tuple[Node, ...], ranks: int, cores: int, efa: int | None
) -> tuple[tuple[str, str], ...]:
    """What one pod requests. Devices for its ranks; all of EFA when it takes the whole node."""
    if pool.accelerator is Accelerator.CPU:
        return ()
    per_device = max(1, cores // pool.devices) if pool.accelerator is Accelerator.NEURON else 1
    devices = min(pool.devices, -(-ranks // per_device))
    found = [(DEVICE[pool.accelerator], str(devices))]
    if efa is None:
        efa = min(node.efa for node in nodes) if devices == pool.devices else 0
    if efa:
        found.append((EFA, str(efa)))
        pages = min(_EFA_HUGEPAGES, *(node.hugepages for node in nodes))
        if pages:
            # Huge pages cannot be requested without memory beside them.
            found += [(HUGEPAGES, f"{pages // 2**20}Mi"), ("memory", "8Gi")]
    return tuple(found)
