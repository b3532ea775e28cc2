"""LoRA (Hu et al., 2021): frozen weights, each with a trainable update of low rank beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ADAPTERS = (".lora_A", ".lora_B")
"""Ends of the names of the parameters that are trained."""


class LoraError(ValueError):
    """Target modules that are not there, or cannot be adapted."""


@dataclass(frozen=True)
class Lora:
    rank: int
    alpha: float
    targets: Sequence[str]
    """Ends of module names, whole components: `attn.c_proj` is every layer's, `c_proj` that of the MLP as well."""

    def matches(self, name: str) -> bool:
        return any(f".{name}".endswith(f".{target}") for target in self.targets)


class LoraLinear(nn.Linear):  # type: ignore[misc]
    """y = x Wᵀ + b + (alpha / rank) · (x Aᵀ) Bᵀ. A is random and B zero at first, so training starts from W alone.

    The new parameters lie beside `weight`, whose name stays what it is without LoRA.
    """

    def __init__(self, base: nn.Linear, lora: Lora) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.scale = lora.alpha / lora.rank
        like = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.lora_A = nn.Parameter(torch.empty(lora.rank, base.in_features, **like))
        self.lora_B = nn.Parameter(torch.empty(base.out_features, lora.rank, **like))
        nn.init.kaiming_uniform_(self.lora_A, a=5**0.5)
        nn.init.zeros_(self.lora_B)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + self.scale * F.linear(F.linear(x, self.lora_A), self.lora_B)


def check_targets(model: nn.Module, lora: Lora) -> None:
    """Raises LoraError for a target that names no linear module of the (whole) model, or the tied output projection."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    for target in lora.targets:
        if not any(Lora(lora.rank, lora.alpha, [target]).matches(name) for name in names):
            ends = sorted({name.removeprefix("transformer.h.").partition(".")[2] or name for name in names})
            raise LoraError(
                f"--lora_target_modules {target}: no linear module has that name; there are {', '.join(ends)}"
            )
    if model.config.tied and lora.matches("lm_head"):
        raise LoraError("--lora_target_modules lm_head: this model's output projection is its embedding")


def check_stages(stages: Sequence[nn.Module], lora: Lora) -> None:
    """Raises LoraError for a pipeline stage without any target: on every rank, so that none waits for another."""
    for number, stage in enumerate(stages):
        if not any(isinstance(module, nn.Linear) and lora.matches(name) for name, module in stage.named_modules()):
            raise LoraError(
                f"--lora_target_modules {','.join(lora.targets)}: pipeline stage {number} (layers "
                f"{', '.join(map(str, stage.part.layers))}) has none of them, nothing to train"
            )


def adapt(model: nn.Module, lora: Lora) -> None:
    """Freeze a model, or a stage of one, and give LoRA to the linear modules that `lora` targets."""
    model.requires_grad_(False)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and lora.matches(name):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, LoraLinear(module, lora))
