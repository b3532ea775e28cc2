"""Token streams for language models: shards of real tokens, memory-mapped, or a stream made up on the fly."""

from __future__ import annotations

import bisect
import glob
import mmap
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from workloads.data import random_bits

HEADER = 256 * 4
"""Bytes before the tokens in llm.c's files: 256 int32, of which the first three say magic, version, tokens."""
GPT2, LLAMA3 = (20240520, 1), (20240801, 7)
"""Magic and version of llm.c's token files: of uint16, and of uint32."""
_FORMATS = {GPT2: 2, LLAMA3: 4}
# llm.c numbers its kinds of files by date. Read as raw uint16 tokens, such a number begins with one that GPT-2's
# vocabulary (50 257) does not have, so a raw file cannot be mistaken for one.
_LLMC = range(20240000, 20250000)
_WORDS, _TOPICS, _WALK = 32, 4, 64
_CYCLES, _TOPIC, _START = range(100, 103)  # streams of random numbers; data.py has its own


class TokensError(ValueError):
    """Token files that cannot be trained on; the message says which, what is wrong and what would be right."""


class Tokens(Protocol):
    """A run of tokens that can be read anywhere."""

    name: str

    def __len__(self) -> int: ...

    def read(self, start: int, count: int) -> Tensor:
        """Tokens start … start+count−1 as int64, (count,). The range must lie inside."""
        ...


