"""Compilation of the parts that a model repeats, where it earns back what it costs."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from workloads import flops
from workloads.device import Device
from workloads.topology import Topology

BACKEND = "inductor"
F = TypeVar("F", bound=Callable[..., Any])
COLD_SECONDS = 15.0
"""What compiling a model's regions takes at first; 2 or 3 seconds when the cache knows them."""
_USUAL_SHARE = 0.4
"""Of the datasheet's peak that an uncompiled training reaches, roughly."""


@dataclass(frozen=True)
class Decision:
    on: bool
    why: str
    """`asked`, or what speaks for it or against it."""

    @property
    def fields(self) -> dict[str, str]:
        """For the first record."""
        return {"compile": "on" if self.on else "off", "compile_why": self.why}


def add_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--compile",
        choices=["auto", "on", "off"],
        default="auto",
        help="compile the blocks of the model; auto: on GPUs, where the run is long enough to earn it back",
    )


def decide(
    choice: str, device: Device, topology: Topology, *, operations: float, divided_tensors: bool = False
) -> Decision:
    """Whether to compile. `operations`: what this rank's whole training takes; `divided_tensors`: tensor parallelism.

    From what is known before the first step and is the same for all ranks with equal devices, so that they agree.
    """
    if choice != "auto":
        return Decision(choice == "on", "asked")
    if device.kind != "cuda":
        return Decision(False, "not on a GPU")
    if topology.threads_per_process > 1:
        return Decision(False, "threads share one compiler")
    if divided_tensors:
        return Decision(False, "tensor-parallel blocks cannot be compiled")
    if not available():
        return Decision(False, "no Triton or no C compiler in this image")
    peak = flops.datasheet(device.model_name, torch.bfloat16) or 100.0
    seconds = operations / (peak * 1e12 * _USUAL_SHARE)
    if seconds < COLD_SECONDS / 2:
        return Decision(False, f"about {seconds:.1f} s of training do not earn it back")
    return Decision(True, f"about {seconds:.0f} s of training earn it back")


def available() -> bool:
    """Whether this image has what PyTorch's compiler needs for GPUs."""
    compilers = (os.environ.get("CC"), "gcc", "clang", "cc")
    return importlib.util.find_spec("triton") is not None and any(shutil.which(name) for name in compilers if name)


def compile_regions(blocks: Iterable[nn.Module], owner: nn.Module | None = None, methods: Iterable[str] = ()) -> None:
    """Compile each block, and methods of `owner` between them: at their first call, once for all blocks that are alike.

    Not the whole model: that takes as long as all its blocks together and gives little more.
    """
    # Under DDP graphs would be cut where its buckets end; a block is smaller than that.
    torch._dynamo.config.optimize_ddp = False
    # The compiler looks at every tensor's gradient, also where parameters are casts of others (`precision.Computing`).
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
    for block in blocks:
        block.compile(dynamic=False, backend=BACKEND)
    for name in methods:
        setattr(owner, name, torch.compile(getattr(owner, name), dynamic=False, backend=BACKEND))


def compile_function(function: F) -> F:
    return torch.compile(function, dynamic=False, backend=BACKEND)  # type: ignore[no-any-return]


def rehearse(step: Callable[[], torch.Tensor], model: nn.Module, device: Device) -> float:
    """Run forward and backward once, outside the training, so that everything is compiled and loaded afterwards.

    `step` gives a loss of `model`, whose gradients are forgotten. Returns seconds.
    """
    began = time.perf_counter()
    step().backward()
    device.synchronize()
    model.zero_grad()
    return time.perf_counter() - began
