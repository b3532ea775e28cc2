"""Bytes → the lines that may say something.

A log is mostly noise. The scanner looks for literal markers with `bytes.find`, which runs at memory speed, and cuts out
only the lines around a hit. It does no I/O and keeps no more than the unfinished last line, of which it keeps a window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from allranks.ledger.text import strip_escapes

WINDOW = 1 << 20
"""Longer lines are handed out in windows of this many bytes."""
AHEAD = 1 << 16
"""A record that begins in one window may reach this far into the next."""
BEHIND = 512
"""What a window shows of the one before, so that prefixes and quotation marks are seen."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line, or a window of a very long one. What begins outside text[start:end] belongs to another window."""

    number: int
    """From 1."""
    text: bytes
    start: int
    end: int

    def without_escapes(self) -> Line:
        """The same line without terminal control sequences."""
        if b"\x1b" not in self.text:
            return self
        parts = (self.text[: self.start], self.text[self.start : self.end], self.text[self.end :])
        before, body, after = map(strip_escapes, parts)
        return Line(self.number, before + body + after, len(before), len(before) + len(body))


class LineScanner:
    """Chunks of a stream in, lines with a marker out; the same lines however the stream is cut into chunks.

    `markers` are literals; a line without any of them is dropped unseen.
    """

    def __init__(self, markers: Sequence[bytes], *, first_line: int = 1) -> None:
        self._markers = tuple(markers)
        self._number = first_line
        self._held = bytearray()
        self._body = 0
        """Where the window that is next to be handed out begins in `_held`; before it lies the context."""

    @property
    def number(self) -> int:
        """Of the line that the next byte belongs to."""
        return self._number

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """The marked lines that `chunk` completes. Must be consumed before the next call."""
        low = 0
        if self._held:
            newline = chunk.find(b"\n")
            if newline < 0:
                yield from self._hold(chunk)
                return
            yield from self._hold(chunk[:newline])
            yield from self._finish()
            low = newline + 1
        last = chunk.rfind(b"\n", low)
        if last >= 0:
            yield from self._scan(chunk, low, last)
            low = last + 1
        yield from self._hold(chunk[low:])

    def close(self) -> Iterator[Line]:
        """The unfinished last line, if there is one."""
        if self._held:
            yield from self._finish()

    def _scan(self, data: bytes, low: int, high: int) -> Iterator[Line]:
        """Complete lines: data[low:high] ends before a line break."""
        hits: dict[int, int] = {}
        for marker in self._markers:
            at = data.find(marker, low, high)
            while at >= 0:
                end = data.find(b"\n", at, high)
                end = high if end < 0 else end
                hits[max(low, data.rfind(b"\n", low, at) + 1)] = end
                at = data.find(marker, end, high)
        counted = low
        for begin in sorted(hits):
            self._number += data.count(b"\n", counted, begin)
            counted = begin
            yield from self._windows(memoryview(data)[begin : hits[begin]])
        self._number += data.count(b"\n", counted, high) + 1

    def _windows(self, line: memoryview) -> Iterator[Line]:
        if len(line) <= WINDOW:
            yield Line(self._number, bytes(line), 0, len(line))
            return
        for begin in range(0, len(line), WINDOW):
            behind = max(0, begin - BEHIND)
            text = bytes(line[behind : begin + WINDOW + AHEAD])
            yield from self._marked(text, begin - behind)

    def _hold(self, part: bytes) -> Iterator[Line]:
        for begin in range(0, len(part), WINDOW):
            self._held += part[begin : begin + WINDOW]
            while len(self._held) - self._body >= WINDOW + AHEAD:
                yield from self._window()

    def _window(self) -> Iterator[Line]:
        """Hand out the first window of the held line and forget all of it but the context of the next."""
        text = bytes(self._held[: self._body + WINDOW + AHEAD])
        start, following = self._body, self._body + WINDOW
        forgotten = max(0, following - BEHIND)
        del self._held[:forgotten]
        self._body = following - forgotten
        yield from self._marked(text, start)

    def _finish(self) -> Iterator[Line]:
        while len(self._held) - self._body > WINDOW:
            yield from self._window()
        text, start = bytes(self._held), self._body
        self._held.clear()
        self._body = 0
        yield from self._marked(text, start)
        self._number += 1

    def _marked(self, text: bytes, start: int) -> Iterator[Line]:
        end = min(len(text), start + WINDOW)
        if any(text.find(marker, start, end + len(marker) - 1) >= 0 for marker in self._markers):
            yield Line(self._number, text, start, end)
