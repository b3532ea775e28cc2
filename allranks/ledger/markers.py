"""Literal markers in large blocks of bytes, at memory speed.

There are dozens of markers, and each that is looked for by itself costs a pass over the log. Two things make that
cheap: the C library's `memmem`, where there is one, is two to three times as fast as `bytes.find`; and markers that
have a piece in common which is rare in this log share one pass over it, for that piece.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Iterator, Sequence

_SAMPLE = 1 << 14
_RENEWED = 1 << 28
"""Bytes after which the log may have become another: it is looked at anew."""
_RARE = (b"|", b"{")
"""What is taken for rare in a log that nothing is known of."""
_PIECE = 6
"""Bytes of the longest pieces that markers are grouped by."""
_STOP = 300.0
"""Seconds a gigabyte if every byte were the beginning of such a piece: each is a stop to look at what is around it."""

_Search = Callable[[bytes, int, int], int]
"""(data, low, high) → where the next marker is, or -1."""


class Markers:
    """Finds the lines that hold one of some literals. None of them may be empty or hold a line break."""

    def __init__(self, markers: Sequence[bytes]) -> None:
        self._markers = tuple(dict.fromkeys(markers))
        self._longest = max(map(len, self._markers), default=0)
        self._searches = _plan(self._markers, None)
        self._until_renewed = 0

    def lines(self, data: bytes, low: int, high: int) -> list[tuple[int, int]]:
        """(begin, end) of the marked lines in data[low:high], in order; `high` must be the end of a line."""
        self._until_renewed -= high - low
        if high - low >= _SAMPLE and self._until_renewed <= 0:
            middle = (low + high - _SAMPLE) // 2
            self._searches = _plan(self._markers, data[middle : middle + _SAMPLE])
            self._until_renewed = _RENEWED
        found: dict[int, int] = {}
        for search in self._searches:
            at = search(data, low, high)
            while at >= 0:
                end = data.find(b"\n", at, high)
                end = high if end < 0 else end
                found[max(low, data.rfind(b"\n", low, at) + 1)] = end
                at = search(data, end, high)
        return sorted(found.items())

    def within(self, text: bytes, start: int, end: int) -> bool:
        """Whether a marker begins in text[start:end]."""
        reach = min(len(text), end + self._longest)
        if end - start >= _SAMPLE and all(search(text, start, reach) < 0 for search in self._searches):
            return False
        return any(text.find(marker, start, end + len(marker) - 1) >= 0 for marker in self._markers)


@functools.lru_cache(maxsize=16)
def shared(markers: tuple[bytes, ...]) -> Markers:
    """For all streams that are searched for the same: a thousand pods need not find out the same a thousand times."""
    return Markers(markers)


def _plan(markers: Sequence[bytes], sample: bytes | None) -> list[_Search]:
    """Passes over rare pieces as long as they save time, and a search for each marker that is left."""
    left = set(markers)
    groups: dict[bytes, set[bytes]] = {}
    for marker in left:
        for piece in _pieces(marker):
            groups.setdefault(piece, set()).add(marker)
    costs = {piece: _cost(piece, sample) for piece, group in groups.items() if len(group) > 1 or len(piece) == 1}
    searches = []
    while left:
        savings = {piece: sum(map(_cost, groups[piece] & left)) - cost for piece, cost in costs.items()}
        best = max(sorted(savings), key=savings.__getitem__)
        if savings[best] <= 0:
            break
        group = groups[best] & left
        searches.append(_by_piece(best, sorted(group)))
        left -= group
    return searches + [_by_itself(marker) for marker in sorted(left)]


def _pieces(marker: bytes) -> Iterator[bytes]:
    for size in range(1, _PIECE + 1):
        for at in range(len(marker) - size + 1):
            yield marker[at : at + size]


def _cost(literal: bytes, sample: bytes | None = b"") -> float:
    """Seconds a gigabyte, roughly: a byte is found fastest, and long literals are skipped over faster than short."""
    search = 0.05 if len(literal) == 1 else 0.06 + 0.9 / len(literal)
    if sample is None:
        return search + (0.0 if literal in _RARE else _STOP)
    return search + _STOP * sample.count(literal) / _SAMPLE


def _by_piece(piece: bytes, markers: Sequence[bytes]) -> _Search:
    around = []
    for marker in markers:
        before, _, after = marker.partition(piece)
        looked_at = b"(?<=%s)" % re.escape(before + piece) if before else b""
        around.append(looked_at + re.escape(after))
    match = re.compile(re.escape(piece) + b"(?:" + b"|".join(around) + b")").match
    find = _by_itself(piece)

    def search(data: bytes, low: int, high: int) -> int:
        at = find(data, low, high)
        while at >= 0 and match(data, at, high) is None:
            at = find(data, at + 1, high)
        return at

    return search


def _by_itself(marker: bytes) -> _Search:
    if _memmem is None or len(marker) == 1:
        return lambda data, low, high: data.find(marker, low, high)
    memmem, size = _memmem, len(marker)

    def search(data: bytes, low: int, high: int) -> int:
        if high - low < 256:  # the call costs more than it saves
            return data.find(marker, low, high)
        begin = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
        found = memmem(begin + low, high - low, marker, size)
        return found - begin if found else -1

    return search


def _c_memmem() -> Callable[[int, int, bytes, int], int | None] | None:
    try:
        function = ctypes.CDLL(None).memmem
    except (AttributeError, OSError, TypeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    return function


_memmem = _c_memmem()
