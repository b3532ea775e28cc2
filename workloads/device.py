"""The device a rank computes on, and the few things that differ between CPU, CUDA and XLA (Neuron)."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import platform
import time
from functools import cached_property
from typing import Any

import torch

from workloads.topology import Topology

CHOICES = ("auto", "cpu", "cuda", "xla")
ATTENTION = ("auto", "cudnn", "flash", "efficient", "math")
"""PyTorch's back ends of attention; auto: the fastest that takes the shapes and types."""
STANDIN_VARIABLE = "ALLRANKS_STANDIN_DEVICE"
_ACCELERATORS = {"cuda": "nvidia", "xla": "neuron"}


class DeviceError(RuntimeError):
    """The device asked for is not there. Never a reason to compute on another one silently."""


class Device:
    """The CPU; the base of the others.

    `mark` and `seconds` measure time on the device: a mark is a moment in its work, not in the host's, which
    runs ahead.
    """

    kind = "cpu"
    backend = "gloo"
    overlaps = True
    """Whether gradients can be exchanged while the backward pass goes on (DDP)."""

    def __init__(self, topology: Topology, standin: str | None = None) -> None:
        self.standin = standin
        """The accelerator in whose place this device computes; None where it is the device asked for."""

    @cached_property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def name(self) -> str:
        """`cpu`, `cuda:0`, `xla:0`."""
        return str(self.torch_device)

    @property
    def model_name(self) -> str:
        return platform.processor() or platform.machine()

    @property
    def uuid(self) -> str | None:
        """Of the physical device, where it has one."""
        return None

    @property
    def memory(self) -> int | None:
        """Bytes of its own memory; None where it uses the host's."""
        return None

    @property
    def peak_memory(self) -> int | None:
        """The most bytes that tensors had at once; None where nobody counts."""
        return None

    def forget_peak_memory(self) -> None:
        """Give back what is cached, and count the peak from here."""

    @property
    def fast_dtype(self) -> torch.dtype:
        """What to compute in for speed: bfloat16 where the matrix units know it."""
        return torch.float32

    def attention(self, choice: str) -> contextlib.AbstractContextManager[None]:
        """While this lasts, attention is computed by that back end (one of `ATTENTION`)."""
        return contextlib.nullcontext()

    def use(self) -> None:
        """Make it the calling thread's device."""

    def mark(self) -> Any:
        return time.perf_counter()

    def seconds(self, start: Any, stop: Any) -> float:
        """Between two marks; waits until the device has got there."""
        return float(stop - start)

    def end_step(self) -> None:
        """Hand the step's work to the device, where that is not done as it is written down."""

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""


class CudaDevice(Device):
    kind = "cuda"
    backend = "nccl"

    def __init__(self, topology: Topology, standin: str | None = None) -> None:
        super().__init__(topology, standin)
        count = torch.cuda.device_count()
        index = topology.device_index
        # A launcher that gives every process local rank 0 must have shown each a device of its own.
        own = topology.visible_local_rank == topology.local_process_rank or count == topology.threads_per_process
        if index >= count or not own:
            raise DeviceError(
                f"rank {topology.rank} (local rank {topology.local_rank}) needs cuda:{index} of its own, and the "
                f"process sees {count} CUDA devices: start as many ranks per node as there are devices, and check the "
                "driver and the device plugin"
            )
        self._index = index
        self.use()

    @cached_property
    def torch_device(self) -> torch.device:
        return torch.device("cuda", self._index)

    @property
    def model_name(self) -> str:
        return str(torch.cuda.get_device_name(self.torch_device))

    @property
    def uuid(self) -> str | None:
        uuid = getattr(torch.cuda.get_device_properties(self.torch_device), "uuid", None)
        return None if uuid is None else str(uuid)

    @property
    def memory(self) -> int | None:
        return int(torch.cuda.get_device_properties(self.torch_device).total_memory)

    @property
    def peak_memory(self) -> int | None:
        return int(torch.cuda.max_memory_allocated(self.torch_device))

    def forget_peak_memory(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    @property
    def fast_dtype(self) -> torch.dtype:
        return torch.bfloat16 if torch.cuda.get_device_capability(self.torch_device) >= (8, 0) else torch.float32

    def attention(self, choice: str) -> contextlib.AbstractContextManager[None]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        names = {
            "cudnn": SDPBackend.CUDNN_ATTENTION,
            "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION,
            "math": SDPBackend.MATH,
        }
        # The compiler's cache does not know the back end by itself, and would answer with another one's code.
        if hasattr(torch.compiler, "config"):
            torch.compiler.config.cache_key_tag = f"attention {choice}"
        if choice != "auto":
            return sdpa_kernel(names[choice])  # type: ignore[no-any-return]
        return sdpa_kernel(list(names.values()), set_priority=True)  # type: ignore[no-any-return]

    def use(self) -> None:
        torch.cuda.set_device(self.torch_device)

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.torch_device))
        return event

    def seconds(self, start: Any, stop: Any) -> float:
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)


