"""BERT for pre-training (Devlin et al., 2018) in plain PyTorch: encoder, masked words, next sentence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.compiling import compile_regions
from workloads.data import VOCABULARY


@dataclass(frozen=True)
class BertConfig:
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    max_seq_len: int = 512
    dropout: float = 0.0
    gelu: str = "none"
    """How GELU is approximated: `none`, as in the paper, or `tanh`, which is cheaper."""

    @property
    def padded_vocabulary(self) -> int:
        """A multiple of 64: matrix units work on tiles, and the last projection is the largest of all."""
        return -(-self.vocabulary // 64) * 64


SIZES = {
    "tiny": BertConfig(vocabulary=VOCABULARY, hidden=128, layers=2, heads=2),
    "base": BertConfig(vocabulary=30522, hidden=768, layers=12, heads=12),
}


class Layer(nn.Module):  # type: ignore[misc]
    """Self-attention and feed-forward, each with residual and normalisation after it, as in the paper."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.gelu = config.gelu
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.attended = nn.Linear(config.hidden, config.hidden)
        self.norm_attention = nn.LayerNorm(config.hidden, eps=1e-12)
        self.up = nn.Linear(config.hidden, 4 * config.hidden)
        self.down = nn.Linear(4 * config.hidden, config.hidden)
        self.norm_feed_forward = nn.LayerNorm(config.hidden, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, hidden // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        rate = self.dropout if self.training else 0.0
        # Sequences are always full, so there is no padding to mask.
        attention = F.scaled_dot_product_attention(query, key, value, dropout_p=rate)
        attention = self.attended(attention.transpose(1, 2).reshape(batch, length, hidden))
        x = self.norm_attention(x + F.dropout(attention, rate))
        return self.norm_feed_forward(x + F.dropout(self.down(F.gelu(self.up(x), approximate=self.gelu)), rate))


class Bert(nn.Module):  # type: ignore[misc]
    """Returns the pre-training loss, weighted by sample."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.padded_vocabulary, config.hidden)
        self.places = nn.Embedding(config.max_seq_len, config.hidden)
        self.segments = nn.Embedding(2, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=1e-12)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.pooler = nn.Linear(config.hidden, config.hidden)
        self.next_sentence = nn.Linear(config.hidden, 2)
        self.transform = nn.Linear(config.hidden, config.hidden)
        self.norm_transform = nn.LayerNorm(config.hidden, eps=1e-12)
        self.word_bias = nn.Parameter(torch.zeros(config.padded_vocabulary))
        self.apply(_initialise)

    def compile_regions(self) -> None:
        """Compile the layers and what is between them; the words are looked up outside (see `embed`)."""
        compile_regions(self.layers, self, ("embed", "loss"))

    def encode(self, tokens: Tensor, segments: Tensor) -> Tensor:
        """(b, s) ids and segments → (b, s, hidden)."""
        # Not compiled: compiled code adds up the gradients of equal words by atomic additions, one after the other.
        x = self.embed(self.words(tokens), segments)
        for layer in self.layers:
            x = layer(x)
        return x

    def embed(self, words: Tensor, segments: Tensor) -> Tensor:
        """The words' embeddings (b, s, hidden) with those of segments and places."""
        # A choice between two rows, not a look-up: its gradient is a plain sum.
        first, second = self.segments.weight
        segment = torch.where(segments[:, :, None] == 0, first, second)
        x = self.norm(words + segment + self.places.weight[: words.shape[1]])
        return F.dropout(x, self.config.dropout if self.training else 0.0)

    def heads(self, encoded: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Word scores (b, p, padded vocabulary) at `positions` (b, p) only, and next-sentence scores (b, 2)."""
        index = positions[:, :, None].expand(-1, -1, encoded.shape[-1])
        x = F.gelu(self.transform(encoded.gather(1, index)), approximate=self.config.gelu)
        x = self.norm_transform(x)
        words = F.linear(x, self.words.weight, self.word_bias)
        return words, self.next_sentence(torch.tanh(self.pooler(encoded[:, 0])))

    def forward(
        self, tokens: Tensor, segments: Tensor, positions: Tensor, labels: Tensor, is_next: Tensor, weights: Tensor
    ) -> Tensor:
        """Σ weight · (mean masked-word loss + next-sentence loss) over the batch's samples; see `data.Batch`."""
        return self.loss(self.encode(tokens, segments), positions, labels, is_next, weights)

    def loss(self, encoded: Tensor, positions: Tensor, labels: Tensor, is_next: Tensor, weights: Tensor) -> Tensor:
        words, follows = self.heads(encoded, positions)
        by_word = F.cross_entropy(words.flatten(0, 1).float(), labels.flatten(), reduction="none")
        by_sample = by_word.view_as(labels).mean(1) + F.cross_entropy(follows.float(), is_next, reduction="none")
        return (weights * by_sample).sum()


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
