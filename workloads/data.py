"""Pre-training data made up on the fly: deterministic, needs no download, and can be learned.

The language: the words are divided into topics, and the words of a topic stand in a fixed cyclic order. A text walks
along its topic's cycle, so a masked word follows from its neighbours, and a sentence that belongs to another topic is
recognisably not the next one. Everything is a function of (seed, epoch, sample), never of the rank or the number of
ranks, so that any division of the work trains on the same data.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

PAD, CLS, SEP, MASK = range(4)
FIRST_WORD = 4
TOPICS, WORDS_PER_TOPIC = 4, 8
WORDS = TOPICS * WORDS_PER_TOPIC
VOCABULARY = FIRST_WORD + WORDS
"""Ids that occur in the data; a model's vocabulary may be larger."""
MIN_SEQ_LEN = 8
MASKED_FRACTION = 0.15

# Streams of random numbers, so that no two decisions about a sample share one.
_ORDER, _LANGUAGE, _NEXT, _TOPIC, _OTHER, _START, _RESTART, _SELECT, _REPLACE, _WORD = range(10)


class Batch(NamedTuple):
    """b samples of s tokens with p predictions each. Shapes never vary within a run (XLA compiles per shape)."""

    tokens: Tensor
    """(b, s) ids, masked."""
    segments: Tensor
    """(b, s) 0 in the first sentence, 1 in the second."""
    positions: Tensor
    """(b, p) where to predict."""
    labels: Tensor
    """(b, p) the ids that belong there."""
    is_next: Tensor
    """(b,) 1 where the second sentence follows the first."""
    weights: Tensor
    """(b,) this sample's share in the global batch's mean loss; 0 for filling."""

    def to(self, device: torch.device) -> Batch:
        return Batch(*(moved(tensor, device) for tensor in self))


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """On `device`, without waiting for what it is busy with: CUDA copies by itself only from pinned memory."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


T = TypeVar("T")


class Ahead(Iterator[T]):
    """Items of an iterator, of which the next can be made early: `prepare` does, when there is time for it."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._made: list[T] = []

    def prepare(self) -> None:
        if not self._made:
            self._made.extend(itertools.islice(self._items, 1))

    def __next__(self) -> T:
        return self._made.pop() if self._made else next(self._items)


def predictions_per_sequence(seq_len: int) -> int:
    return max(1, round((seq_len - 3) * MASKED_FRACTION))


@dataclass(frozen=True)
class Slice:
    """One rank's part of one global batch."""

    indices: tuple[int, ...]
    """The rank's samples of the dataset; at most its batch size, possibly none in the last step of an epoch."""
    global_count: int
    """How many samples the global batch has over all ranks."""


