"""AdamW on any device."""

from __future__ import annotations

from typing import Any

import torch

from workloads.device import Device


def adamw(groups: list[dict[str, Any]], device: Device, **options: Any) -> torch.optim.Optimizer:
    # On XLA the step counter must live on the device: as a number of the host it would be compiled into each step.
    return torch.optim.AdamW(groups, capturable=device.kind == "xla", fused=device.kind == "cuda" or None, **options)


def set_rate(optimizer: Any, rate: float, device: Device) -> None:
    # For XLA as a tensor: of a host's number, 1 − rate · decay would be compiled in anew once it rounds to 1.
    value = torch.tensor(rate, device=device.torch_device) if device.kind == "xla" else rate
    for group in optimizer.param_groups:
        group["lr"] = value
