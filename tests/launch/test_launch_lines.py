"""Whole lines, whatever the pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workloads.launch.lines import CUT_MARK, LINE_LIMIT, LineBuffer, prefixed

LIMIT = 8
pieces = st.lists(
    st.binary(min_size=1, max_size=LIMIT) | st.sampled_from([b"\n", b"\n\n", b"ab\ncd", b"\r", b"x" * LIMIT])
)


def run(parts: list[bytes], limit: int = LINE_LIMIT, mark: bytes = CUT_MARK) -> list[bytes]:
    buffer = LineBuffer(limit, mark)
    return [block for part in parts if (block := buffer.feed(part))] + [block for block in [buffer.flush()] if block]


@given(pieces)
def test_every_block_is_whole_lines_and_nothing_is_lost_or_moved(parts: list[bytes]) -> None:
    blocks = run(parts)
    assert all(block.endswith(b"\n") for block in blocks)
    whole = b"".join(parts)
    assert b"".join(blocks) == whole + (b"" if whole.endswith(b"\n") or not whole else b"\n")


@given(pieces)
def test_longer_lines_are_cut_once_and_marked_and_the_others_are_untouched(parts: list[bytes]) -> None:
    lines = b"".join(parts).split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    expected = [line if len(line) <= LIMIT else line[:LIMIT] + b"<cut>" for line in lines]
    assert b"".join(run(parts, LIMIT, b"<cut>")) == b"".join(line + b"\n" for line in expected)


def test_a_line_of_exactly_the_limit_passes_and_a_byte_more_is_cut() -> None:
    exact = b"x" * LINE_LIMIT
    assert run([exact, b"\n"]) == [exact + b"\n"]
    assert run([exact, b"x", b"\nnext\n"]) == [exact + CUT_MARK + b"\n", b"next\n"]


def test_a_line_that_never_ends_does_not_grow_in_memory() -> None:
    buffer = LineBuffer()
    piece = b"y" * 65536
    out = [buffer.feed(piece) for _ in range(100)]
    assert sum(map(len, out)) == LINE_LIMIT + len(CUT_MARK) + 1
    assert buffer.flush() == b""


def test_the_usual_piece_is_passed_on_uncopied() -> None:
    piece = b"one\ntwo\n"
    assert LineBuffer().feed(piece) is piece


def test_the_prefix_stands_before_every_line_and_only_there() -> None:
    assert prefixed(b"a\n\nb\r\n", b"[r0]:") == b"[r0]:a\n[r0]:\n[r0]:b\r\n"
    assert prefixed(b"", b"[r0]:") == b""
    assert prefixed(b"a\n", b"") == b"a\n"
