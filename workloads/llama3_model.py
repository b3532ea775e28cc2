"""Llama 3 (Llama Team, "The Llama 3 Herd of Models", 2024) in plain PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.decoder import Attention, Block, Decoder, DecoderConfig, Part


@dataclass(frozen=True)
class RopeScaling:
    """How Llama 3.1 and 3.2 stretch slow rotations for contexts longer than those of the first training."""

    factor: float
    low_frequency: float = 1.0
    high_frequency: float = 4.0
    original_length: int = 8192


@dataclass(frozen=True)
class LlamaConfig(DecoderConfig):
    tied: bool = False
    rope_theta: float = 500_000.0
    scaling: RopeScaling | None = None


SIZES = {
    # Heads and layers enough for four tensor- or pipeline-parallel ranks, with two virtual stages each.
    "tiny": LlamaConfig(128, 64, layers=8, heads=8, kv_heads=4, feed_forward=192, max_sequence_length=256),
    "1B": LlamaConfig(
        128256,
        2048,
        layers=16,
        heads=32,
        kv_heads=8,
        feed_forward=8192,
        max_sequence_length=131072,
        tied=True,
        scaling=RopeScaling(32.0),
    ),
    "8B": LlamaConfig(
        128256,
        4096,
        layers=32,
        heads=32,
        kv_heads=8,
        feed_forward=14336,
        max_sequence_length=131072,
        scaling=RopeScaling(8.0),
    ),
}


class Rotary:
    """Rotary position embedding (Su et al., 2021): the two halves of a head are turned by position × frequency."""

    def __init__(self, config: LlamaConfig) -> None:
        self._config = config
        self._tables: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """(b, heads, s, width), turned in float32."""
        cos, sin = self._table(x.shape[2], x.device)
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)

    def _table(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosine and sine, (s, width / 2) each."""
        if (length, device) not in self._tables:
            angles = torch.outer(torch.arange(length, dtype=torch.float32), self.frequencies())
            self._tables[length, device] = (angles.cos().to(device), angles.sin().to(device))
        return self._tables[length, device]

    def frequencies(self) -> Tensor:
        """Radians per position, (width / 2,). Wavelengths that fitted often into the original length stay; those that
        hardly did are stretched by the factor; between, a mixture of both."""
        width = self._config.hidden // self._config.heads
        plain = self._config.rope_theta ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)
        scaling = self._config.scaling
        if scaling is None:
            return plain
        turns = scaling.original_length * plain / (2 * math.pi)
        share = (turns - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency)
        share = share.clamp(0, 1)
        return share * plain + (1 - share) * plain / scaling.factor


class RmsNorm(nn.Module):  # type: ignore[misc]
    def __init__(self, hidden: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


class SwiGlu(nn.Module):  # type: ignore[misc]
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.hidden, config.inner, bias=False)
        self.c_fc2 = nn.Linear(config.hidden, config.inner, bias=False)
        """The gate."""
        self.c_proj = nn.Linear(config.inner, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.silu(self.c_fc2(x)) * self.c_fc(x))


class Llama3(Decoder):
    def __init__(self, config: LlamaConfig, part: Part | None = None) -> None:
        self._rotary = Rotary(config)  # one table for all layers
        super().__init__(config, part)

    def norm(self) -> nn.Module:
        return RmsNorm(self.config.hidden, self.config.norm_eps)

    def block(self) -> nn.Module:
        return Block(self.norm, Attention(self.config, bias=False, rotate=self._rotary), SwiGlu(self.config))
