"""What a process is told (contract 1): torchrun's variables, the seed's, and ours."""

from __future__ import annotations

import os
import socket

from workloads.launch.options import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from workloads.launch.args import Launch


class Placement:
    """This node's part of the run, with everything decided: counts as numbers, id and port made."""

    __slots__ = ("attempt", "launch", "master_port", "processes", "run_dir", "run_id")

    def __init__(self, launch: Launch, processes: int, run_id: str) -> None:
        self.launch = launch
        self.processes = processes
        self.run_id = run_id
        self.attempt = 0
        self.master_port = launch.master_port or 0
        self.run_dir = ""

    @property
    def first_rank(self) -> int:
        """The global rank of local rank 0."""
        return self.launch.node_rank * self.processes

    @property
    def world_size(self) -> int:
        """Processes of all nodes."""
        return self.launch.nodes * self.processes

    def command(self, local_rank: int) -> list[str]:
        return [word.replace("${local_rank}", str(local_rank)) for word in self.launch.command]


def rank_environment(placement: Placement, local_rank: int, base: Mapping[str, str]) -> dict[str, str]:
    """The complete environment of one process. Raises UsageError when a virtual local rank has no GPU to stand for."""
    launch = placement.launch
    rank, world = str(placement.first_rank + local_rank), str(placement.world_size)
    processes, nodes = str(placement.processes), str(launch.nodes)
    told_local_rank = "0" if launch.virtual_local_rank else str(local_rank)
    environment = {
        **base,
        "RANK": rank,
        "LOCAL_RANK": told_local_rank,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": processes,
        "GROUP_RANK": str(launch.node_rank),
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_NAME": launch.role,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": launch.master_addr,
        "MASTER_PORT": str(placement.master_port),
        "TORCHELASTIC_RUN_ID": placement.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(placement.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(launch.max_restarts),
        # True would make every rank a client of a store that an agent keeps, and here is no agent.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "NNODES": nodes,
        "NPROC_PER_NODE": processes,
        "GLOBAL_PROC_RANK": rank,
        "LOCAL_PROC_RANK": told_local_rank,
        "PROC_WORLD_SIZE": world,
        "ALLRANKS_RUN_DIR": placement.run_dir,
    }
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if launch.virtual_local_rank:
        environment["CUDA_VISIBLE_DEVICES"] = _own_gpu(local_rank, base.get("CUDA_VISIBLE_DEVICES"))
    return environment


def _own_gpu(local_rank: int, visible: str | None) -> str:
    if visible is None:
        return str(local_rank)
    devices = visible.split(",")
    if local_rank >= len(devices):
        raise UsageError(f"--virtual-local-rank: local rank {local_rank} has no GPU in CUDA_VISIBLE_DEVICES={visible}")
    return devices[local_rank].strip()


def free_port(host: str) -> int:
    """A port on which nothing listens, below the range from which the system picks ports for outgoing connections:
    one of those could be taken between now and rank 0's listening. Raises OSError when none is found."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(200):
        port = 20000 + int.from_bytes(os.urandom(2), "big") % 12000
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                # All interfaces, because that is where the ranks' store listens.
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError("no free port between 20000 and 31999 on this machine for MASTER_PORT")
