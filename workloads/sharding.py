"""What belongs to divided parameters: first values, gradients of tied ones, the optimizer of ZeRO stage 1."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workloads.compat import known
from workloads.decoder import Decoder
from workloads.groups import local_gradient
from workloads.parallel import Subgroup

NewOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


def initialise(model: Decoder, seed: int, device: torch.device) -> None:
    """Give the parameters of `model`, which are on the meta device, memory on `device` and their first values.

    Each parameter's values depend on the seed and its name only, so every topology starts from the same model, and a
    rank never holds more than its share and one whole parameter.
    """
    made: dict[nn.Parameter, nn.Parameter] = {}
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter not in made:
                values = first_values(f"{prefix}.{name}", parameter.shape, model.config.layers, seed).to(device)
                made[parameter] = nn.Parameter(_placed_as(values, parameter), requires_grad=parameter.requires_grad)
            setattr(module, name, made[parameter])


def first_values(name: str, shape: torch.Size, layers: int, seed: int) -> Tensor:
    """GPT-2's: deviation 0.02, less for the projections that add to the residual stream of many layers."""
    if name.endswith((".bias", ".lora_B")):
        return torch.zeros(shape)
    if ".ln_" in f".{name}":
        return torch.ones(shape)
    key = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little", signed=True))
    if name.endswith(".lora_A"):
        bound = shape[1] ** -0.5
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)
    deviation = 0.02 / (2 * layers) ** 0.5 if name.endswith("c_proj.weight") else 0.02
    return torch.empty(shape).normal_(0.0, deviation, generator=generator)


def _placed_as(values: Tensor, parameter: nn.Parameter) -> Tensor:
    if not hasattr(parameter, "placements"):
        return values
    from torch.distributed.tensor import distribute_tensor

    # Every rank has all values: nobody needs to be told.
    silent = known(distribute_tensor, src_data_rank=None)
    return distribute_tensor(values, parameter.device_mesh, parameter.placements, **silent)


def local(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor; shares its memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def held(parameter: Tensor) -> Tensor:
    """What this rank has of a parameter when data-parallel ranks lay their shards together."""
    names = parameter.device_mesh.mesh_dim_names if hasattr(parameter, "placements") else ()
    if "data" not in (names or ()):
        return local(parameter)
    from torch.distributed.tensor import Replicate

    placements = list(parameter.placements)
    placements[names.index("data")] = Replicate()
    return parameter.redistribute(placements=placements).to_local()


def sum_tied(parts: Iterable[Decoder], ends: Subgroup | None) -> None:
    """The embedding and the output projection on different pipeline stages are one parameter: add their gradients."""
    for part in parts:
        weight = part.transformer["wte"].weight if "wte" in part.transformer and part.config.tied else None
        if ends is not None and weight is not None and weight.grad is not None:
            ends.sum_([local_gradient(weight)])  # both ends divided alike


class Zero1:
    """ZeRO stage 1: each data-parallel rank keeps the optimizer's state for its share of the parameters, updates these,
    and gives them to the others.

    Whole parameters are shared out, the largest first, always to whoever has least.
    """

    def __init__(self, groups: list[dict[str, Any]], new: NewOptimizer, data: Subgroup) -> None:
        self._data = data
        self._parameters = [parameter for group in groups for parameter in group["params"]]
        owners = _share_out(self._parameters, data.size)
        self._sources = [data.ranks[owner] for owner in owners]
        mine = {
            id(parameter)
            for parameter, source in zip(self._parameters, self._sources, strict=True)
            if source == dist.get_rank()
        }
        # A rank may end up with nothing of a group, or of all.
        self.optim = new([{**group, "params": [p for p in group["params"] if id(p) in mine]} for group in groups])

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.optim.param_groups
        return groups

    def step(self) -> None:
        self.optim.step()
        waiting = [
            dist.broadcast(local(parameter.detach()), source, group=self._data.handle, async_op=True)
            for parameter, source in zip(self._parameters, self._sources, strict=True)
        ]
        for work in waiting:
            work.wait()

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


def _share_out(parameters: list[Tensor], count: int) -> list[int]:
    """The owner of each parameter."""
    owners = [0] * len(parameters)
    loads = [0] * count
    for at in sorted(range(len(parameters)), key=lambda at: -parameters[at].numel()):
        owners[at] = loads.index(min(loads))
        loads[owners[at]] += parameters[at].numel()
    return owners