class XlaDevice(Device):
    """A NeuronCore (or another device) behind torch-xla. Work is recorded and compiled as one graph per step."""

    kind = "xla"
    backend = "xla"
    overlaps = False

    def __init__(self, topology: Topology, standin: str | None = None) -> None:
        super().__init__(topology, standin)
        if importlib.util.find_spec("torch_xla") is None:
            raise DeviceError("--device xla needs torch-xla (torch-neuronx on Neuron), which this image does not have")
        if topology.threads_per_process > 1:
            raise DeviceError("--nthread-per-process: a process has one XLA device; use processes instead of threads")
        self._xm = importlib.import_module("torch_xla.core.xla_model")

    @cached_property
    def torch_device(self) -> torch.device:
        """Opened when first used: only the process group's set-up tells the runtime which device is whose."""
        return self._xm.xla_device()

    @property
    def model_name(self) -> str:
        return " ".join([str(self._xm.xla_device_hw(self.torch_device)), *_neuron_names()])

    def end_step(self) -> None:
        self._xm.mark_step()

    def synchronize(self) -> None:
        self._xm.mark_step()
        self._xm.wait_device_ops()


def _neuron_names() -> list[str]:
    """Of the chip, and of how many of its cores a device is made: `trn2`, `LNC2`. Nothing on other hardware."""
    if importlib.util.find_spec("torch_neuronx") is None:
        return []
    target = getattr(importlib.import_module("torch_neuronx.utils"), "get_platform_target", None)
    if target is None:
        return []
    name = str(target())
    cores = os.environ.get("NEURON_LOGICAL_NC_CONFIG") or ("2" if name in ("trn2", "trn3") else "")  # the default
    return [name, f"LNC{cores}"] if cores else [name]


_CLASSES: dict[str, type[Device]] = {"cpu": Device, "cuda": CudaDevice, "xla": XlaDevice}


def kind_of(asked: str) -> str:
    """`cpu`, `cuda` or `xla`: what a rank that asks for this device will compute on, if it is there.

    On a stand-in node (`ALLRANKS_STANDIN_DEVICE=cpu`) that is the CPU, whatever was asked. Raises DeviceError for
    another value of that variable.
    """
    standin = os.environ.get(STANDIN_VARIABLE, "")
    if standin not in ("", "cpu"):
        raise DeviceError(f"{STANDIN_VARIABLE}={standin!r}: only the cpu stands in for other devices")
    if standin:
        return standin
    if asked != "auto":
        return asked
    if torch.cuda.is_available():
        return "cuda"
    # torch-xla alone computes on the CPU as well; Neuron's plugin is what hardware brings with it.
    return "xla" if importlib.util.find_spec("torch_neuronx") else "cpu"


def open_device(asked: str, topology: Topology) -> Device:
    """The rank's device. Raises DeviceError when what was asked for is not there."""
    kind = kind_of(asked)
    if kind == "cuda" and not torch.cuda.is_available():
        built = "" if torch.version.cuda else "; this PyTorch is built without CUDA"
        raise DeviceError(f"--device cuda, but PyTorch finds no CUDA device on {platform.node()}{built}")
    return _CLASSES[kind](topology, _ACCELERATORS.get(asked) if kind != asked else None)
