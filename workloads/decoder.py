"""What decoder-only language models have in common: attention, blocks, and the whole or a pipeline stage of a model.

Names are those of GPT-2's first code, for both families: `transformer.wte`, `transformer.h.3.attn.c_attn`, `lm_head`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.compiling import compile_regions

NewNorm = Callable[[], nn.Module]
Rotate = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class DecoderConfig:
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    max_sequence_length: int
    kv_heads: int = 0
    """Heads of keys and values, each shared by heads / kv_heads of queries; 0: as many as heads."""
    feed_forward: int = 0
    """Width inside the feed-forward part; 0: 4 × hidden."""
    tied: bool = True
    """Whether the output projection is the embedding."""
    norm_eps: float = 1e-5

    @property
    def key_value_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def inner(self) -> int:
        return self.feed_forward or 4 * self.hidden

    @property
    def padded_vocabulary(self) -> int:
        """A multiple of 128: matrix units work on tiles, and tensor parallelism divides it evenly."""
        return -(-self.vocabulary // 128) * 128


@dataclass(frozen=True)
class Part:
    """Which part of a model a pipeline stage holds."""

    layers: Sequence[int]
    first: bool = True
    last: bool = True


class Attention(nn.Module):  # type: ignore[misc]
    """Causal self-attention.

    The rows of `c_attn` are grouped by head of keys and values: its queries, its key, its value. So any tensor-parallel
    share of the rows is whole heads, and how many there are is read off the projection's width.
    """

    def __init__(self, config: DecoderConfig, *, bias: bool, rotate: Rotate | None = None) -> None:
        super().__init__()
        self.queries = config.heads // config.key_value_heads
        """Per head of keys and values."""
        self.width = config.hidden // config.heads
        self.rotate = rotate
        rows = (config.heads + 2 * config.key_value_heads) * self.width
        self.c_attn = nn.Linear(config.hidden, rows, bias=bias)
        self.c_proj = nn.Linear(config.hidden, config.hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(b, s, hidden) → (b, s, hidden)."""
        qkv = self.c_attn(x)
        batch, length, _ = qkv.shape
        qkv = qkv.view(batch, length, -1, self.queries + 2, self.width)
        query, key, value = qkv.split([self.queries, 1, 1], dim=3)
        query, key, value = (part.flatten(2, 3).transpose(1, 2) for part in (query, key, value))
        if self.rotate is not None:
            query, key = self.rotate(query), self.rotate(key)
        attention = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=self.queries > 1)
        return self.c_proj(attention.transpose(1, 2).flatten(2))


class Block(nn.Module):  # type: ignore[misc]
    """Attention and feed-forward, each after a normalisation and added to what came in."""

    def __init__(self, norm: NewNorm, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.ln_1 = norm()
        self.attn = attention
        self.ln_2 = norm()
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Decoder(nn.Module):  # type: ignore[misc]
    """A language model, or the stage of it that `part` describes; parameters are named as in the whole model."""

    positions = False
    """Whether positions are learned, and added to the embedding."""

    def __init__(self, config: Any, part: Part | None = None) -> None:
        super().__init__()
        self.config = config
        self.part = part or Part(range(config.layers))
        vocabulary = config.padded_vocabulary
        self.transformer = nn.ModuleDict()
        if self.part.first or (self.part.last and config.tied):
            self.transformer["wte"] = nn.Embedding(vocabulary, config.hidden)
        if self.part.first and self.positions:
            self.transformer["wpe"] = nn.Embedding(config.max_sequence_length, config.hidden)
        if self.part.first:
            self.transformer["drop"] = nn.Identity()  # where the sequence is divided (sequence parallelism)
        self.transformer["h"] = nn.ModuleDict({str(layer): self.block() for layer in self.part.layers})
        if self.part.last:
            self.transformer["ln_f"] = self.norm()
            self.lm_head = nn.Linear(config.hidden, vocabulary, bias=False)
        self.tie()

    def tie(self) -> None:
        """Make the output projection the embedding. Again after anything that gives modules new parameters."""
        if self.part.last and self.config.tied:
            self.lm_head.weight = self.transformer["wte"].weight

    def compile_regions(self) -> None:
        """Compile the blocks."""
        compile_regions(self.transformer["h"].values())

    def norm(self) -> nn.Module:
        raise NotImplementedError

    def block(self) -> nn.Module:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Token ids (b, s), or in a later stage the activations of the one before (b, s, hidden); returns activations,
        or in the last stage scores (b, s, padded vocabulary)."""
        if self.part.first:
            tokens = x
            x = self.transformer["wte"](tokens)
            if self.positions:
                x = x + self.transformer["wpe"](torch.arange(tokens.shape[1], device=tokens.device))
            x = self.transformer["drop"](x)
        for block in self.transformer["h"].values():
            x = block(x)
        if self.part.last:
            x = self.lm_head(self.transformer["ln_f"](x))
        return x


def total_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Sum of the cross-entropies over all tokens: scores (b, s, v), targets (b, s)."""
    return F.cross_entropy(scores.flatten(0, 1).float(), targets.flatten(), reduction="sum")
