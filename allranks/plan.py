"""The plan of a run: which nodes, how many processes, and therefore which ranks must answer.

Everything later is held against this value: the manifests are rendered from it, the ledger is compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self


class PlanError(ValueError):
    """A plan that cannot be carried out; the message says which number is wrong and what would be right."""


class Accelerator(StrEnum):
    """What the ranks compute on. `CPU` is for clusters without accelerators (kind, a laptop)."""

    NVIDIA = "nvidia"
    NEURON = "neuron"
    CPU = "cpu"


DEVICE = {Accelerator.NVIDIA: "nvidia.com/gpu", Accelerator.NEURON: "aws.amazon.com/neuron"}
"""The extended resource by which pods request its devices."""
EFA = "vpc.amazonaws.com/efa"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
"""The label of a node that says what machine it is."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a global rank lives: pod (= node, group rank) index, local process rank and thread, all from 0."""

    pod_index: int
    local_rank: int
    thread: int


@dataclass(frozen=True, slots=True)
class Plan:
    """nodes × processes × threads = world size; who runs where.

    With P processes per node and T threads per process, global rank r is thread r mod T of the process with local
    rank (r div T) mod P in pod r div (P·T): torchrun's order, extended by threads.
    """

    nodes: int
    processes_per_node: int
    threads_per_process: int = 1
    run_id: str | None = None
    """The run's id, which every record carries; None when other people's logs are judged."""
    workload: str | None = None
    accelerator: Accelerator | None = None
    node_names: tuple[str, ...] = ()
    """The nodes the pods may run on, sorted; empty when they are not known (judged logs, nodes still to come)."""
    resources: tuple[tuple[str, str], ...] = ()
    """What each pod requests, e.g. (("nvidia.com/gpu", "8"),): resource name and Kubernetes quantity."""
    instance_type: str | None = None

    def __post_init__(self) -> None:
        for name in ("nodes", "processes_per_node", "threads_per_process"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise PlanError(f"{name} must be a whole number of at least 1, not {value!r}")
        if self.node_names and len(self.node_names) < self.nodes:
            raise PlanError(
                f"{self.nodes} nodes planned, only {len(self.node_names)} named: {', '.join(self.node_names)}"
            )

    @classmethod
    def of_world(cls, world_size: int) -> Self:
        """The plan behind logs from elsewhere: only the number of ranks is known, so each rank is its own process."""
        return cls(nodes=1, processes_per_node=world_size)

    @property
    def ranks_per_node(self) -> int:
        return self.processes_per_node * self.threads_per_process

    @property
    def process_count(self) -> int:
        return self.nodes * self.processes_per_node

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def ranks(self) -> range:
        return range(self.world_size)

    def position(self, rank: int) -> Position:
        """Raises PlanError for a rank outside {0 … W−1}."""
        if rank not in self.ranks:
            raise PlanError(f"rank {rank} is not one of the {self.world_size} planned ranks 0 … {self.world_size - 1}")
        pod, within = divmod(rank, self.ranks_per_node)
        process, thread = divmod(within, self.threads_per_process)
        return Position(pod, process, thread)

    def ranks_of_pod(self, pod_index: int) -> range:
        return range(pod_index * self.ranks_per_node, (pod_index + 1) * self.ranks_per_node)

    def ranks_of_process(self, pod_index: int, local_rank: int) -> range:
        first = (pod_index * self.processes_per_node + local_rank) * self.threads_per_process
        return range(first, first + self.threads_per_process)

    def to_dict(self) -> dict[str, Any]:
        return {
            "nodes": self.nodes,
            "processes_per_node": self.processes_per_node,
            "threads_per_process": self.threads_per_process,
            "world_size": self.world_size,
            "run_id": self.run_id,
            "workload": self.workload,
            "accelerator": self.accelerator.value if self.accelerator else None,
            "node_names": list(self.node_names),
            "resources": dict(self.resources),
            "instance_type": self.instance_type,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            nodes=data["nodes"],
            processes_per_node=data["processes_per_node"],
            threads_per_process=data["threads_per_process"],
            run_id=data["run_id"],
            workload=data["workload"],
            accelerator=Accelerator(data["accelerator"]) if data["accelerator"] else None,
            node_names=tuple(data["node_names"]),
            resources=tuple(data["resources"].items()),
            instance_type=data["instance_type"],
        )


def format_ranks(ranks: Iterable[int]) -> str:
    """Sorted ranks in ranges, as people read them: `3, 17-24`."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
