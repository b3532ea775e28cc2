"""How the processes of a run find each other, and nobody else.

On one node they meet in the launcher's run directory: the root rank alone makes an id, publishes it in one atomic step,
and the id names the store file. So two runs on a machine never meet on a port, and a file that an earlier run left
behind is never taken for this run's. Across nodes they meet at the master's address (`MASTER_ADDR`, `MASTER_PORT`).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.topology import Topology

if TYPE_CHECKING:
    from torch.distributed import Store


class RendezvousError(RuntimeError):
    """The processes did not find each other; the message says who waited for whom, where, and how long."""


def join(topology: Topology, *, timeout: float) -> Store:
    """The store through which the processes of this run set up their groups. Times in seconds.

    Raises RendezvousError when they do not meet in time.
    """
    import torch.distributed as dist

    directory = os.environ.get("ALLRANKS_RUN_DIR")
    try:
        if topology.process_count == 1:
            return dist.HashStore()
        if topology.nodes == 1 and directory:
            name = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-{os.environ.get('MASTER_PORT', '0')}"
            identity = unique_id(Path(directory), name, root=topology.process_rank == 0, timeout=timeout)
            # No world size: the store would remove its file when that many objects are gone, and threads clone it.
            store = dist.FileStore(str(Path(directory) / f"store-{identity}"), -1)
        else:
            store, _, _ = next(
                dist.rendezvous(
                    "env://", topology.process_rank, topology.process_count, timeout=timedelta(seconds=timeout)
                )
            )
        store.set_timeout(timedelta(seconds=timeout))
        return store
    except (dist.DistError, ValueError) as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise RendezvousError(
            f"process {topology.process_rank} of {topology.process_count} found no rendezvous at {where} "
            f"within {timeout:g} s (is the process with rank 0 running there?): {error}"
        ) from error


def unique_id(directory: Path, name: str, *, root: bool, timeout: float) -> str:
    """The id that the root rank of this run publishes under `name` in `directory`; the root makes it, others wait.

    Accepted is only what a process that still runs has published: a file of an earlier run, even one with the same
    name, was written by a process that is gone. Raises RendezvousError at the deadline, or when another root runs.
    """
    path = directory / f"unique-id-{name}"
    return _publish(path) if root else _await(path, timeout)


def withdraw(topology: Topology) -> None:
    """Remove what this process published. Call it when all have met; the store's file goes with the run directory."""
    directory = os.environ.get("ALLRANKS_RUN_DIR")
    if directory and topology.process_rank == 0:
        for path in Path(directory).glob("unique-id-*"):
            if (_read(path) or {}).get("pid") == os.getpid():
                path.unlink(missing_ok=True)


def _publish(path: Path) -> str:
    identity = secrets.token_hex(16)
    draft = path.with_name(f".{path.name}.{identity}")
    content = json.dumps({"id": identity, "pid": os.getpid(), "started": _start_time(os.getpid())})
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        while True:
            try:
                os.link(draft, path)  # unlike a rename, this never replaces what another root has published
                return identity
            except FileExistsError:
                _remove_stale(path)
    finally:
        draft.unlink()


def _remove_stale(path: Path) -> None:
    published = _read(path)
    if published is not None and _runs(published):
        raise RendezvousError(
            f"process {published['pid']} has published {path} as the root rank of this run and still runs: "
            "two runs share a run directory, or two processes were told to be rank 0"
        )
    path.unlink(missing_ok=True)


def _await(path: Path, timeout: float) -> str:
    deadline = time.monotonic() + timeout
    pause = 0.005
    while True:
        published = _read(path)
        if published is not None and _runs(published):
            return str(published["id"])
        if time.monotonic() >= deadline:
            seen = f"only one by process {published['pid']}, which is gone" if published else "none was published"
            raise RendezvousError(
                f"no id from the root rank in {path} within {timeout:g} s: {seen}; look at rank 0's output for why"
            )
        time.sleep(pause)
        pause = min(pause * 2, 0.1)


def _read(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        published = json.loads(path.read_text())
        return {"id": str(published["id"]), "pid": int(published["pid"]), "started": str(published["started"])}
    return None


def _runs(published: dict[str, Any]) -> bool:
    """Whether the very process that published it still runs: ids are used again, start times tell them apart."""
    started: str = published["started"]
    return started != "" and started == _start_time(published["pid"])


def _start_time(pid: int) -> str:
    """When the process was started, in the system's own form; empty when there is no such process."""
    if Path("/proc/self/stat").exists():
        with contextlib.suppress(OSError):
            state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return "" if state in "ZX" else fields[18]
        return ""
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
