"""Whole lines out of arbitrary pieces: no I/O, bounded, nothing looked at twice."""

from __future__ import annotations

LINE_LIMIT = 1 << 20
"""Bytes of a line that are passed on; the rest of a longer one is dropped."""
CUT_MARK = b" [allranks: line cut here, it is longer than 1 MiB]"


class LineBuffer:
    """Collects pieces of a stream and gives back whole lines, each ending in `\\n`, in one block.

    `\\n` alone ends a line; any other byte is content. A piece is at most as long as the limit.
    """

    def __init__(self, limit: int = LINE_LIMIT, mark: bytes = CUT_MARK) -> None:
        self._limit = limit
        self._mark = mark + b"\n"
        self._tail = bytearray()
        self._dropping = False

    def feed(self, piece: bytes) -> bytes:
        """The lines that this piece completes; mostly the piece itself, cut once at its last line break."""
        if self._dropping:
            first = piece.find(b"\n")
            if first < 0:
                return b""
            self._dropping = False
            piece = piece[first + 1 :]
        end = piece.rfind(b"\n") + 1
        if not end:
            return self._hold(piece)
        lines = piece[:end] if end < len(piece) else piece
        if self._tail:
            lines = self._complete(lines)
        if end < len(piece):
            lines += self._hold(piece[end:])
        return lines

    def flush(self) -> bytes:
        """The last line if it had no line break; it gets one."""
        last = bytes(self._tail) + b"\n" if self._tail else b""
        self._tail.clear()
        self._dropping = False
        return last

    def _complete(self, lines: bytes) -> bytes:
        first = lines.find(b"\n")
        if len(self._tail) + first > self._limit:
            room = self._limit - len(self._tail)
            lines = bytes(self._tail) + lines[:room] + self._mark + lines[first + 1 :]
        else:
            lines = bytes(self._tail) + lines
        self._tail.clear()
        return lines

    def _hold(self, piece: bytes) -> bytes:
        self._tail += piece
        if len(self._tail) <= self._limit:
            return b""
        cut = bytes(self._tail[: self._limit]) + self._mark
        self._tail.clear()
        self._dropping = True
        return cut


def prefixed(lines: bytes, prefix: bytes) -> bytes:
    """Every line of a block of whole lines, with the prefix before it."""
    if not prefix or not lines:
        return lines
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"
