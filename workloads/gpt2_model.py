"""GPT-2 (Radford et al., 2019) in plain PyTorch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from workloads.decoder import Attention, Block, Decoder, DecoderConfig

SIZES = {
    # Heads and layers enough for four tensor- or pipeline-parallel ranks, with two virtual stages each.
    "tiny": DecoderConfig(vocabulary=128, hidden=64, layers=8, heads=8, max_sequence_length=256),
    "124M": DecoderConfig(vocabulary=50257, hidden=768, layers=12, heads=12, max_sequence_length=1024),
}


class Mlp(nn.Module):  # type: ignore[misc]
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.hidden, config.inner)
        self.c_proj = nn.Linear(config.inner, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Gpt2(Decoder):
    positions = True

    def norm(self) -> nn.Module:
        return nn.LayerNorm(self.config.hidden, eps=self.config.norm_eps)

    def block(self) -> nn.Module:
        return Block(self.norm, Attention(self.config, bias=True), Mlp(self.config))
