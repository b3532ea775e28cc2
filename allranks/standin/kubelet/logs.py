"""Container logs: CRI files with rotation, and the kubelet's way of reading them.

A line in the file is `2026-11-30T10:08:00.123456789Z stdout F text`; `P` in place of `F` marks a piece of a line longer
than 16 KiB. Everything before the text has a fixed width, so that files of any size are taken apart by slicing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

HEADER = 40
"""Bytes before the text: 30 of time, the stream (both names have six letters), the tag, and three spaces."""
_TAG = 38
PIECE = 16 * 1024
"""Where containerd splits a long line."""
_CHUNK = 256 * 1024
_WORTH_IT = 512


def stamp(nanoseconds: int) -> bytes:
    """RFC 3339 in UTC with nine digits, always 30 bytes."""
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z".encode()


class ContainerLog:
    """The log of one run of a container: written by the runtime, rotated by size, read by clients."""

    def __init__(self, path: Path, max_size: int, max_files: int, clock: Callable[[], float] | None = None) -> None:
        """`max_size` is in bytes, `max_files` counts the current file too; `clock` tells Unix seconds."""
        self.path = path
        self.closed = False
        self._max_size = max_size
        self._max_files = max_files
        self._rest = {b"stdout": b"", b"stderr": b""}
        self._size = 0
        self.rotations = 0
        self.changes = 0
        """Writes, and the end."""
        self._clock = clock
        self._waiters: list[asyncio.Future[None]] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)

    def write(self, stream: bytes, data: bytes) -> None:
        """Takes what one read of the container's pipe gave; unfinished lines wait for their end."""
        data = self._rest[stream] + data
        at = 0
        pieces: list[tuple[bytes, bytes]] = []
        while len(data) - at > PIECE:
            end = data.rfind(b"\n", at, at + PIECE + 1)
            if end < 0:
                pieces.append((b"P", data[at : at + PIECE]))
                at += PIECE
                continue
            # Whole lines up to the last one that is complete, unless a long line stands between.
            last = self._lines_until(data, end)
            pieces.append((b"F", data[at:last]))
            at = last + 1
        end = data.rfind(b"\n", at)
        if end >= 0:
            pieces.append((b"F", data[at:end]))
            at = end + 1
        self._rest[stream] = data[at:]
        now = self._now()
        for tag, text in pieces:
            self._append(b"%s %s %s " % (now, stream, tag), text)
        if pieces:
            self._notify()

    @staticmethod
    def _lines_until(data: bytes, end: int) -> int:
        while len(data) - end - 1 > PIECE:
            further = data.rfind(b"\n", end + 1, end + PIECE + 2)
            if further < 0:
                break
            end = further
        return end

    def close(self) -> None:
        """Writes what is left of unfinished lines; readers that follow then end."""
        now = self._now()
        for stream, rest in self._rest.items():
            if rest:
                self._append(b"%s %s F " % (now, stream), rest)
        self._rest = dict.fromkeys(self._rest, b"")
        if not self.closed:
            self.closed = True
            os.close(self._file)
        self._notify()

    def _now(self) -> bytes:
        return stamp(time.time_ns() if self._clock is None else int(self._clock() * 1e9))

    def _append(self, header: bytes, text: bytes) -> None:
        entry = header + text.replace(b"\n", b"\n" + header) + b"\n"
        while entry:
            if self._size >= self._max_size:
                self._rotate()
            part = entry
            room = self._max_size - self._size
            if len(entry) > room:
                part = entry[: entry.find(b"\n", room - 1) + 1]
            os.write(self._file, part)
            self._size += len(part)
            entry = entry[len(part) :]

    def _rotate(self) -> None:
        os.close(self._file)
        self.rotations += 1
        kept = self.path.with_name(f"{self.path.name}.{time.strftime('%Y%m%d-%H%M%S')}.{self.rotations:06d}")
        self.path.rename(kept)
        rotated = sorted(self.path.parent.glob(f"{self.path.name}.*"), key=lambda path: path.name.rsplit(".", 1)[1])
        for old in rotated[: max(len(rotated) - self._max_files + 1, 0)]:
            old.unlink()
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        self._size = 0

    def _notify(self) -> None:
        self.changes += 1
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self) -> None:
        """Returns after the next write or the end."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def tail(self, lines: int, limit: int) -> bytes:
        """The last `lines` lines, at most `limit` bytes of them, without headers: the fallback termination message."""
        with self.path.open("rb") as file:
            file.seek(_tail_offset(file, lines))
            return _Extractor(timestamps=False, since=b"").take(file.read())[-limit:]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The query of the log endpoint."""

    follow: bool = False
    timestamps: bool = False
    since: float | None = None
    """Unix time; whole seconds, since a real API server passes no fraction on to the kubelet."""
    tail_lines: int | None = None
    limit_bytes: int | None = None
    stop_at_rotation: bool = False


