"""From a started process to a rank that trains, and back: device, group, records, errors, exit code."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator
from ctypes import c_char
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn

from workloads import rendezvous
from workloads.device import Device, open_device
from workloads.groups import Alone, Group, count_ranks, gradients_of, join_group
from workloads.records import Outlet, RankLog
from workloads.topology import Topology, TopologyError

EXIT_FAILED = 1
EXIT_USAGE = 2


class UsageError(ValueError):
    """Options that do not fit this run, found out only once its world is known: exit code 2."""


@dataclass(frozen=True)
class Rank:
    """One rank, ready to train."""

    topology: Topology
    device: Device
    group: Group
    log: RankLog

    def gradients(self, model: nn.Module) -> Alone:
        return gradients_of(model, self.topology, self.device, self.group)

    def start_record(self, **fields: Any) -> None:
        """The first record: where this rank runs and on what; `fields` say what it will do."""
        host = platform.node()
        self.log.record(
            "start",
            pod=os.environ.get("POD_NAME", host),
            node=os.environ.get("NODE_NAME", host),
            local_rank=self.topology.local_rank,
            pid=os.getpid(),
            device=self.device.name,
            device_name=self.device.model_name,
            standin=self.device.standin,
            backend=self.device.backend,
            **fields,
        )


def run(
    train: Callable[[Rank], None], *, device: str, threads_per_process: int = 1, timeout: float = 600.0
) -> NoReturn:
    """Train as the rank (or the threads' ranks) that the environment makes of this process, then exit.

    Exit code 0 when trained, 1 after any error (which also becomes a record and a traceback), 2 for an environment that
    describes no possible process. `timeout` bounds rendezvous and every collective, in seconds.
    """
    try:
        process = Topology.from_environment(threads_per_process=threads_per_process)
    except TopologyError as error:
        print(f"{os.path.basename(sys.argv[0])}: error: {error}", file=sys.stderr)  # noqa: PTH119 - a name, not a path
        sys.exit(EXIT_USAGE)
    outlet = Outlet()
    outlet.watch()
    run_id = os.environ.get("TORCHELASTIC_RUN_ID") or f"direct-{uuid.uuid4().hex[:8]}"
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
    ranks = [process.of_thread(thread) for thread in range(threads_per_process)]
    logs = [RankLog(outlet, run=run_id, rank=topology.rank, attempt=attempt) for topology in ranks]
    store = _or_die(logs[0], lambda: rendezvous.join(process, timeout=timeout))

    def live(topology: Topology, log: RankLog) -> None:
        _or_die(log, lambda: _train(train, topology, log, device, store, timeout))

    # The main thread waits in joins, so that a failed thread can end the process; daemons, so that nothing outlives it.
    threads = [
        threading.Thread(target=live, args=pair, name=f"rank {pair[0].rank}", daemon=True)
        for pair in zip(ranks[1:], logs[1:], strict=True)
    ]
    for thread in threads:
        thread.start()
    live(ranks[0], logs[0])
    for thread in threads:
        thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: taking the interpreter apart keeps torch busy for seconds in every rank, after all has been said and
    # the group has been left. The Job, and with it the verdict, would wait for that.
    os._exit(0)


def _train(
    train: Callable[[Rank], None], topology: Topology, log: RankLog, device_name: str, store: Any, timeout: float
) -> None:
    device = open_device(device_name, topology)
    group = join_group(topology, device, store, timeout)
    log.rank, log.world = group.rank, group.size
    counted = count_ranks(group, device)
    rendezvous.withdraw(topology)
    if counted != group.size:
        raise RuntimeError(f"the process group says {group.size} ranks, but {counted} answered a sum over it")
    train(Rank(topology, device, group, log))
    group.close()


def _or_die(log: RankLog, work: Callable[[], Any]) -> Any:
    """Do the work; on any error say so and end the whole process at once.

    Not by way of the interpreter's shutdown: destroying communicators can wait for peers that will never answer, and
    the launcher should hear of a failure when it happens.
    """
    try:
        return work()
    except Exception as error:
        try:
            log.error(error)
            if isinstance(error, UsageError):
                print(f"rank {log.rank}: error: {error}", file=sys.stderr)
            else:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED)


_SEEDING = threading.Lock()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw random numbers (initial weights) that depend on `seed` only; threads queue for the process's generator."""
    with _SEEDING:
        torch.manual_seed(seed)
        yield


def fingerprint(model: nn.Module | Iterable[tuple[str, torch.Tensor]]) -> str:
    """SHA-256 over names, shapes and values of all parameters in order: equal exactly when the parameters are.

    Values count as float32, into which bfloat16 and float16 go exactly, so that it does not depend on the storage type.
    """
    digest = hashlib.sha256()
    parameters = model.named_parameters() if isinstance(model, nn.Module) else model
    for name, parameter in parameters:
        values = parameter.detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name}{tuple(values.shape)}".encode())
        size = values.numel() * values.element_size()
        digest.update((c_char * size).from_address(values.data_ptr()))  # NumPy is not there to lend a buffer
    return digest.hexdigest()