class TokenStream:
    """A dataset of sequences over one or more runs of tokens. Sample i is sequence i and, as targets, the same tokens
    one further. Sequences follow each other without overlap (but for the last target) and never span two runs."""

    def __init__(
        self, source: Tokens | Sequence[Tokens], sequence_length: int, *, vocabulary: int | None = None
    ) -> None:
        """`vocabulary`: how many ids the model has; a token beyond is an error when it is read.

        Raises TokensError where no run is long enough for one sequence.
        """
        runs = list(source) if isinstance(source, Sequence) else [source]
        self.sequence_length = sequence_length
        self._vocabulary = vocabulary
        self._runs = [run for run in runs if len(run) > sequence_length]
        self._firsts: list[int] = []
        self._size = 0
        for run in self._runs:
            self._firsts.append(self._size)
            self._size += (len(run) - 1) // sequence_length
        if not self._size:
            held = ", ".join(f"{run.name}: {len(run)}" for run in runs)
            raise TokensError(f"no sequence of {sequence_length} tokens and its targets ({held} tokens)")

    def __len__(self) -> int:
        return self._size

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets (b, s), int64, of the given samples. Raises TokensError for an id outside the vocabulary,
        IndexError for a sample outside the dataset."""
        if not indices:
            empty = torch.empty(0, self.sequence_length, dtype=torch.int64)
            return empty, empty
        rows = torch.stack([self._sequence(index) for index in indices])
        return rows[:, :-1], rows[:, 1:]

    def _sequence(self, index: int) -> Tensor:
        if not 0 <= index < self._size:
            raise IndexError(f"sequence {index} of {self._size}")
        which = bisect.bisect_right(self._firsts, index) - 1
        run, start = self._runs[which], (index - self._firsts[which]) * self.sequence_length
        tokens = run.read(start, self.sequence_length + 1)
        if self._vocabulary is not None and int(tokens.max()) >= self._vocabulary:
            at = start + int(tokens.argmax())
            raise TokensError(
                f"{run.name}: token {at} is {int(tokens.max())}, the model knows 0 … {self._vocabulary - 1}: "
                "these tokens are another tokenizer's"
            )
        return tokens


class Shard:
    """One file of tokens, memory-mapped: what is not read costs no memory, and processes of a node share what is."""

    def __init__(self, path: Path | str) -> None:
        """Raises TokensError for a file that is neither llm.c's nor nanoGPT's, or not whole."""
        self.name = str(path)
        try:
            with Path(path).open("rb") as file:
                size = file.seek(0, 2)
                file.seek(0)
                header = file.read(HEADER)
                self._width, offset, self._count = _layout(self.name, header, size)
                # Copy on write, so that torch may wrap it; nothing is ever written.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise TokensError(f"{path}: {error.strerror or error}") from error
        if sys.byteorder != "little":
            raise TokensError(f"{path}: token files are little-endian, this machine is not")
        dtype = torch.int16 if self._width == 2 else torch.int32  # unsigned ones lack operations
        self._tokens = torch.frombuffer(mapped, dtype=dtype, offset=offset, count=self._count)

    def __len__(self) -> int:
        return self._count

    def read(self, start: int, count: int) -> Tensor:
        return self._tokens[start : start + count].long() & ((1 << 8 * self._width) - 1)


def _layout(name: str, header: bytes, size: int) -> tuple[int, int, int]:
    """Bytes per token, offset of the first, and their number."""
    if size < 2:
        raise TokensError(f"{name}: the file is empty")
    magic, version, count = struct.unpack_from("<3i", header) if len(header) >= 12 else (0, 0, 0)
    if magic not in _LLMC:
        if size % 2:
            raise TokensError(f"{name}: {size} bytes are not whole uint16 tokens, and there is no llm.c header")
        return 2, 0, size // 2
    width = _FORMATS.get((magic, version))
    if width is None:
        known = ", ".join(f"{m} version {v} (uint{8 * w})" for (m, v), w in _FORMATS.items())
        raise TokensError(f"{name}: llm.c magic {magic} version {version}; token files have {known}")
    held = (size - HEADER) // width
    if count < 1 or size != HEADER + count * width:
        what = "cut short" if held < count else "damaged"
        raise TokensError(
            f"{name}: the header says {count} tokens of {width} bytes, {max(0, size - HEADER)} bytes follow it: {what}"
        )
    return width, HEADER, count


def open_shards(pattern: str) -> list[Shard]:
    """The files that a path or a pattern (* ? [ ]) names, in order of their names. Raises TokensError for none."""
    paths = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]  # noqa: PTH207
    if not paths:
        raise TokensError(f"{pattern}: no file matches")
    return [Shard(path) for path in paths]


class SyntheticTokens:
    """A stream that needs no download and can be learned: of the vocabulary 32 ids occur, divided into topics, and the
    ids of a topic stand in a fixed cyclic order that the text walks along. Any part is a function of the seed alone."""

    def __init__(self, vocabulary: int, tokens: int, seed: int = 0) -> None:
        if vocabulary < _WORDS:
            raise TokensError(f"the made-up text has {_WORDS} words; a vocabulary of {vocabulary} is too small")
        self.name = "made-up tokens"
        self._count, self._seed = tokens, seed
        chosen = torch.argsort(random_bits(seed, _CYCLES, torch.arange(vocabulary)), stable=True)[:_WORDS]
        self._cycles = chosen.view(_TOPICS, _WORDS // _TOPICS)

    def __len__(self) -> int:
        return self._count

    def read(self, start: int, count: int) -> Tensor:
        position = torch.arange(start, start + count)
        walk = position // _WALK
        topic = random_bits(self._seed, _TOPIC, walk) % _TOPICS
        words = self._cycles.shape[1]
        place = (random_bits(self._seed, _START, walk) + position % _WALK) % words
        return self._cycles[topic, place]


def write_shard(path: Path | str, tokens: Sequence[int], kind: tuple[int, int] | None = GPT2) -> None:
    """Write a shard: `kind` GPT2 or LLAMA3 as llm.c does, None for raw uint16 as nanoGPT does."""
    width = _FORMATS[kind] if kind else 2
    header = struct.pack("<3i", *kind, len(tokens)).ljust(HEADER, b"\0") if kind else b""
    Path(path).write_bytes(header + struct.pack(f"<{len(tokens)}{'H' if width == 2 else 'I'}", *tokens))
