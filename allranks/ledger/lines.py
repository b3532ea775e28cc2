"""Bytes → the lines that may say something.

A log is mostly noise. The scanner looks for literal markers at memory speed, and cuts out only the lines around a hit.
It does no I/O and keeps no more than the unfinished last line, of which it keeps a window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from allranks.ledger.markers import shared
from allranks.ledger.text import strip_escapes

WINDOW = 1 << 20
"""Longer lines are handed out in windows of this many bytes."""
AHEAD = 1 << 16
"""A record that begins in one window may reach this far into the next."""
BEHIND = 512
"""What a window shows of the one before, so that quotation marks are seen."""
HEAD = 256
"""What a later window shows of the line's beginning, where the launcher's prefix stands."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line, or a window of a very long one. What begins outside text[start:end] belongs to another window."""

    number: int
    """From 1."""
    text: bytes
    start: int
    end: int
    head: bytes = b""
    """The beginning of the line, where this is a later window of it."""

    def without_escapes(self) -> Line:
        """The same line without terminal control sequences."""
        if b"\x1b" not in self.text and b"\x1b" not in self.head:
            return self
        parts = (self.text[: self.start], self.text[self.start : self.end], self.text[self.end :])
        before, body, after = map(strip_escapes, parts)
        text = before + body + after
        return Line(self.number, text, len(before), len(before) + len(body), strip_escapes(self.head))


class LineScanner:
    """Chunks of a stream in, lines with a marker out; the same lines however the stream is cut into chunks.

    `markers` are literals; a line without any of them is dropped unseen, unless all lines are wanted (no markers), or
    `attend` asks for it.
    """

    def __init__(self, markers: Sequence[bytes], *, first_line: int = 1) -> None:
        self._markers = shared(tuple(markers))
        self._number = first_line
        self._held = bytearray()
        self._head = b""
        self._body = 0
        """Where the window that is next to be handed out begins in `_held`; before it lies the context."""
        self._attended: float = 0 if markers else math.inf

    @property
    def number(self) -> int:
        """Of the line that the next byte belongs to."""
        return self._number

    def attend(self, lines: int) -> None:
        """Hand out this many of the following lines, marked or not. To be called when a line was handed out."""
        self._attended = max(self._attended, lines)

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
        at = low
        """Where the line with the current number begins."""
        for begin, end in self._markers.lines(data, low, high):
            while self._attended and at < begin:
                stop = data.find(b"\n", at, begin)
                yield from self._attend(data[at:stop])
                at = stop + 1
            self._number += _breaks(data, at, begin)
            self._attended = max(0, self._attended - 1)
            if end - begin <= WINDOW:
                yield Line(self._number, data[begin:end], 0, end - begin)
            else:
                yield from self._windows(memoryview(data)[begin:end])
            self._number += 1
            at = end + 1
        while self._attended and at <= high:
            stop = data.find(b"\n", at, high)
            stop = high if stop < 0 else stop
            yield from self._attend(data[at:stop])
            at = stop + 1
        if at <= high:
            self._number += _breaks(data, at, high) + 1

    def _attend(self, text: bytes) -> Iterator[Line]:
        """An unmarked line that is asked for. Of a very long one nobody needs to see what has no marker."""
        self._attended -= 1
        if len(text) <= WINDOW:
            yield Line(self._number, text, 0, len(text))
        self._number += 1

    def _windows(self, line: memoryview) -> Iterator[Line]:
        head = bytes(line[:HEAD])
        for begin in range(0, len(line), WINDOW):
            behind = max(0, begin - BEHIND)
            text = bytes(line[behind : begin + WINDOW + AHEAD])
            yield from self._marked(text, begin - behind, head if begin else b"")

    def _hold(self, part: bytes) -> Iterator[Line]:
        for begin in range(0, len(part), WINDOW):
            self._held += part[begin : begin + WINDOW]
            while len(self._held) - self._body >= WINDOW + AHEAD:
                yield from self._window()

    def _window(self) -> Iterator[Line]:
        """Hand out the first window of the held line and forget all of it but the context of the next."""
        text = bytes(self._held[: self._body + WINDOW + AHEAD])
        head, self._head = self._head, self._head or text[:HEAD]
        start, following = self._body, self._body + WINDOW
        forgotten = max(0, following - BEHIND)
        del self._held[:forgotten]
        self._body = following - forgotten
        yield from self._marked(text, start, head)

    def _finish(self) -> Iterator[Line]:
        while len(self._held) - self._body > WINDOW:
            yield from self._window()
        text, start, head = bytes(self._held), self._body, self._head
        self._held.clear()
        self._body, self._head = 0, b""
        if not head and not start and self._attended and not self._markers.within(text, 0, len(text)):
            yield from self._attend(text)
            return
        self._attended = max(0, self._attended - 1)
        yield from self._marked(text, start, head)
        self._number += 1

    def _marked(self, text: bytes, start: int, head: bytes) -> Iterator[Line]:
        end = min(len(text), start + WINDOW)
        if self._attended == math.inf or self._markers.within(text, start, end):
            yield Line(self._number, text, start, end, head)


def _breaks(data: bytes, low: int, high: int) -> int:
    """Line breaks in data[low:high]. Before Python 3.13, counting the bytes of a large part takes twice as long."""
    if high - low < 256:
        return data.count(b"\n", low, high)
    part = data[low:high]
    return len(part) - len(part.replace(b"\n", b""))
