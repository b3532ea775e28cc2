"""Resuming a log without loss or repetition: the pure part of following.

The API serves a log from a whole second on, each line with its time. So a stream that was cut is asked for again from
a little before the last line, and what comes is aligned with the times of the lines that were read last: file order
does not change, so the lines read before are a prefix of the answer (or of what rotation left of it).
"""

from __future__ import annotations

import bisect
import functools
import re
from collections import Counter, deque
from collections.abc import Iterable
from datetime import datetime, timezone

_TIME = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)"
_STAMP = re.compile(rb"(" + _TIME + rb") ")
_STAMPS = re.compile(rb"\n(" + _TIME + rb") ")  # three times as fast as one that begins with ^
_LONGEST_STAMP = 36
# stdout and stderr are stamped by two readers: lines may lie in the file slightly out of the order of their times.
_DISORDER = 1_000_000_000
_MOST_REMEMBERED = 100_000
_LONGEST_UNSTAMPED = 64 * 1024
_ALL = -1


class Tail:
    """Bytes of log responses (timestamps on) in, content that was not seen before out."""

    def __init__(self) -> None:
        self._recent: list[bytes] = []
        """Times of the lines read last, in file order; the very last line may be incomplete."""
        self._prune_at = 1000
        self._fed = 0
        """Bytes already given out of the last line, while it is incomplete."""
        self._complete = True
        self._expected: deque[bytes] = deque()
        """Of the lines read before, those that the current response still has to repeat."""
        self._counts: Counter[bytes] = Counter()
        self._carry = b""
        self._line: int | None = None
        """None at the start of a line, else how many bytes of the current line are to be left out."""

    @property
    def since(self) -> str | None:
        """From when to ask again (`sinceTime`, whole seconds, UTC); None: from the start."""
        start = self._window()
        return (
            None
            if start is None
            else datetime.fromtimestamp(start // 10**9, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        )

    def begin(self) -> None:
        """A new response follows, which was asked for with `since`."""
        start = self._window()
        near = 0 if start is None else self._from(start)
        self._expected = deque(s for s in self._recent[near:] if start is not None and nanoseconds(s) >= start)
        self._counts = Counter(self._expected)
        self._carry = b""
        self._line = None

    def feed(self, chunk: bytes) -> bytes:
        """The next bytes of the response → new content, without the times."""
        data = self._carry + chunk if self._carry else chunk
        self._carry = b""
        out: list[bytes] = []
        position = 0
        while position < len(data):
            if self._line is not None:
                position = self._within_line(data, position, self._line, out)
            elif self._expected:
                position = self._align(data, position, out)
            else:
                position = self._new_lines(data, position, out)
        return b"".join(out)

    def _new_lines(self, data: bytes, position: int, out: list[bytes]) -> int:
        """At the start of a line, with nothing left to leave out."""
        end = data.rfind(b"\n", position) + 1
        if end > position:
            parts = _STAMPS.split(b"\n" + data[position:end])
            self._remember(parts[1::2])
            out.append(b"\n".join(parts[::2])[1:])
            self._complete = True
            position = end
        if position == len(data):
            return position
        match = _STAMP.match(data, position)
        if match:
            self._remember([match[1]])
            self._complete, self._fed, self._line = False, 0, 0
            return match.end()
        if len(data) - position > _LONGEST_UNSTAMPED:
            self._line = 0
            return position
        self._carry = data[position:]
        return len(data)

    def _within_line(self, data: bytes, position: int, skip: int, out: list[bytes]) -> int:
        end = data.find(b"\n", position) + 1
        stop = end or len(data)
        if skip != _ALL:
            left_out = min(skip, stop - position)
            piece = data[position + left_out : stop]
            out.append(piece)
            self._fed += len(piece)
            self._line = skip - left_out
            if end:
                self._complete, self._fed = True, 0
        if end:
            self._line = None
        return stop

    def _align(self, data: bytes, position: int, out: list[bytes]) -> int:
        """At the start of a line that may have been read before."""
        match = _STAMP.match(data, position)
        if match is None:
            if data.find(b"\n", position) < 0 and len(data) - position <= _LONGEST_STAMP:
                self._carry = data[position:]
                return len(data)
            self._line = _ALL  # the rest of a long line whose beginning is older than what was asked for
            return position
        stamp = match[1]
        if self._counts[stamp]:
            while True:
                first = self._expected.popleft()
                self._counts[first] -= 1
                if first == stamp:
                    break  # those before it were rotated away since
            resume_within = not self._expected and not self._complete
            self._line = self._fed if resume_within else _ALL
            return match.end()
        if nanoseconds(stamp) <= nanoseconds(self._expected[-1]):
            self._line = _ALL
            return match.end()
        # None of the lines read last is there any more: everything that is, is new.
        self._expected.clear()
        if not self._complete:
            out.append(b"\n")
            self._complete, self._fed = True, 0
        return position

    def _window(self) -> int | None:
        """Start of the repeated stretch in nanoseconds since 1970, a whole second."""
        if not self._recent:
            return None
        return (nanoseconds(self._recent[-1]) - _DISORDER) // 10**9 * 10**9

    def _from(self, start: int) -> int:
        """Where in `_recent` to begin, so that nothing from `start` on is missed; some older ones may follow."""
        return bisect.bisect_left(self._recent, start - _DISORDER, key=nanoseconds)

    def _remember(self, stamps: Iterable[bytes]) -> None:
        self._recent.extend(stamps)
        if len(self._recent) < self._prune_at:
            return
        old = self._from(self._window() or 0)
        del self._recent[: max(old, len(self._recent) - _MOST_REMEMBERED)]
        self._prune_at = max(1000, 2 * len(self._recent))


def nanoseconds(stamp: bytes) -> int:
    """A log line's time in nanoseconds since 1970 (datetime knows microseconds only)."""
    whole, dot, rest = stamp.partition(b".")
    if not dot:
        return _seconds(whole) * 10**9
    zone = rest.lstrip(b"0123456789")
    return _seconds(whole + zone) * 10**9 + int(rest[: len(rest) - len(zone)].ljust(9, b"0"))


@functools.lru_cache(maxsize=256)  # the lines of a thousand pods that speak at once
def _seconds(stamp: bytes) -> int:
    return int(datetime.fromisoformat(stamp.decode()).timestamp())
