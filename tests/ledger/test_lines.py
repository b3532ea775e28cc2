"""The scanner: which lines it hands out, and that chunks do not matter."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.ledger.lines import AHEAD, WINDOW, Line, LineScanner


def scan(*chunks: bytes, markers: tuple[bytes, ...] = (b"MARK",)) -> list[Line]:
    scanner = LineScanner(markers)
    found = [line for chunk in chunks for line in scanner.feed(chunk)]
    return found + list(scanner.close())


def test_only_marked_lines_come_out_with_their_numbers():
    found = scan(b"noise\nMARK one\n\nnoise\nx MARK two\nMARK three")
    assert [(line.number, line.text) for line in found] == [(2, b"MARK one"), (5, b"x MARK two"), (6, b"MARK three")]


def test_a_line_with_two_markers_comes_once():
    found = scan(b"MARK and SIGN and MARK\n", markers=(b"MARK", b"SIGN"))
    assert [line.text for line in found] == [b"MARK and SIGN and MARK"]


@settings(deadline=None, max_examples=200)
@given(data=st.data(), pieces=st.lists(st.sampled_from([b"MARK", b"\n", b"MA", b"RK", b"x", b"\r\n", b"\0", b"\xff"])))
def test_any_split_gives_the_same_lines(data: st.DataObject, pieces: list[bytes]):
    stream = b"".join(pieces)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert scan(*chunks) == scan(stream)


@pytest.mark.parametrize("size", [1000, 65536, WINDOW, WINDOW + 7, 10 * WINDOW])
def test_a_very_long_line_comes_in_the_same_windows_however_it_is_cut(size: int):
    line = b"." * (WINDOW - 2) + b"MARK across the edge" + b"." * WINDOW + b"MARK" + b"." * (AHEAD + 5) + b"MARK end"
    stream = b"first\n" + line + b"\nMARK after\n"
    whole = scan(stream)
    assert scan(*(stream[at : at + size] for at in range(0, len(stream), size))) == whole
    starts = [text for found in whole for text in _begins(found)]
    assert len(starts) == 4, "each marker begins in exactly one window"
    assert [found.number for found in whole] == [2, 2, 2, 3] or [found.number for found in whole] == [2, 2, 3]


def _begins(line: Line) -> list[int]:
    found, at = [], line.text.find(b"MARK", line.start)
    while 0 <= at < line.end:
        found.append(at)
        at = line.text.find(b"MARK", at + 1)
    return found


def test_a_line_without_end_does_not_grow_memory():
    scanner = LineScanner((b"MARK",))
    chunk = b"." * WINDOW
    tracemalloc.start()
    for _ in range(64):
        assert not list(scanner.feed(chunk))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * WINDOW
    assert [line.number for line in scan(b"." * 3 * WINDOW, b"MARK\n")] == [1]


def test_feeding_byte_by_byte_is_not_quadratic():
    scanner = LineScanner((b"MARK",))
    for _ in range(200_000):
        assert not list(scanner.feed(b"."))
    assert len(list(scanner.feed(b"MARK\n"))) == 1


def test_escapes_are_removed_without_losing_the_window():
    line = Line(1, b"\x1b[1mab\x1b[0mMARK\x1b[0mcd", 10, 14 + 4)
    clean = line.without_escapes()
    assert clean.text == b"abMARKcd"
    assert clean.text[clean.start : clean.end] == b"MARK"
