"""The group of all ranks, and how gradients are summed over it: processes, threads, or XLA."""

import importlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workloads.device import Device
from workloads.topology import Topology


class Group:
    """All ranks, as `torch.distributed`'s default group of processes. `rank` and `size` are what it says they are."""

    def __init__(self, topology: Topology, device: Device, store: dist.Store, timeout: timedelta) -> None:
        dist.init_process_group(
            device.backend,
            store=store,
            rank=topology.process_rank,
            world_size=topology.process_count,
            timeout=timeout,
            device_id=device.torch_device if device.kind == "cuda" else None,
        )
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def sum_(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks."""
        for tensor in tensors:
            dist.all_reduce(tensor)

    def close(self) -> None:
        """Leave together: the rank that serves the store must not be gone while others still ask it."""
        dist.barrier()
        dist.destroy_process_group()


class ThreadGroup(Group):
    """All ranks where some are threads of one process.

    `init_process_group` knows one rank per process, so each thread holds a raw backend object of its own.
    """

    def __init__(self, topology: Topology, device: Device, store: dist.Store, timeout: timedelta) -> None:
        self.rank, self.size = topology.rank, topology.world_size
        # A clone per thread: one that waits for a key would block the others, who are to set it. In older PyTorch
        # there is none; the store in memory, that of a single process, works without.
        store = dist.PrefixStore("ranks", store.clone() if hasattr(store, "clone") else store)
        if device.kind == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._backend: Any = dist.ProcessGroupNCCL(store, self.rank, self.size, options)
        else:
            self._backend = dist.ProcessGroupGloo(store, self.rank, self.size, timeout=timeout)
        self.rank, self.size = self._backend.rank(), self._backend.size()
        self._device = device

    def sum_(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            self._backend.allreduce([tensor]).wait()

    def close(self) -> None:
        self.sum_([torch.zeros(1, device=self._device.torch_device)])
        self._device.synchronize()
        if hasattr(self._backend, "shutdown"):  # not gloo's in older PyTorch
            self._backend.shutdown()


class XlaGroup(Group):
    """All ranks, each with an XLA device; collectives are part of the compiled step."""

    def __init__(self, topology: Topology, device: Device, store: dist.Store, timeout: timedelta) -> None:
        importlib.import_module("torch_xla.distributed.xla_backend")  # registers the backend
        self._xm = importlib.import_module("torch_xla.core.xla_model")
        super().__init__(topology, device, store, timeout)

    def sum_(self, tensors: list[Tensor]) -> None:
        self._xm.all_reduce(self._xm.REDUCE_SUM, tensors)

    def close(self) -> None:
        self._xm.rendezvous("end of training")
        dist.destroy_process_group()


def count_ranks(group: Group, device: Device) -> int:
    """How many ranks take part, found out by letting each add 1: what the environment says is not asked."""
    ones = torch.ones(1, device=device.torch_device)
    group.sum_([ones])
    device.synchronize()
    return int(ones.item())


class Alone:
    """Gradients of a world of one: there is nothing to add."""

    def __init__(self, model: nn.Module, device: Device) -> None:
        self.model = model
        """What the training step calls."""
        self.ready: Any = None
        """Mark of the moment at which the local gradients were complete, before any waiting for others."""
        self._device = device

    def finish(self) -> None:
        """After the backward pass: afterwards every parameter's gradient is the sum over all ranks."""
        self.ready = self._device.mark()


class Explicit(Alone):
    """Sums all gradients after the backward pass. DDP refuses raw groups, and XLA needs none of its overlap.

    `group` is all ranks, or those (`parallel.Subgroup`) that hold the same parameters.
    """

    def __init__(self, model: nn.Module, device: Device, group: Any) -> None:
        super().__init__(model, device)
        self._group = group

    def finish(self) -> None:
        super().finish()
        gradients = [local_gradient(p) for p in self.model.parameters() if p.grad is not None]
        if self._device.kind == "xla":
            self._group.sum_(gradients)
            return
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            self._group.sum_([flat])
            pieces = flat.split([gradient.numel() for gradient in bucket])
            for gradient, piece in zip(bucket, pieces, strict=True):
                gradient.copy_(piece.view_as(gradient))


def local_gradient(parameter: Tensor) -> Tensor:
    """This rank's part of a gradient, placed as the parameter is: one that tensor-parallel ranks divide is a DTensor,
    and its gradient may be divided in another way, or be a sum still to be made."""
    gradient = parameter.grad
    if not hasattr(gradient, "to_local"):
        return gradient
    if gradient.placements != parameter.placements:
        gradient = parameter.grad = gradient.redistribute(placements=parameter.placements)
    return gradient.to_local()


def _buckets(gradients: list[Tensor], limit: int = 1 << 26) -> Iterator[list[Tensor]]:
    """Neighbours together, up to `limit` elements: the copy that is sent must not be another whole model."""
    bucket: list[Tensor] = []
    for gradient in gradients:
        if bucket and sum(other.numel() for other in bucket) + gradient.numel() > limit:
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket


class Overlapped(Alone):
    """DDP, with a hook that sums (the loss is already divided by the global batch) and notes when the last bucket is
    ready: in synchronous training all ranks show the same step time, so only the time before tells who is slow."""

    def __init__(self, model: nn.Module, device: Device) -> None:
        super().__init__(model, device)
        self.model = nn.parallel.DistributedDataParallel(
            model,
            device_ids=[device.torch_device.index] if device.kind == "cuda" else None,
            gradient_as_bucket_view=True,
        )
        self.model.register_comm_hook(None, self._sum)

    def _sum(self, state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        if bucket.is_last():
            self.ready = self._device.mark()
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    def finish(self) -> None:
        """DDP has waited for its hook's futures by the end of the backward pass."""


def gradients_of(model: nn.Module, topology: Topology, device: Device, group: Group) -> Alone:
    """How this model's gradients are summed: whether at all is a matter of the world size (never of one node's)."""
    if not topology.is_parallel:
        return Alone(model, device)
    if topology.threads_per_process > 1 or not device.overlaps:
        return Explicit(model, device, group)
    return Overlapped(model, device)


def join_group(topology: Topology, device: Device, store: dist.Store, timeout: float) -> Group:
    kind = XlaGroup if device.kind == "xla" else ThreadGroup if topology.threads_per_process > 1 else Group
    return kind(topology, device, store, timedelta(seconds=timeout))
