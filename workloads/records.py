"""What a rank says: records for machines and one line for people, each written whole.

Several writers share a log: threads of this process, its libraries, sometimes other processes. A line stays whole when
it is written by one `os.write` of at most PIPE_BUF bytes (4096 on Linux), so nothing here goes through `print`.
"""

from __future__ import annotations

import json
import math
import os
import select
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, TextIO

PREFIX = "ALLRANKS "
VERSION = 1
MAX_BYTES = 4096
"""Of one write, line breaks included."""


class Outlet:
    """A file descriptor (standard output, unless told otherwise) on which whole lines are written.

    It is shared by all ranks of a process. Text printed by others through `sys.stdout` and `sys.stderr` is watched
    (see `watch`), so that a line begins with a line break exactly when the stream may be mid-line.
    """

    def __init__(self, fd: int = 1) -> None:
        self.fd = fd
        self.mid_line = False
        self._last: TextIO | None = None
        """The watched stream written to last; the others have nothing in their buffers."""
        self._lock = threading.RLock()

    def watch(self) -> None:
        """From now on follow what Python code prints to the streams that end up where this outlet writes."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        if _same_file(self.fd, sys.stdout):
            sys.stdout = _Watched(sys.stdout, self)
        if _same_file(self.fd, sys.stderr):
            sys.stderr = _Watched(sys.stderr, self)

    def write_line(self, text: str) -> None:
        """Write one line with one system call. Raises ValueError when it is longer than `MAX_BYTES`."""
        line = text.encode("utf-8", "backslashreplace") + b"\n"
        if len(line) >= MAX_BYTES:  # one byte is kept for the line break in front
            raise ValueError(
                f"a line of {len(line)} bytes cannot be written whole (limit {MAX_BYTES - 1}): {text[:80]}…"
            )
        with self._lock:
            if self._last is not None:
                self._last.flush()  # what was printed before comes before
            data = b"\n" + line if self.mid_line else line
            while data:  # a pipe takes up to PIPE_BUF bytes at once; a full disk or another kind of stream may not
                data = data[self._write(data) :]
            self.mid_line = False

    def _write(self, data: bytes) -> int:
        while True:
            try:
                return os.write(self.fd, data)
            except BlockingIOError:  # somebody who shares the pipe made it non-blocking, and the reader is behind
                select.select([], [self.fd], [])

    def passing(self, stream: TextIO, text: str) -> int:
        """Let `text` through to `stream` and remember how it ended."""
        with self._lock:
            if self._last is not None and self._last is not stream:
                self._last.flush()
            self._last = stream
            written = stream.write(text)
            if text:
                self.mid_line = not text.endswith("\n")
            return written


class _Watched:
    """A text stream that tells its outlet what passes; everything else is the stream's own."""

    def __init__(self, stream: TextIO, outlet: Outlet) -> None:
        self._stream = stream
        self._outlet = outlet

    def write(self, text: str) -> int:
        return self._outlet.passing(self._stream, text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class RankLog:
    """The records of one rank in one attempt, numbered from 0 without gaps. Safe to use from several threads.

    `world` is what the process group says; None until there is one.
    """

    def __init__(self, outlet: Outlet, *, run: str, rank: int, attempt: int = 0, world: int | None = None) -> None:
        self.run = run
        self.rank = rank
        self.attempt = attempt
        self.world = world
        self._outlet = outlet
        self._written = 0
        self._lock = threading.Lock()

    def record(self, event: str, **fields: Any) -> None:
        """Write one record. A field that is None is left out: absent figures are never 0.

        Raises ValueError when the record does not fit into one write.
        """
        with self._lock:
            self._outlet.write_line(self._encode(event, fields))
            self._written += 1

    def end(self, **fields: Any) -> None:
        """The last record: it also says how many there were, itself included, so that a gap is provable."""
        self.record("end", **fields, records=self._written + 1)

    def error(self, error: BaseException) -> None:
        """What stopped this rank. A message that is too long for one write is cut at its end."""
        name, message = type(error).__name__, str(error)
        while len(self._encode("error", {"type": name, "message": message})) > MAX_BYTES - 2:
            message = message[: len(message) * 9 // 10 - 1] + "…"
        self.record("error", type=name, message=message)

    def people(self, *, samples: float, total_time: float, throughput: float, epoch_time: float) -> None:
        """The line for people, in the form that the field's parsers know. Times in seconds, throughput in samples/s."""
        self._outlet.write_line(
            f"[Rank {self.rank}] - local_samples={samples:.1f}, total_time={total_time:.2f}s, "
            f"local_throughput={throughput:.2f} samples/s, local_avg_epoch_time={epoch_time:.2f}s"
        )

    def say(self, text: str) -> None:
        """One more line for people. Raises ValueError when it does not fit into one write."""
        self._outlet.write_line(text)

    def _encode(self, event: str, fields: dict[str, Any]) -> str:
        record = {
            "v": VERSION,
            "run": self.run,
            "rank": self.rank,
            "world": self.world,
            "attempt": self.attempt,
            "seq": self._written,
            "event": event,
            "t": round(time.time(), 6),
        }
        record.update((name, _plain(value)) for name, value in fields.items() if value is not None)
        return PREFIX + json.dumps(record, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    """JSON knows no nan and no infinity: they are said as strings. Nine digits hold any float32 exactly."""
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else str(value)
    return value


def _same_file(fd: int, stream: TextIO | None) -> bool:
    try:
        return stream is not None and os.path.sameopenfile(fd, stream.fileno())
    except (OSError, ValueError):  # closed, or not backed by a descriptor (a test's capture)
        return False
