"""Literal markers in blocks of bytes, at memory speed.

There are dozens of markers. With the package `hyperscan` (the extra `scan`) one pass finds all of them; without it each
costs a pass of its own, by the C library's `memmem` where there is one: two to three times as fast as `bytes.find`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import threading
from collections.abc import Callable, Sequence

_WORTH = 1 << 20
"""Bytes after which it is worth a few hundredths of a second to make one pass of all."""
_BLOCK = 1 << 30
"""Bytes of one pass; the package counts them with 32 bits."""
_SMALL = 1 << 11
"""Bytes below which calling `memmem` costs more than it saves."""

Search = Callable[[bytes, int, int], list[int]]
"""(data, low, high) → where markers begin in data[low:high], in order: of each marker the first place in each line at
least."""


class Markers:
    """Finds the lines that hold one of some literals. None of them may be empty or hold a line break.

    Several threads may search with the same one.
    """

    def __init__(self, markers: Sequence[bytes], search: Search | None = None) -> None:
        """`search` is how to look for them; by default the faster way, once there is enough to look through."""
        self._markers = tuple(dict.fromkeys(markers))
        self._longest = max(map(len, self._markers), default=0)
        self._shortest = min(map(len, self._markers), default=0)
        self._alike: dict[bytes, list[bytes]] = {}
        """By their first bytes."""
        for marker in self._markers:
            self._alike.setdefault(marker[: self._shortest], []).append(marker)
        self._search = search or one_by_one(self._markers)
        self._until_worth = _WORTH if markers and search is None else 0

    def lines(self, data: bytes, low: int, high: int) -> list[tuple[int, int]]:
        """(begin, end) of the marked lines in data[low:high], in order; `high` must be the end of a line."""
        lines: list[tuple[int, int]] = []
        end = -1
        for at in self._found(data, low, high):
            if at > end:
                begin = max(low, data.rfind(b"\n", low, at) + 1)
                end = data.find(b"\n", at, high)
                end = high if end < 0 else end
                lines.append((begin, end))
        return lines

    def within(self, text: bytes, start: int, end: int) -> bool:
        """Whether a marker begins in text[start:end]."""
        found = self._found(text, start, min(len(text), end + self._longest - 1))
        return bool(found) and found[0] < end

    def of(self, line: bytes) -> set[bytes]:
        """The markers that a line holds."""
        begins = self._found(line, 0, len(line))
        alike = [(at, self._alike[line[at : at + self._shortest]]) for at in begins]
        return {marker for at, markers in alike for marker in markers if line.startswith(marker, at)}

    def _found(self, data: bytes, low: int, high: int) -> list[int]:
        if self._until_worth > 0:
            self._until_worth -= high - low
            if self._until_worth <= 0:
                self._search = in_one_pass(self._markers) or self._search
        return self._search(data, low, high)


@functools.lru_cache(maxsize=16)
def shared(markers: tuple[bytes, ...]) -> Markers:
    """For all streams that are searched for the same: a thousand pods need not prepare for it a thousand times."""
    return Markers(markers)


def one_by_one(markers: Sequence[bytes]) -> Search:
    """A pass for each marker."""

    def search(data: bytes, low: int, high: int) -> list[int]:
        find = data.find if _memmem is None or high - low < _SMALL else _by_memmem(data, _memmem)
        found = []
        for marker in markers:
            at = find(marker, low, high)
            while at >= 0:
                found.append(at)
                end = data.find(b"\n", at, high)
                at = find(marker, end, high) if end >= 0 else -1
        return sorted(found)

    return search


def in_one_pass(markers: Sequence[bytes]) -> Search | None:
    """One pass for all; None where the package is missing or does not know the processor."""
    try:
        hyperscan = importlib.import_module("hyperscan")
    except ImportError:
        return None
    sizes = [len(marker) for marker in markers]
    patterns = [b"".join(b"\\x%02x" % byte for byte in marker) for marker in markers]
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    try:
        # A match comes with its id and its end: where the size is the id, these give its beginning.
        database.compile(expressions=patterns, ids=sizes, elements=len(patterns))
    except hyperscan.error:
        return None
    overlap = max(sizes) - 1
    scratch = threading.Lock()
    """A database has room for one search at a time, and the package lets other threads run meanwhile."""

    def search(data: bytes, low: int, high: int) -> list[int]:
        found: list[int] = []

        def enter(size: int, _begin: int, end: int, _flags: int, block: int) -> None:
            found.append(block + end - size)

        with scratch, memoryview(data) as view:
            for block in range(low, high, _BLOCK):
                database.scan(view[block : min(high, block + _BLOCK + overlap)], enter, 0, block)
        return sorted(found)

    return search


_Memmem = Callable[[int, int, bytes, int], int | None]


def _by_memmem(data: bytes, memmem: _Memmem) -> Callable[[bytes, int, int], int]:
    """`data.find`, faster."""
    address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0

    def find(marker: bytes, low: int, high: int) -> int:
        found = memmem(address + low, high - low, marker, len(marker))
        return found - address if found else -1

    return find


def _c_memmem() -> _Memmem | None:
    try:
        function = ctypes.CDLL(None).memmem
    except (AttributeError, OSError, TypeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    return function


_memmem = _c_memmem()
