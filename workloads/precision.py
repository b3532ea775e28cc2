"""Computing in bfloat16 with parameters, gradients and optimizer in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _Cast(torch.autograd.Function):
    """Several tensors to another type and their gradients back, each way as one kernel instead of one per tensor."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        return _copies(tensors, [dtype] * len(tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *_copies(gradients, ctx.dtypes))


def _copies(tensors: tuple[Tensor, ...], dtypes: list[torch.dtype]) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
    torch._foreach_copy_(copies, list(tensors))
    return tuple(copies)


class Computing(nn.Module):  # type: ignore[misc]
    """`model`, computed in `dtype`: everything between its operations has that type, not only the matrix products as
    under autocast, which keeps the residual stream, the largest of all traffic, in float32.

    The parameters stay what they are, and so do their gradients. They are cast block by block, so that the gradients of
    a block are complete, and can be exchanged, while the backward pass goes on.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype
        self._blocks = _by_block(model)

    def forward(self, *args: Any, **options: Any) -> Any:
        parameters = dict(self.model.named_parameters())
        cast: dict[str, Tensor] = {}
        for names in self._blocks:
            cast.update(zip(names, _Cast.apply(self.dtype, *(parameters[name] for name in names)), strict=True))
        return torch.func.functional_call(self.model, cast, args, options)


def _by_block(model: nn.Module) -> list[list[str]]:
    """The names of the parameters, those of one layer (names that agree up to their first number) together, and those
    outside of layers."""
    blocks: dict[tuple[str, ...], list[str]] = {}
    for name, _ in model.named_parameters():
        parts = name.split(".")
        numbers = [index for index, part in enumerate(parts) if part.isdigit()]
        blocks.setdefault(tuple(parts[: numbers[0] + 1]) if numbers else (), []).append(name)
    return list(blocks.values())


def computing(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """What to call in place of `model` so that it computes in `dtype`."""
    return model if dtype == torch.float32 else Computing(model, dtype)