@dataclass(frozen=True)
class Sampler:
    """Divides a dataset of `samples` among `world` ranks, by global batches of world × `batch_size` samples.

    In every epoch each sample is visited exactly once by exactly one rank, whatever the sizes: the last global batch
    may be short, and is then divided as evenly as it goes. The order depends on seed and epoch only.
    """

    samples: int
    batch_size: int
    rank: int
    world: int
    seed: int = 0

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.world

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // self.global_batch)

    def epoch(self, epoch: int) -> Iterator[Slice]:
        order = shuffled(self.samples, self.seed, epoch).tolist()
        for first in range(0, self.samples, self.global_batch):
            batch = order[first : first + self.global_batch]
            start, stop = (len(batch) * rank // self.world for rank in (self.rank, self.rank + 1))
            yield Slice(tuple(batch[start:stop]), len(batch))


@dataclass(frozen=True)
class GlobalBatches:
    """The endless sequence of global batches over a dataset: what is trained on, whoever shares the work.

    Epoch after epoch, each in an order of its own that depends on `seed` only, is laid end to end, and the global
    batches are cut from that. So each sample comes once per epoch, every batch is full whatever the sizes (it may reach
    into the next epoch), and how far a training got is one number: how many global batches it consumed. Neither that
    number nor any batch depends on how many ranks take part, so a training resumes at another world size.
    """

    dataset_size: int
    """Samples."""
    global_batch: int
    """Samples of all ranks together per step."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dataset_size < 1 or self.global_batch < 1:
            raise ValueError(f"no batches of {self.global_batch} from a dataset of {self.dataset_size} samples")

    def batch(self, n: int) -> list[int]:
        """The samples of global batch `n`, counted from 0 since the very beginning."""
        return self.slice(n, 0, 1)

    def slice(self, n: int, dp_rank: int, dp_world: int) -> list[int]:
        """What rank `dp_rank` of `dp_world` data-parallel ranks takes of global batch `n`: consecutive samples, as many
        as anyone, give or take one. All slices in order are the batch."""
        if n < 0 or not 0 <= dp_rank < dp_world:
            raise ValueError(f"no global batch {n} for data-parallel rank {dp_rank} of {dp_world}")
        start, stop = (self.global_batch * rank // dp_world for rank in (dp_rank, dp_rank + 1))
        first, end = n * self.global_batch + start, n * self.global_batch + stop
        samples: list[int] = []
        while first < end:
            epoch, at = divmod(first, self.dataset_size)
            part = self._order(epoch)[at : at + end - first]
            samples += part.tolist()
            first += len(part)
        return samples

    def _order(self, epoch: int) -> Tensor:
        return _order(self.dataset_size, self.seed, epoch)


@lru_cache(maxsize=2)  # a batch reaches over an epoch's end, and rarely further
def _order(count: int, seed: int, epoch: int) -> Tensor:
    return shuffled(count, seed, epoch)


def shuffled(count: int, seed: int, epoch: int) -> Tensor:
    """The numbers 0 … count−1 (count,) in the order of this epoch."""
    return torch.argsort(random_bits(seed, _ORDER, torch.arange(count), epoch), stable=True)


@dataclass(frozen=True)
class Corpus:
    """Makes batches of masked sentence pairs: `[CLS] first [SEP] second [SEP]`, always `seq_len` tokens."""

    seq_len: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seq_len < MIN_SEQ_LEN:
            raise ValueError(f"a sentence pair needs at least {MIN_SEQ_LEN} tokens, not {self.seq_len}")

    def batch(self, part: Slice, epoch: int, batch_size: int) -> Batch:
        """The slice's samples as a batch of `batch_size` rows.

        A short slice is filled up with samples of weight 0. So shapes stay the same and no rank has an empty batch, and
        the sum of the ranks' losses is exactly the mean over the samples of the global batch.
        """
        filling = batch_size - len(part.indices)
        index = torch.tensor([*part.indices, *[0] * filling], dtype=torch.int64)
        weights = torch.tensor([1.0 / part.global_count] * len(part.indices) + [0.0] * filling)
        tokens, segments, is_next = self.pairs(index)
        tokens, positions, labels = self.masked(tokens, index, epoch)
        return Batch(tokens, segments, positions, labels, is_next, weights)

    def pairs(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sentence pairs for the samples `index` (b,): tokens (b, s), segments (b, s), is_next (b,)."""
        length = (self.seq_len - 3) // 2
        rest = self.seq_len - 3 - length
        is_next = self._draw(_NEXT, index, 2)
        topic = self._draw(_TOPIC, index, TOPICS)
        other = (topic + 1 + self._draw(_OTHER, index, TOPICS - 1)) % TOPICS
        start = self._draw(_START, index, WORDS_PER_TOPIC)
        first = self._walk(topic, start, length)
        second = torch.where(
            is_next[:, None] == 1,
            self._walk(topic, start + length, rest),
            self._walk(other, self._draw(_RESTART, index, WORDS_PER_TOPIC), rest),
        )
        cls, sep = torch.full_like(index, CLS)[:, None], torch.full_like(index, SEP)[:, None]
        tokens = torch.cat([cls, first, sep, second, sep], dim=1)
        segments = (torch.arange(self.seq_len) >= length + 2).long().expand_as(tokens).contiguous()
        return tokens, segments, is_next

    def masked(self, tokens: Tensor, index: Tensor, epoch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Hide words as BERT does: of those chosen 80 % become [MASK], 10 % another word, 10 % stay.

        Returns the masked tokens (b, s), the chosen positions (b, p) in order, and the words there (b, p).
        """
        cell = index[:, None] * self.seq_len + torch.arange(self.seq_len)
        score = random_bits(self.seed, _SELECT, cell, epoch)
        score[tokens < FIRST_WORD] = torch.iinfo(torch.int64).max  # never [CLS] or [SEP]
        positions = torch.argsort(score, dim=1, stable=True)[:, : predictions_per_sequence(self.seq_len)]
        positions = positions.sort(dim=1).values
        labels = tokens.gather(1, positions)
        chosen = cell.gather(1, positions)
        fate = random_bits(self.seed, _REPLACE, chosen, epoch) % 10
        word = FIRST_WORD + random_bits(self.seed, _WORD, chosen, epoch) % WORDS
        shown = torch.where(fate < 8, torch.full_like(labels, MASK), torch.where(fate == 8, word, labels))
        return tokens.scatter(1, positions, shown), positions, labels

    def _draw(self, stream: int, index: Tensor, below: int) -> Tensor:
        return random_bits(self.seed, stream, index) % below

    def _walk(self, topic: Tensor, start: Tensor, length: int) -> Tensor:
        """`length` words along each topic's cycle, (b, length). Which words follow each other depends on the seed."""
        cycle = torch.argsort(random_bits(self.seed, _LANGUAGE, torch.arange(WORDS)), stable=True)
        place = (start[:, None] + torch.arange(length)) % WORDS_PER_TOPIC
        return FIRST_WORD + cycle[topic[:, None] * WORDS_PER_TOPIC + place]


def random_bits(seed: int, stream: int, counter: Tensor, epoch: int = 0) -> Tensor:
    """Non-negative 63-bit random numbers, one per element of `counter`: SplitMix64's output function (Steele, Lea and
    Flood, "Fast splittable pseudorandom number generators", 2014), applied to each part of the key in turn.

    Counter-based, so that any sample can be made by itself, in any order, on any rank, all of a batch at once.
    """
    key = torch.zeros_like(counter)
    for part in (seed, stream, epoch, counter):
        key = _mix(key + part + _GOLDEN)
    return key & 0x7FFF_FFFF_FFFF_FFFF


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift right: torch's is arithmetic on int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """The int64 with the same 64 bits; multiplication wraps alike."""
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
