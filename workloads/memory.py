"""What a training takes of the device's memory, and what would fit where it does not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

import torch

from workloads.device import Device

T = TypeVar("T")
RESERVE = 0.05
"""Share of the memory left to fragmentation and to libraries that allocate on their own."""


class DoesNotFit(RuntimeError):
    """The batch needs more memory than the device has; the message says which would do."""


def largest_batch(peak_of: Callable[[int], int], tried: int, limit: int) -> int:
    """How many samples fit into `limit` bytes, 0 if not one; `peak_of` measures the bytes that a batch takes.

    Memory grows in a line with the batch, so two small ones tell. In multiples of 8, which matrix units like, where
    there are as many.
    """
    small = max(1, tried // 16)
    one, two = peak_of(small), peak_of(2 * small)
    slope = max(1.0, (two - one) / small)
    fits = int((limit * (1 - RESERVE) - (one - slope * small)) / slope)
    fits = min(fits, tried - 1)
    return max(0, fits - fits % 8 if fits > 8 else fits)


def explained(
    work: Callable[[], T],
    loss_of: Callable[[int], torch.Tensor],
    device: Device,
    tried: int,
    optimizer: torch.optim.Optimizer,
) -> T:
    """What `work` returns. Where it runs out of memory, a DoesNotFit is raised that says which batch size would fit.

    `loss_of` computes the loss of a batch of that many samples on this rank alone; `tried`: this run's batch size.
    """
    with contextlib.suppress(torch.OutOfMemoryError):
        return work()
    # Not while the error is handled: it keeps the tensors of the step that failed.
    optimizer.zero_grad()
    raise _explanation(loss_of, device, tried, later=_state_to_come(optimizer))


def _state_to_come(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of Adam's two moments, as far as the first step has not allocated them."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return sum(2 * p.numel() * p.element_size() for p in parameters if p not in optimizer.state)


def _explanation(loss_of: Callable[[int], torch.Tensor], device: Device, tried: int, *, later: int) -> DoesNotFit:
    def peak_of(samples: int) -> int:
        device.forget_peak_memory()
        loss_of(samples).backward()
        device.synchronize()
        return (device.peak_memory or 0) + later

    total = device.memory or 0
    try:
        with torch.compiler.set_stance("force_eager"):  # not compiled for sizes that are used once
            fits = largest_batch(peak_of, tried, total)
    except torch.OutOfMemoryError:
        fits = 0
    size = f"--batch-size {tried} does not fit into the {total / 2**30:.0f} GiB of {device.name} ({device.model_name})"
    if not fits:
        return DoesNotFit(f"{size}, nor would any other: take a smaller model or shorter sequences")
    return DoesNotFit(f"{size}; --batch-size {fits} would")
