"""Who this process is among all: derived once, from the environment, and checked.

N nodes × P processes × T threads make W ranks. Rank r is thread r mod T of process r div T; processes are numbered node
by node. The launcher's variables are read first (`GLOBAL_PROC_RANK` …), torchrun's (`RANK` …) where those are absent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace


class TopologyError(ValueError):
    """An environment that does not describe a possible process; the message names the variables and what they say."""


@dataclass(frozen=True)
class Topology:
    """The position of one rank (one thread of one process). Counts are at least 1, ranks count from 0."""

    nodes: int = 1
    processes_per_node: int = 1
    threads_per_process: int = 1
    process_rank: int = 0
    """Of this process among all processes of all nodes."""
    visible_local_rank: int = 0
    """Of this process among those whose devices it can see: its local rank, or 0 when it is shown only its own."""
    thread: int = 0

    def __post_init__(self) -> None:
        for name in ("nodes", "processes_per_node", "threads_per_process"):
            if getattr(self, name) < 1:
                raise TopologyError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.process_rank < self.process_count:
            raise TopologyError(
                f"process rank {self.process_rank} is not one of the {self.process_count} processes "
                f"of {self.nodes} nodes × {self.processes_per_node} processes per node"
            )
        if not 0 <= self.thread < self.threads_per_process:
            raise TopologyError(f"thread {self.thread} is not one of the {self.threads_per_process} of its process")
        if self.visible_local_rank not in (0, self.local_process_rank):
            raise TopologyError(
                f"process rank {self.process_rank} with {self.processes_per_node} processes per node has local rank "
                f"{self.local_process_rank}, but the environment says {self.visible_local_rank}"
            )

    @property
    def process_count(self) -> int:
        return self.nodes * self.processes_per_node

    @property
    def world_size(self) -> int:
        return self.process_count * self.threads_per_process

    @property
    def is_parallel(self) -> bool:
        """Whether there is anybody to exchange gradients with: a matter of the whole world, not of one node."""
        return self.world_size > 1

    @property
    def rank(self) -> int:
        return self.process_rank * self.threads_per_process + self.thread

    @property
    def node_rank(self) -> int:
        return self.process_rank // self.processes_per_node

    @property
    def local_process_rank(self) -> int:
        return self.process_rank % self.processes_per_node

    @property
    def local_rank(self) -> int:
        """Of this rank among the ranks of its node."""
        return self.local_process_rank * self.threads_per_process + self.thread

    @property
    def device_index(self) -> int:
        """Which of the devices that the process can see is this rank's."""
        return self.visible_local_rank * self.threads_per_process + self.thread

    def of_thread(self, thread: int) -> Topology:
        return replace(self, thread=thread)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, *, threads_per_process: int = 1) -> Topology:
        """Raises TopologyError when variables are missing, contradict each other, or are out of bounds.

        Without any rank variable it is a direct run: one process alone.
        """
        rank = _read(environ, "GLOBAL_PROC_RANK", "RANK")
        world = _read(environ, "PROC_WORLD_SIZE", "WORLD_SIZE")
        if rank is None:
            _refuse_lone_sizes(environ)
            return cls(threads_per_process=threads_per_process)
        if world is None:
            raise TopologyError(f"the environment says rank {rank} but not of how many: set WORLD_SIZE")
        # torchrun's --virtual-local-rank shows every process its own device only, as number 0.
        local = 0 if environ.get("LOCAL_RANK") == "0" else _read(environ, "LOCAL_PROC_RANK", "LOCAL_RANK")
        per_node = _read(environ, "NPROC_PER_NODE", "LOCAL_WORLD_SIZE")
        if local is None and per_node is None:
            local, per_node = 0, 1  # operators that give a pod one process set only RANK and WORLD_SIZE
        if local is None or per_node is None:
            given, absent = (
                ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if per_node is None else ("LOCAL_WORLD_SIZE", "LOCAL_RANK")
            )
            raise TopologyError(f"rank {rank}: {given} is set but {absent} is not; launchers set both or neither")
        nodes = _read(environ, "NNODES", "GROUP_WORLD_SIZE")
        if nodes is None:
            nodes = world // max(per_node, 1)
        if nodes * per_node != world:
            raise TopologyError(
                f"rank {rank}: {nodes} nodes × {per_node} processes per node are not the {world} of WORLD_SIZE"
            )
        return cls(nodes, per_node, threads_per_process, rank, local)


def _refuse_lone_sizes(environ: Mapping[str, str]) -> None:
    """Sizes without a rank are how N processes come to train alone, each a world of its own, unnoticed."""
    for ours, torchruns in (("PROC_WORLD_SIZE", "WORLD_SIZE"), ("NNODES", "GROUP_WORLD_SIZE")):
        size = _read(environ, ours, torchruns)
        if size not in (None, 1):
            name = ours if ours in environ else torchruns
            raise TopologyError(
                f"{name}={size} but no RANK is set: start this program with a launcher, or unset {name}"
            )


def _read(environ: Mapping[str, str], ours: str, torchruns: str) -> int | None:
    values = {name: _whole(name, environ[name]) for name in (ours, torchruns) if environ.get(name, "") != ""}
    if len(set(values.values())) > 1:
        said = " but ".join(f"{name}={value}" for name, value in values.items())
        raise TopologyError(f"{said}: two launchers set them; start the program with one, or unset the outer one's")
    return next(iter(values.values()), None)


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise TopologyError(f"{name}={text!r} is not a whole number") from None