class _Extractor:
    """Turns complete CRI lines into what a client asked for."""

    def __init__(self, *, timestamps: bool, since: bytes) -> None:
        self._timestamps = timestamps
        self._since = since
        self._line_start = True

    def take(self, chunk: bytes) -> bytes:
        out = []
        at = 0
        while at < len(chunk):
            header = chunk[at : at + HEADER]
            end = self._uniform(chunk, at, header)
            if end is None:
                out.append(self._lines(chunk[at:]))
                break
            if header[:30] >= self._since:
                kept = header[:31] if self._timestamps else b""
                out.append(kept + chunk[at + HEADER : end].replace(b"\n" + header, b"\n" + kept))
            at = end
        return b"".join(out)

    def _uniform(self, chunk: bytes, at: int, header: bytes) -> int | None:
        """Where a long run of whole lines with one header ends: those of one write, which need no loop over lines."""
        if not self._line_start or header[_TAG : _TAG + 1] != b"F":
            return None
        mark = b"\n" + header
        end = chunk.find(b"\n", max(chunk.rfind(mark, at), at - 1) + 1) + 1
        if end - at < _WORTH_IT or chunk.count(mark, at, end) + 1 != chunk.count(b"\n", at, end):
            return None
        return end

    def _lines(self, chunk: bytes) -> bytes:
        lines = chunk.split(b"\n")
        lines.pop()
        if self._since:
            lines = [line for line in lines if line[:30] >= self._since]
        if not lines:
            return b""
        partial = not self._line_start or (b" P " in chunk and any(line[_TAG : _TAG + 1] == b"P" for line in lines))
        if partial:
            return b"".join([self._piece(line) for line in lines])
        if self._timestamps:
            return b"\n".join([line[:31] + line[HEADER:] for line in lines]) + b"\n"
        return b"\n".join([line[HEADER:] for line in lines]) + b"\n"

    def _piece(self, line: bytes) -> bytes:
        head = line[:31] if self._timestamps and self._line_start else b""
        self._line_start = line[_TAG : _TAG + 1] == b"F"
        return head + line[HEADER:] + (b"\n" if self._line_start else b"")


def _tail_offset(file: BinaryIO, lines: int) -> int:
    """Where the last `lines` lines of a file begin."""
    at = end = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return end
    wanted = lines + 1
    while at > 0:
        size = min(_CHUNK, at)
        at -= size
        file.seek(at)
        block = file.read(size)
        count = block.count(b"\n")
        if count < wanted:
            wanted -= count
            continue
        place = len(block)
        for _ in range(wanted):
            place = block.rfind(b"\n", 0, place)
        return at + place + 1
    return 0


async def read(log: ContainerLog, options: LogOptions) -> AsyncGenerator[bytes]:
    """What the log endpoint answers, in chunks of whole lines.

    As the kubelet does: only the current file is read, and a follower that meets a rotation goes on with the file that
    is current then. Files that came and went while its client was slow are never seen.
    """
    since = stamp(int(options.since) * 1_000_000_000) if options.since is not None else b""
    extract = _Extractor(timestamps=options.timestamps, since=since)
    left = options.limit_bytes
    file, rotations = log.path.open("rb", buffering=0), log.rotations
    try:
        if options.tail_lines is not None:
            file.seek(_tail_offset(file, options.tail_lines))
        while left is None or left > 0:
            ended, seen = log.closed, log.changes
            chunk = _whole_lines(file)
            if chunk:
                text = extract.take(chunk)
                if left is not None:
                    text = text[:left]
                    left -= len(text)
                if text:
                    yield text
                at_end = len(chunk) < _CHUNK // 2 and log.changes == seen and log.rotations == rotations
                if at_end and options.follow and not ended:
                    await log.changed()
                continue
            if log.rotations != rotations:
                if options.stop_at_rotation or not options.follow:
                    return
                file.close()
                file, rotations = log.path.open("rb", buffering=0), log.rotations
                continue
            if ended or not options.follow:
                return
            await log.changed()
    except FileNotFoundError:
        return  # The pod was deleted and its directory with it.
    finally:
        file.close()


def _whole_lines(file: BinaryIO) -> bytes:
    """The next complete lines of an unbuffered file; the position stays behind the last of them."""
    chunk = file.read(_CHUNK)
    cut = chunk.rfind(b"\n") + 1
    if cut < len(chunk):
        file.seek(cut - len(chunk), os.SEEK_CUR)
    return chunk[:cut]
