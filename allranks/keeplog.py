"""A container's log on disk, bounded: whole up to a limit, and beyond it the ranks' records alone.

Whoever prints gigabytes must not fill the disk, and a replay must still reach the same verdict.
"""

from __future__ import annotations

from pathlib import Path

from allranks.ledger.lines import LineScanner

_RECORDS = (b"ALLRANKS ", b"NCCL INFO Using network ")
_CUT = b"\n[allranks: limit reached; of what follows only the ranks' records are kept]\n"
# A line without an end must not keep the limit from being one.
_LONGEST_END = 1 << 20


class KeptLog:
    """Takes the log's bytes as they come. Records beyond the limit may take as much again, not more."""

    def __init__(self, path: Path, limit: int) -> None:
        self._file = path.open("wb")
        self._limit = limit
        self._kept = self._beyond = 0
        self._records: LineScanner | None = None
        self.dropped = 0
        """Bytes that were not kept."""

    def write(self, content: bytes) -> None:
        if self._records is None:
            content = self._whole(content)
        if content and self._records is not None:
            self._write_records(content)

    def _whole(self, content: bytes) -> bytes:
        """Writes what is within the limit, which ends with a line; returns the rest."""
        space = self._limit - self._kept
        if len(content) <= space:
            self._file.write(content)
            self._kept += len(content)
            return b""
        end = content.find(b"\n", max(space, 0)) + 1
        if not end and len(content) <= space + _LONGEST_END:
            self._file.write(content)  # the line's end comes with the next
            self._kept += len(content)
            return b""
        end = end or max(space, 0)
        self._file.write(content[:end] + _CUT)
        self._records = LineScanner(_RECORDS)
        return content[end:]

    def _write_records(self, content: bytes) -> None:
        assert self._records is not None
        kept = 0
        for line in self._records.feed(content):
            if self._beyond + len(line.text) < self._limit:
                self._file.write(line.text.rstrip(b"\n") + b"\n")
                self._beyond += len(line.text) + 1
                kept += len(line.text) + 1
        self.dropped += max(0, len(content) - kept)

    def close(self) -> None:
        if self._records is not None:
            for line in self._records.close():
                self._file.write(line.text.rstrip(b"\n") + b"\n")
        self._file.close()
