"""GELU for compiled code: the exact one, not the tanh approximation, at the speed of memory.

Compiled, `F.gelu` spends more time in the error function than in reading and writing. Here that is a polynomial and an
exponential (Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26; absolute error below 1.5e-7, which is
a thousandth of a bfloat16's rounding), and the derivative uses the same exponential. Not compiled it would be slower:
`F.gelu` is its plain twin, and a test compares them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_P = 0.3275911
_COEFFICIENTS = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = x.float()
        return (wide * _normal(wide)[0]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        wide = x.float()
        below, bell = _normal(wide)
        return (gradient.float() * (below + wide * bell)).to(x.dtype)


def _normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """Distribution function and density of the standard normal distribution."""
    exponential = torch.exp(-0.5 * x * x)
    t = 1 / (1 + _P / math.sqrt(2) * x.abs())
    polynomial = torch.zeros_like(t)
    for coefficient in _COEFFICIENTS:
        polynomial = (polynomial + coefficient) * t
    beyond = 0.5 * polynomial * exponential
    return torch.where(x < 0, beyond, 1 - beyond), exponential / math.sqrt(2 * math.pi)


def gelu(x: Tensor) -> Tensor:
    """As `F.gelu(x)`, elementwise."""
    return _Gelu.apply(x)  # type: ignore[no-any-return]
