"""Resuming a cut log: with values, and against a model of how a kubelet serves logs, cut anywhere."""

from __future__ import annotations

from datetime import datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.cluster.tail import Tail, nanoseconds

BASE = 1_764_497_325


def stamp(ns: int) -> bytes:
    whole = datetime.fromtimestamp(BASE + ns // 10**9).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    offset = datetime.fromtimestamp(BASE).astimezone().strftime("%z")
    return f"{whole}.{ns % 10**9:09d}{offset[:3]}:{offset[3:]}".encode()


def serve(lines: list[tuple[int, bytes]], since: str | None) -> bytes:
    """What the API answers: every line from `since` on, with its time."""
    start = 0 if since is None else int(datetime.fromisoformat(since).timestamp()) * 10**9
    return b"".join(stamp(ns) + b" " + text for ns, text in lines if BASE * 10**9 + ns >= start)


def read(tail: Tail, body: bytes, pieces: int = 7) -> bytes:
    tail.begin()
    return b"".join(tail.feed(body[at : at + pieces]) for at in range(0, len(body), pieces))


def test_times_are_stripped_whatever_the_chunks() -> None:
    lines = [(1, b"a\n"), (2, b"\n"), (3, b"2025-11-30T10:00:00Z not a stamp of ours\n"), (4, b"last")]
    body = serve(lines, None)
    for pieces in range(1, len(body) + 1):
        assert read(Tail(), body, pieces) == b"a\n\n2025-11-30T10:00:00Z not a stamp of ours\nlast"


def test_lines_of_the_same_instant_are_counted() -> None:
    lines = [(5, b"one\n"), (5, b"two\n"), (5, b"three\n")]
    tail = Tail()
    assert read(tail, serve(lines[:2], None)) == b"one\ntwo\n"
    assert read(tail, serve(lines, tail.since)) == b"three\n"


def test_a_line_cut_in_the_middle_is_continued() -> None:
    lines = [(5, b"one\n"), (6, b"abcdef\n"), (7, b"end\n")]
    body = serve(lines, None)
    cut = body.index(b"cdef")
    tail = Tail()
    assert read(tail, body[:cut]) == b"one\nab"
    assert read(tail, serve(lines, tail.since)) == b"cdef\nend\n"


def test_a_line_out_of_the_order_of_times_is_not_lost() -> None:
    """stderr was stamped after stdout but written before it, across the border of a second."""
    lines = [(2_000_000_100, b"err\n"), (1_999_999_900, b"out\n")]
    tail = Tail()
    assert read(tail, serve(lines[:1], None)) == b"err\n"
    assert read(tail, serve(lines, tail.since)) == b"out\n"


def test_rotation_between_the_streams_takes_only_what_was_read() -> None:
    lines = [(n * 1000, b"%d\n" % n) for n in range(10)]
    tail = Tail()
    read(tail, serve(lines[:6], None))
    assert read(tail, serve(lines[4:], tail.since)) == b"6\n7\n8\n9\n"


def test_rotation_of_an_open_line_ends_it() -> None:
    lines = [(1, b"abcdef\n"), (2, b"next\n")]
    body = serve(lines, None)
    tail = Tail()
    assert read(tail, body[: body.index(b"def")]) == b"abc"
    assert read(tail, serve(lines[1:], tail.since)) == b"\nnext\n"


def test_the_rest_of_a_line_older_than_asked_for_is_left_out() -> None:
    tail = Tail()
    read(tail, serve([(5, b"one\n")], None))
    body = b"second half of an old line\n" + serve([(5, b"one\n"), (6, b"two\n")], tail.since)
    assert read(tail, body) == b"two\n"


def test_text_of_the_kubelet_without_a_time_is_kept() -> None:
    assert read(Tail(), b"unable to retrieve container logs\n") == b"unable to retrieve container logs\n"


def test_memory_stays_bounded_over_a_long_log() -> None:
    tail = Tail()
    for n in range(300):
        tail.begin()
        assert tail.feed(serve([(n * 10**9 + k, b"x\n") for k in range(100)], None)) == b"x\n" * 100
    assert len(tail._recent) < 2000


def test_nanoseconds_of_every_form() -> None:
    whole = 1_764_504_000 * 10**9
    assert nanoseconds(b"2025-11-30T12:00:00Z") == whole
    assert nanoseconds(b"2025-11-30T12:00:00.5Z") == whole + 500_000_000
    assert nanoseconds(b"2025-11-30T14:00:00.000000001+02:00") == whole + 1


gaps = st.sampled_from([0, 0, 1, 1000, 300_000_000, 999_999_999, 1_500_000_000])
texts = st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"") + b"\n")


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(gaps, texts), min_size=1, max_size=25), st.data())
def test_any_sequence_of_cuts_gives_the_log_once(parts: list[tuple[int, bytes]], data: st.DataObject) -> None:
    lines, now = [], 0
    for gap, text in parts:
        now += gap
        lines.append((now, text))
    tail, got, written = Tail(), b"", 0
    for _ in range(data.draw(st.integers(0, 5))):
        written = data.draw(st.integers(written, len(lines)))
        body = serve(lines[:written], tail.since)
        got += read(tail, body[: data.draw(st.integers(0, len(body)))], data.draw(st.integers(1, 50)))
    got += read(tail, serve(lines, tail.since))
    assert got == b"".join(text for _, text in lines)
