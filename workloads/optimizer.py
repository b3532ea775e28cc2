"""AdamW on any device."""

from __future__ import annotations

from typing import Any

import torch

from workloads.device import Device


def adamw(groups: list[dict[str, Any]], device: Device, **options: Any) -> torch.optim.Optimizer:
    # On XLA the step counter must live on the device: as a number of the host it would be compiled into each step.
    xla = device.kind == "xla"
    optimizer = torch.optim.AdamW(groups, capturable=xla, fused=device.kind == "cuda" or None, **options)
    if xla:
        _begin_state(optimizer, device)
    return optimizer


def _begin_state(optimizer: torch.optim.Optimizer, device: Device) -> None:
    """What AdamW would make in its first step: made there, that step would be a graph of its own, compiled for once."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=device.torch_device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    device.end_step()


def set_rate(optimizer: Any, rate: float, device: Device) -> None:
    # For XLA as a tensor: of a host's number, 1 − rate · decay would be compiled in anew once it rounds to 1. Taken out
    # of one with a dimension: without, a 0 or 1 would be compiled in as well, and a schedule may end at 0.
    value = torch.tensor([rate], device=device.torch_device).squeeze() if device.kind == "xla" else rate
    for group in optimizer.param_groups:
        group["lr"] = value
