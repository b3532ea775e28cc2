from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.tokens import (
    GPT2,
    HEADER,
    LLAMA3,
    Shard,
    SyntheticTokens,
    TokensError,
    TokenStream,
    open_shards,
    write_shard,
)


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [(GPT2, [0, 50256, 65535, 7]), (LLAMA3, [0, 128255, 2**32 - 1, 7]), (None, [50256, 198, 65535, 7])],
)
def test_tokens_are_read_as_written(tmp_path: Path, kind: tuple[int, int] | None, tokens: list[int]) -> None:
    write_shard(tmp_path / "t.bin", tokens, kind)
    shard = Shard(tmp_path / "t.bin")
    assert len(shard) == 4
    assert shard.read(0, 4).tolist() == tokens
    assert shard.read(1, 2).tolist() == tokens[1:3]


def test_the_layout_is_llm_c_s(tmp_path: Path) -> None:
    write_shard(tmp_path / "t.bin", [1, 2, 3])
    content = (tmp_path / "t.bin").read_bytes()
    assert struct.unpack_from("<256i", content)[:4] == (20240520, 1, 3, 0)
    assert content[HEADER:] == struct.pack("<3H", 1, 2, 3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"abc", "not whole uint16 tokens"),
        (
            struct.pack("<256i", 20240520, 1, 3, *[0] * 253) + b"\1\0",
            "says 3 tokens of 2 bytes, 2 bytes follow it: c",
        ),
        (struct.pack("<256i", 20240801, 7, 1, *[0] * 253) + b"\0" * 8, "8 bytes follow it: damaged"),
        (struct.pack("<256i", 20240520, 9, 3, *[0] * 253) + b"\0" * 6, "magic 20240520 version 9; token files have"),
        (struct.pack("<256i", 20240326, 3, 3, *[0] * 253) + b"\0" * 6, "magic 20240326 version 3; token files have"),
        (struct.pack("<3i", 20240520, 1, -5), "cut short|damaged"),
    ],
)
def test_a_file_that_is_not_whole_tokens_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "t.bin").write_bytes(content)
    with pytest.raises(TokensError, match=said) as caught:
        Shard(tmp_path / "t.bin")
    assert "t.bin" in str(caught.value)


def test_patterns_name_shards_in_order(tmp_path: Path) -> None:
    for name in ("b_1.bin", "b_0.bin", "a_0.bin"):
        write_shard(tmp_path / name, [1, 2, 3])
    assert [Path(shard.name).name for shard in open_shards(f"{tmp_path}/b_*.bin")] == ["b_0.bin", "b_1.bin"]
    with pytest.raises(TokensError, match="no file matches"):
        open_shards(f"{tmp_path}/c_*.bin")
    with pytest.raises(TokensError, match=r"c\.bin: No such file"):
        open_shards(f"{tmp_path}/c.bin")


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 12))
def test_sequences_cover_each_run_and_never_span_two(lengths: list[int], length: int) -> None:
    class Run:
        def __init__(self, number: int, count: int) -> None:
            self.name, self._base, self._count = f"run {number}", 1000 * number, count

        def __len__(self) -> int:
            return self._count

        def read(self, start: int, count: int) -> torch.Tensor:
            assert 0 <= start <= start + count <= self._count
            return torch.arange(start, start + count) + self._base

    runs = [Run(number, count) for number, count in enumerate(lengths)]
    expected = sum((count - 1) // length for count in lengths)
    if not expected:
        with pytest.raises(TokensError, match=f"no sequence of {length} tokens"):
            TokenStream(runs, length)
        return
    stream = TokenStream(runs, length)
    inputs, targets = stream.batch(range(len(stream)))
    assert len(stream) == expected == len(inputs)
    assert torch.equal(targets, inputs + 1)  # within one run, one further
    assert len(inputs.flatten().unique()) == expected * length
    for outside in (-1, expected):
        with pytest.raises(IndexError):
            stream.batch([outside])


def test_tokens_of_another_tokenizer_are_named(tmp_path: Path) -> None:
    write_shard(tmp_path / "t.bin", [1, 2, 3, 300, 5])
    stream = TokenStream(open_shards(str(tmp_path / "t.bin")), 2, vocabulary=256)
    assert stream.batch([0])[0].tolist() == [[1, 2]]
    with pytest.raises(TokensError, match=r"t\.bin: token 3 is 300, the model knows 0 … 255"):
        stream.batch([1])


def test_made_up_tokens_depend_on_the_seed_alone_and_are_the_same_wherever_they_are_read() -> None:
    whole = SyntheticTokens(512, 1000, seed=3).read(0, 1000)
    parts = torch.cat([SyntheticTokens(512, 1000, seed=3).read(start, 125) for start in range(0, 1000, 125)])
    assert torch.equal(whole, parts)
    assert not torch.equal(whole, SyntheticTokens(512, 1000, seed=4).read(0, 1000))
    assert 0 <= int(whole.min()) <= int(whole.max()) < 512
    with pytest.raises(TokensError, match="too small"):
        SyntheticTokens(8, 1000)


def test_made_up_tokens_can_be_learned() -> None:
    """The next token follows from the present one, but where a walk ends."""
    tokens = SyntheticTokens(512, 4096).read(0, 4096)
    followers: dict[int, set[int]] = {}
    for position, (token, following) in enumerate(zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True)):
        if (position + 1) % 64:
            followers.setdefault(token, set()).add(following)
    assert len(followers) == 32
    assert all(len(found) == 1 for found in followers.values())
