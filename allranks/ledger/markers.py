"""Literal markers in large blocks of bytes, at memory speed.

There are dozens of markers, and each that is looked for by itself costs a pass over the log. Two things make that
cheap: the C library's `memmem`, where there is one, is two to three times as fast as `bytes.find`; and a single byte is
found faster still, so that markers with a byte in common that is rare in this log share one pass over it.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

_SAMPLE = 1 << 14
_RENEWED = 1 << 26
"""Bytes after which the log may have become another: its bytes are counted anew."""
_UNKNOWN: Mapping[int, float] = dict.fromkeys(b"|{", 0.0)
"""Share of each byte before a log was looked at; of what is not here, 1."""

_Search = Callable[[bytes, int, int], int]
"""(data, low, high) → where the next marker is, or -1."""


class Markers:
    """Finds the lines that hold one of some literals. None of them may be empty or hold a line break."""

    def __init__(self, markers: Sequence[bytes]) -> None:
        self._markers = tuple(dict.fromkeys(markers))
        self._longest = max(map(len, self._markers), default=0)
        self._searches = _plan(self._markers, _UNKNOWN)
        self._until_renewed = 0

    def lines(self, data: bytes, low: int, high: int) -> list[tuple[int, int]]:
        """(begin, end) of the marked lines in data[low:high], in order; `high` must be the end of a line."""
        self._until_renewed -= high - low
        if high - low >= _SAMPLE and self._until_renewed <= 0:
            middle = (low + high - _SAMPLE) // 2
            counts = Counter(data[middle : middle + _SAMPLE])
            shares = {byte: counts[byte] / _SAMPLE for byte in range(256)}
            self._searches = _plan(self._markers, shares)
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


def _plan(markers: Sequence[bytes], shares: Mapping[int, float]) -> list[_Search]:
    """Passes over rare bytes as long as they save time, and a search for each marker that is left."""
    left = set(markers)
    searches = []
    while left:
        savings = {
            byte: sum(_cost(marker) for marker in left if byte in marker) - 0.12 - 300 * shares.get(byte, 1.0)
            for byte in {byte for marker in left for byte in marker}
        }
        best = max(sorted(savings), key=savings.__getitem__)
        if savings[best] <= 0:
            break
        group = {marker for marker in left if best in marker}
        searches.append(_by_byte(best, sorted(group)))
        left -= group
    return searches + [_by_itself(marker) for marker in sorted(left)]


def _cost(marker: bytes) -> float:
    """Seconds a gigabyte, roughly: long literals are skipped over faster."""
    return 0.08 + 1.2 / len(marker)


def _by_byte(byte: int, markers: Sequence[bytes]) -> _Search:
    one = bytes([byte])
    around = []
    for marker in markers:
        before, _, after = marker.partition(one)
        looked_at = b"(?<=%s)" % re.escape(before + one) if before else b""
        around.append(looked_at + re.escape(after))
    match = re.compile(re.escape(one) + b"(?:" + b"|".join(around) + b")").match

    def search(data: bytes, low: int, high: int) -> int:
        at = data.find(one, low, high)
        while at >= 0 and match(data, at, high) is None:
            at = data.find(one, at + 1, high)
        return at

    return search


def _by_itself(marker: bytes) -> _Search:
    if _memmem is None:
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
