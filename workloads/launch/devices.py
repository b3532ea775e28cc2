"""How many processes `auto`, `gpu` and `cpu` mean on this machine, without importing a framework."""

from __future__ import annotations

import os

from workloads.launch.options import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def count(wanted: int | str, environ: Mapping[str, str], root: str = "/") -> int:
    """A number is itself; `auto` is the accelerators if there are any, else the CPUs. Raises UsageError."""
    if isinstance(wanted, int):
        return wanted
    if wanted == "cpu":
        return cpus()
    gpus = len(nvidia_minors(root))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if gpus and visible is not None:
        gpus = len(visible_devices(visible, gpus))
    if gpus:
        return gpus
    if wanted == "gpu":
        hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
        raise UsageError(f"--nproc-per-node gpu: no NVIDIA GPU on this machine{hidden}; give a number, cpu or auto")
    return _neuron_cores(environ, root) or cpus()


def cpus() -> int:
    """Those this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def nvidia_minors(root: str = "/") -> list[int]:
    """Of the GPUs this container was given: its device files, not the driver's list, which shows the whole machine."""
    return sorted(_numbered(os.path.join(root, "dev"), "nvidia"))


def visible_devices(variable: str, available: int) -> list[str]:
    """CUDA's rule: the list ends at the first entry that names no device."""
    chosen: list[str] = []
    for entry in (part.strip() for part in variable.split(",")):
        by_name = entry.startswith(("GPU-", "MIG-"))
        if not by_name and not (entry.isdigit() and int(entry) < available):
            break
        chosen.append(entry)
    return chosen


def _neuron_cores(environ: Mapping[str, str], root: str) -> int:
    if not _numbered(os.path.join(root, "dev"), "neuron"):
        return 0
    visible, number = environ.get("NEURON_RT_VISIBLE_CORES", ""), environ.get("NEURON_RT_NUM_CORES", "0")
    try:
        spans = [part.partition("-") for part in visible.split(",") if part]
        cores = sum(int(last or first) - int(first) + 1 for first, _, last in spans) or int(number)
    except ValueError:
        told = f"NEURON_RT_VISIBLE_CORES={visible}" if visible else f"NEURON_RT_NUM_CORES={number}"
        raise UsageError(f"--nproc-per-node auto: {told} is not a number of cores") from None
    if not cores:
        raise UsageError(
            "--nproc-per-node auto: this machine has Neuron devices, but not how many cores are meant: "
            "set NEURON_RT_NUM_CORES, or give the number (kubectl: allocatable aws.amazon.com/neuroncore)"
        )
    return cores


def _numbered(folder: str, stem: str) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [int(name[len(stem) :]) for name in names if name.startswith(stem) and name[len(stem) :].isdigit()]
