"""Which CPUs a rank should run on: those near its GPU (--numa-binding), from what the kernel says about the machine.

Local rank i uses the i-th GPU in CUDA's order of visible devices. Within a machine of equal GPUs that is the order of
their PCI addresses.
"""

from __future__ import annotations

import os

from workloads.launch import devices
from workloads.launch.options import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def bindings(
    mode: str, processes: int, environ: Mapping[str, str], root: str = "/", allowed: frozenset[int] | None = None
) -> list[list[int]]:
    """CPU numbers per local rank. Raises UsageError when the machine does not tell."""
    machine = Machine(root, allowed)
    gpus = machine.gpus(environ.get("CUDA_VISIBLE_DEVICES"))
    if len(gpus) < processes:
        raise UsageError(f"--numa-binding {mode}: {processes} processes, but {len(gpus)} visible NVIDIA GPUs")
    nodes = [machine.node_of(gpu) for gpu in gpus]
    choose: Callable[[int], list[int]] = {
        "node": lambda index: machine.node_cpus(nodes[index]),
        "socket": lambda index: machine.socket_cpus(nodes[index]),
        "exclusive": lambda index: _exclusive(machine, nodes, index),
        "core-complex": lambda index: _core_complex(machine, nodes, index),
    }[mode]
    chosen = [choose(local_rank) for local_rank in range(processes)]
    for local_rank, cpus in enumerate(chosen):
        if not cpus:
            raise UsageError(
                f"--numa-binding {mode}: none of the CPUs of NUMA node {nodes[local_rank]} is allowed to this process"
            )
    return chosen


class Machine:
    """The parts of /sys and /proc that say what is near what."""

    def __init__(self, root: str, allowed: frozenset[int] | None) -> None:
        self._root = root
        if allowed is None:
            if not hasattr(os, "sched_getaffinity"):
                raise UsageError("--numa-binding is not supported on this system: it needs Linux")
            allowed = frozenset(os.sched_getaffinity(0))
        self._allowed = allowed

    def gpus(self, visible: str | None) -> list[str]:
        """PCI addresses in CUDA's order."""
        present = set(devices.nvidia_minors(self._root))
        folder = os.path.join(self._root, "proc/driver/nvidia/gpus")
        found: list[tuple[str, str]] = []
        for address in sorted(os.listdir(folder) if os.path.isdir(folder) else ()):
            lines = self._read(folder, address, "information").splitlines()
            facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
            if int(facts.get("Device Minor", "-1")) in present:
                found.append((address, facts.get("GPU UUID", "")))
        if visible is None:
            return [address for address, _ in found]
        chosen = []
        for entry in devices.visible_devices(visible, len(found)):
            matching = [address for address, uuid in found if not entry.isdigit() and uuid.startswith(entry)]
            chosen += [found[int(entry)][0]] if entry.isdigit() else matching[:1]
        return chosen

    def node_of(self, address: str) -> int:
        # A machine with one NUMA node says -1.
        return max(0, int(self._read("sys/bus/pci/devices", address.lower(), "numa_node")))

    def node_cpus(self, node: int) -> list[int]:
        return sorted(self._allowed & cpu_set(self._read("sys/devices/system/node", f"node{node}", "cpulist")))

    def socket_cpus(self, node: int) -> list[int]:
        wanted = {self._socket(cpu) for cpu in self.node_cpus(node)}
        return sorted(cpu for cpu in self._allowed if self._socket(cpu) in wanted)

    def core(self, cpu: int) -> int:
        """The lowest CPU number of its physical core."""
        return min(cpu_set(self._cpu(cpu, "topology/thread_siblings_list")))

    def cache(self, cpu: int) -> int:
        """The lowest CPU number of those that share its largest cache."""
        folder = os.path.join(self._root, f"sys/devices/system/cpu/cpu{cpu}/cache")
        best, sharing = -1, cpu
        for name in os.listdir(folder):
            if not name.startswith("index") or self._read(folder, name, "type") not in ("Unified", "Data"):
                continue
            level = int(self._read(folder, name, "level"))
            if level > best:
                best, sharing = level, min(cpu_set(self._read(folder, name, "shared_cpu_list")))
        return sharing

    def _socket(self, cpu: int) -> str:
        return self._cpu(cpu, "topology/physical_package_id")

    def _cpu(self, cpu: int, name: str) -> str:
        return self._read(f"sys/devices/system/cpu/cpu{cpu}", name)

    def _read(self, *parts: str) -> str:
        path = os.path.join(self._root, *parts)
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                return file.read().strip()
        except OSError as error:
            raise UsageError(
                f"--numa-binding: {path}: {error.strerror}; this machine does not say what is near"
            ) from None


def _exclusive(machine: Machine, nodes: list[int], index: int) -> list[int]:
    """The physical cores of the NUMA node divided among its GPUs; the first ones get what is left over."""
    sharing = [other for other, node in enumerate(nodes) if node == nodes[index]]
    cores = _grouped(machine.node_cpus(nodes[index]), machine.core)
    each, over = divmod(len(cores), len(sharing))
    if not each:
        raise UsageError(
            f"--numa-binding exclusive: NUMA node {nodes[index]} has {len(cores)} cores for {len(sharing)} GPUs"
        )
    place = sharing.index(index)
    begin = place * each + min(place, over)
    chosen = list(cores.values())[begin : begin + each + (place < over)]
    return sorted(cpu for core in chosen for cpu in core)


def _core_complex(machine: Machine, nodes: list[int], index: int) -> list[int]:
    """One group of cores that share a cache, a different one for each GPU of the node where there are enough."""
    sharing = [other for other, node in enumerate(nodes) if node == nodes[index]]
    by_cache = _grouped(machine.node_cpus(nodes[index]), machine.cache)
    groups = sorted(by_cache.values(), key=lambda cpus: (-len(cpus), cpus))
    return sorted(groups[sharing.index(index) % len(groups)]) if groups else []


def _grouped(cpus: list[int], key: Callable[[int], int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for cpu in cpus:
        groups.setdefault(key(cpu), []).append(cpu)
    return dict(sorted(groups.items()))


def cpu_set(text: str) -> set[int]:
    """The kernel's list format: 0-3,8."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus
