"""Checkpoints that any world size can resume from, and that are whole or not there.

DIR/checkpoint_step_000030/   one step: tensors as torch.distributed.checkpoint keeps them, and state.json
DIR/.checkpoint_step_000040.partial   one that is being written, or was when its writer was killed

Tensors are stored once under the names of the plain model (`model.layers.0.attention.wq.weight`,
`optimizer.layers.0.attention.wq.weight.exp_avg`), whatever shards, replicas or pipeline stages held them. Each rank
reads the parts that it needs. All ranks call `save` and `load` together; DIR must be the same place for all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

Model: TypeAlias = nn.Module | Sequence[nn.Module]
"""A model, or the parts of it (pipeline stages) that this rank has. Their names must be those of the whole model."""
Optimizer: TypeAlias = Any
"""One of torch's, or a wrapper that keeps this rank's share of the state in one, its attribute `optim`."""

_STATE = "state.json"
_NAME = "checkpoint_step_{:06d}"
_IS_STEP = re.compile(r"checkpoint_step_(\d+)")
# What wrappers (DDP, torch.compile, activation checkpointing) put into the names of parameters.
_WRAPPERS = re.compile(r"(?:(?<=\.)|^)(?:module|_orig_mod|_checkpoint_wrapped_module)\.")
_LISTED = 4


class CheckpointError(RuntimeError):
    """A checkpoint that is absent, incomplete, or of another model; the message says what to do."""


def save(
    directory: Path | str,
    step: int,
    model: Model,
    optimizer: Optimizer | None,
    state: dict[str, Any],
    *,
    keep: int = 0,
) -> Path:
    """Write the checkpoint of `step`, then let it appear by one rename; returns its path.

    `optimizer` None leaves its state out. `state` is whatever JSON can hold: the consumption of the data above all.
    Random generators of all ranks are saved beside. Of more than `keep` checkpoints (0: no limit) the oldest go.
    """
    root = Path(directory)
    final = root / _NAME.format(step)
    partial = root / f".{final.name}.partial"
    if _rank() == 0:
        _tidy(root)
        partial.mkdir(parents=True)
    _barrier()
    if not partial.is_dir():
        raise CheckpointError(
            f"rank {_rank()} does not see {partial}, which rank 0 made: checkpoints of several nodes need a directory "
            "that all of them share"
        )
    tensors = {**_model_tensors(model), **_optimizer_tensors(model, optimizer), **_generators()}
    with _quietly():
        dcp.save(tensors, storage_writer=dcp.FileSystemWriter(partial))  # returns when every rank's part is on disk
    if _rank() == 0:
        whole = {**state, "step": step, "world": _world()}
        _write(partial / _STATE, json.dumps(whole, indent=1))
        _publish(partial, final)
        _prune(root, keep, final)
    _barrier()
    return final


def load(
    path: Path | str, model: Model, optimizer: Optimizer | None = None, *, adapters: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Read the latest checkpoint of a directory, or the one whose own path is given, into model and optimizer.

    Returns the `state` that was saved, with `step`, `world` (how many ranks wrote it), `optimizer` (whether its state
    was there; if not, the optimizer is as it was) and `base`. Random generators continue where the world is the same
    size. `adapters` are ends of names that parameters have which are trained beside a finished model's: where the
    checkpoint is of that model alone (`base`), its parameters are read, and all else stays as it is.
    Raises CheckpointError when there is none, or it is another model's.
    """
    found = resolve(path)
    try:
        state: dict[str, Any] = json.loads((found / _STATE).read_text(encoding="utf-8"))
        stored = dcp.FileSystemReader(found).read_metadata().state_dict_metadata
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{found} is not a whole checkpoint: {error}") from error
    wanted = _model_tensors(model)
    base = _is_base(found, wanted, stored, adapters)
    if base:
        wanted = {name: value for name, value in wanted.items() if not name.endswith(adapters)}
    has_optimizer = not base and any(name.startswith("optimizer.") for name in stored)
    if optimizer is not None and has_optimizer:
        _materialise(optimizer)
        wanted |= _optimizer_tensors(model, optimizer)
    generators = _generators() if state.get("world") == _world() and not base else {}
    generators = {name: value for name, value in generators.items() if name in stored}
    _check(found, wanted, stored)
    wanted |= generators
    with _quietly():
        dcp.load(wanted, storage_reader=dcp.FileSystemReader(found))
    _restore(generators)
    return {**state, "optimizer": has_optimizer, "base": base}


def resolve(path: Path | str) -> Path:
    """The checkpoint that a path stands for: itself, or the latest below it. Raises CheckpointError for none."""
    path = Path(path)
    there = _steps(path.parent if _IS_STEP.fullmatch(path.name) else path)
    if _IS_STEP.fullmatch(path.name):
        found = next((place for _, place in there if place.name.strip(".").startswith(path.name)), None)
    else:
        found = there[-1][1] if there else None
    if found is None:
        names = ", ".join(_NAME.format(step) for step, _ in there[-_LISTED:])
        raise CheckpointError(f"{path}: no checkpoint there" + (f"; there are {names}" if names else ""))
    return found


def _steps(root: Path) -> list[tuple[int, Path]]:
    """The whole checkpoints of a directory, by step. One that was being replaced when its writer died counts."""
    found: dict[int, Path] = {}
    for place in root.glob("*checkpoint_step_*"):
        match = re.fullmatch(r"(\.?)checkpoint_step_(\d+)(\.replaced)?", place.name)
        if match and bool(match[1]) == bool(match[3]) and (place / _STATE).exists():
            if match[3]:
                found.setdefault(int(match[2]), place)
            else:
                found[int(match[2])] = place
    return sorted(found.items())


def _tidy(root: Path) -> None:
    """Remove what a killed writer left; put back what it had only just put aside."""
    for place in root.glob(".checkpoint_step_*"):
        final = root / place.stem.strip(".")
        if place.suffix == ".replaced" and not final.exists():
            place.rename(final)
        elif place.suffix in (".partial", ".replaced", ".removed"):
            shutil.rmtree(place)


def _publish(partial: Path, final: Path) -> None:
    _sync(partial)
    old = final.with_name(f".{final.name}.replaced")
    if final.exists():
        final.rename(old)
    partial.rename(final)
    _sync(final.parent)
    if old.exists():
        shutil.rmtree(old)


def _prune(root: Path, keep: int, newest: Path) -> None:
    """By age, not by step: a training that was set back to an earlier step must not lose what it just saved."""
    if keep < 1:
        return
    others = [place for _, place in _steps(root) if place != newest]
    others.sort(key=lambda place: (place / _STATE).stat().st_mtime_ns)
    for place in others[: max(0, len(others) - (keep - 1))]:
        # Out of sight first: half a checkpoint must not look like one.
        removed = place.with_name(f".{place.name.strip('.')}.removed")
        place.rename(removed)
        shutil.rmtree(removed)


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# What is in it -------------------------------------------------------------------------------------------------------


def _parts(model: Model) -> Iterator[nn.Module]:
    yield from [model] if isinstance(model, nn.Module) else model


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers put into it."""
    return _WRAPPERS.sub("", name)


def _model_tensors(model: Model) -> dict[str, Tensor]:
    return {
        f"model.{plain_name(name)}": value.detach()
        for part in _parts(model)
        for name, value in part.state_dict().items()
        if isinstance(value, Tensor)
    }


def _optimizer_tensors(model: Model, optimizer: Optimizer | None) -> dict[str, Tensor]:
    """Per parameter, under each of its names: tied weights are two parameters where pipeline stages part them."""
    if optimizer is None:
        return {}
    state = _local(optimizer).state
    return {
        f"optimizer.{plain_name(name)}.{key}": value
        for part in _parts(model)
        for name, parameter in part.named_parameters(remove_duplicate=False)
        for key, value in state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def _local(optimizer: Optimizer) -> torch.optim.Optimizer:
    local: torch.optim.Optimizer = getattr(optimizer, "optim", optimizer)
    return local


def _materialise(optimizer: Optimizer) -> None:
    """Make the optimizer have its state, to be read into: it comes with the first step. One that changes nothing."""
    local = _local(optimizer)
    if any(local.state.values()):
        return
    rates = [group["lr"] for group in local.param_groups]
    for group in local.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    local.step()
    local.zero_grad()
    for group, rate in zip(local.param_groups, rates, strict=True):
        group["lr"] = rate


def _generators() -> dict[str, Tensor]:
    """States of this rank's random generators."""
    states = {f"random.cpu.{_rank()}": torch.get_rng_state()}
    if torch.cuda.is_available():
        states[f"random.cuda.{_rank()}"] = torch.cuda.get_rng_state()
    return states


def _restore(states: dict[str, Tensor]) -> None:
    for name, value in states.items():
        if name.startswith("random.cuda."):
            torch.cuda.set_rng_state(value)
        else:
            torch.set_rng_state(value)


def _is_base(path: Path, wanted: dict[str, Tensor], stored: dict[str, Any], adapters: tuple[str, ...]) -> bool:
    """Whether this model has adapters and the stored one has none. Raises CheckpointError for adapters that are stored
    for what this rank has, and that it has none for: they would be left out unnoticed."""
    there = [name for name in stored if name.startswith("model.") and name.endswith(adapters)] if adapters else []
    lost = sorted(name for name in there if name not in wanted and f"{name.rpartition('.')[0]}.weight" in wanted)
    if lost:
        more = " …" if len(lost) > _LISTED else ""
        raise CheckpointError(f"{path} has adapters that this model has not: {', '.join(lost[:_LISTED])}{more}")
    return not there and bool(adapters) and any(name.endswith(adapters) for name in wanted)


def _check(path: Path, wanted: dict[str, Tensor], stored: dict[str, Any]) -> None:
    missing = sorted(name for name in wanted if name not in stored)
    shapes = [
        f"{name} is {tuple(known.size)} there, {tuple(value.shape)} here"
        for name, value in wanted.items()
        if isinstance(known := stored.get(name), TensorStorageMetadata) and known.size != value.shape
    ]
    if missing or shapes:
        told = [f"it lacks {', '.join(missing[:_LISTED])}{' …' if len(missing) > _LISTED else ''}"] if missing else []
        raise CheckpointError(f"{path} is of another model: {'; '.join(told + shapes[:_LISTED])}")


# Together ------------------------------------------------------------------------------------------------------------


def _together() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def _rank() -> int:
    return dist.get_rank() if _together() else 0


def _world() -> int:
    return dist.get_world_size() if _together() else 1


def _barrier() -> None:
    if _together():
        dist.barrier()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """torch.distributed.checkpoint remarks that a single process is one, and on its own use of its own classes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\.")
        yield
