"""Where the literal markers are: one by one and in one pass, with the same result as the plainest search."""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.ledger import markers as ways
from allranks.ledger.formats import all_formats
from allranks.ledger.markers import Markers, in_one_pass, one_by_one
from tests.ledger import samples as s
from tests.ledger.test_properties import STREAMS, contents

ALL = tuple(dict.fromkeys(marker for form in all_formats() for marker in form.markers))
SOME = st.lists(
    st.sampled_from([b"AB|C", b"CD", b"D|", b"|", b"B|", b"B|C", b"\0", b"\xff\0A", b"xxxxxxxx"]), min_size=1
)
DATA = st.binary(max_size=400) | st.lists(
    st.sampled_from([b"AB|", b"CD", b"C", b"\n", b"D|E", b"\0", b"\xff", b"A", b"x" * 40, b"|"])
).map(b"".join)


def passing(markers: Sequence[bytes]) -> ways.Search:
    pytest.importorskip("hyperscan")
    search = in_one_pass(markers)
    assert search is not None
    return search


@pytest.fixture(params=[one_by_one, passing], ids=["one by one", "in one pass"])
def made(request: pytest.FixtureRequest) -> Callable[[Sequence[bytes]], Markers]:
    return lambda markers: Markers(markers, request.param(markers))


def marked(data: bytes, markers: Sequence[bytes], low: int, high: int) -> list[tuple[int, int]]:
    """The reference."""
    begun, found = low, []
    for line in data[low:high].split(b"\n"):
        if any(marker in line for marker in markers):
            found.append((begun, begun + len(line)))
        begun += len(line) + 1
    return found


@pytest.mark.parametrize("block", [3, 50, ways._BLOCK])
@settings(deadline=None, max_examples=100)
@given(data=DATA, markers=SOME, bounds=st.tuples(st.integers(0, 50), st.integers(0, 50)))
def test_markers_are_found_in_the_lines_that_hold_them(
    made: Callable[[Sequence[bytes]], Markers], block: int, data: bytes, markers: list[bytes], bounds: tuple[int, int]
):
    low, high = min(bounds[0], len(data)), max(len(data) - bounds[1], 0)
    high = data.find(b"\n", high) if data.find(b"\n", high) >= 0 else len(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ways, "_BLOCK", block)
        assert made(markers).lines(data, low, max(low, high)) == marked(data, markers, low, max(low, high))


@settings(deadline=None, max_examples=100)
@given(text=DATA, markers=SOME, start=st.integers(0, 60), size=st.integers(0, 400))
def test_a_marker_belongs_to_where_it_begins(
    made: Callable[[Sequence[bytes]], Markers], text: bytes, markers: list[bytes], start: int, size: int
):
    text = text.replace(b"\n", b"")
    start = min(start, len(text))
    end = min(start + size, len(text))
    begins = any(text.startswith(marker, at) for at in range(start, end) for marker in markers)
    assert made(markers).within(text, start, end) == begins


def test_markers_are_found_in_large_blocks_of_any_bytes(made: Callable[[Sequence[bytes]], Markers]):
    rows = [b"%d: ordinary words of a log, again and again" % number for number in range(4000)]
    rows[17] = rows[3999] = b"x| train loss y"
    rows[2000] = b"local_throughput=1 and Traceback (most recent call last)"
    data = b"\n".join(rows)
    assert [data[begin:end] for begin, end in made(ALL).lines(data, 0, len(data))] == [rows[17], rows[2000], rows[3999]]


def test_each_marker_of_the_formats_is_found(made: Callable[[Sequence[bytes]], Markers]):
    data = b"\n".join(b"before " + marker + b" after" for marker in ALL)
    assert len(made(ALL).lines(data, 0, len(data))) == len(ALL)


@pytest.mark.parametrize("name", STREAMS)
def test_all_that_is_concluded_is_the_same_with_and_without_the_package(name: str, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("hyperscan")
    stream = (s.NOISE + STREAMS[name]).encode()
    chunks = [stream[at : at + 700] for at in range(0, len(stream), 700)]
    concluded = []
    for package in (sys.modules["hyperscan"], None):
        monkeypatch.setitem(sys.modules, "hyperscan", package)
        monkeypatch.setattr(ways, "_WORTH", 1)
        ways.shared.cache_clear()
        concluded.append(contents(*chunks))
    ways.shared.cache_clear()
    assert concluded[0] == concluded[1]


def test_the_package_is_taken_once_there_is_enough_to_look_through(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("hyperscan")
    taken: list[Sequence[bytes]] = []
    monkeypatch.setattr(ways, "in_one_pass", lambda markers: taken.append(markers) or in_one_pass(markers))
    markers = Markers([b"MARK"])
    block = b"." * (ways._WORTH // 4) + b" MARK\n"
    found = [markers.lines(block, 0, len(block)) for _ in range(8)]
    assert found == [[(0, len(block) - 1)]] * 8
    assert taken == [(b"MARK",)]


def test_a_processor_that_the_package_does_not_know_is_no_error(monkeypatch: pytest.MonkeyPatch):
    hyperscan = pytest.importorskip("hyperscan")

    class Database:
        def __init__(self, **_: object) -> None: ...

        def compile(self, **_: object) -> None:
            raise hyperscan.ArchitectureError("error code -11")

    monkeypatch.setattr(hyperscan, "Database", Database)
    assert in_one_pass([b"MARK"]) is None


@settings(deadline=None, max_examples=100)
@given(text=DATA, markers=SOME)
def test_a_line_is_told_which_markers_it_holds(
    made: Callable[[Sequence[bytes]], Markers], text: bytes, markers: list[bytes]
):
    text = text.replace(b"\n", b"")
    assert made(markers).of(text) == {marker for marker in markers if marker in text}


def test_without_markers_nothing_is_found_however_much_there_is():
    markers, block = Markers([]), b"." * ways._WORTH + b"\n"
    assert [markers.lines(block, 0, len(block) - 1) for _ in range(2)] == [[], []]


def test_several_threads_search_at_once(made: Callable[[Sequence[bytes]], Markers]):
    markers = made([b"MARK"])
    blocks = [b"noise\n" * 20_000 + b"MARK %d\n" % number for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        search = partial(markers.lines, low=0)
        found = list(pool.map(lambda block: search(block, high=len(block)), blocks * 4))
    assert found == [[(120_000, len(block) - 1)] for block in blocks] * 4
