"""Logs as they lie on a node, or in another encoding, brought back to the bytes that the program wrote."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator

_CRI = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (stdout|stderr) ([FP])(?: |$)")
_DOCKER = b'{"'
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LONGEST = 1 << 20
"""Partial lines are joined up to this size; what follows begins a line of its own."""
_HEAD = 1 << 16
_LOOKED_AT = 16
"""Lines; the first of a rotated file may be cut, and one of another form is no reason to distrust the rest."""


def unwrapped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks themselves, unless their beginning shows a CRI or Docker log file or UTF-16.

    Lines keep the numbers that they have in the file: where parts were joined, empty lines stand for the others.
    """
    source = iter(chunks)
    head = next(source, b"")
    while len(head) < _HEAD and head.count(b"\n") < _LOOKED_AT and (more := next(source, b"")):
        head += more
    rest = _chain(head, source)
    encoding = _utf16(head)
    if encoding:
        return _from_utf16(rest, encoding)
    lines = [line for line in head[:_HEAD].split(b"\n")[:_LOOKED_AT] if line.strip()]
    for part_of in (_cri_part, _docker_part):
        if 2 * sum(part_of(line) is not None for line in lines) > len(lines):
            return _joined(rest, part_of)
    return rest


def _chain(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from rest


def _utf16(head: bytes) -> str | None:
    """By its mark; without one (a part of a log) by the zero that stands beside each letter of plain text."""
    if head.startswith(_UTF16):
        return "utf-16"
    looked_at = head[: 1 << 12]
    for at, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        letters, zeros = looked_at[1 - at :: 2], looked_at[at::2]
        # Zeros on one side only: a log that was truncated under its writer has them on both.
        if len(zeros) >= 8 and 10 * zeros.count(0) >= 9 * len(zeros) and 10 * letters.count(0) <= len(letters):
            return encoding
    return None


def _from_utf16(chunks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    for chunk in chunks:
        yield decoder.decode(chunk).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


_Part = tuple[bytes, bytes, bool]
"""(stream, text, whether the line ends here)"""


def _cri_part(line: bytes) -> _Part | None:
    """`2025-11-30T10:00:00.1Z stdout F text`; P marks a part of a line that goes on in the next entry."""
    match = _CRI.match(line)
    return (match.group(1), line[match.end() :], match.group(2) == b"F") if match else None


def _docker_part(line: bytes) -> _Part | None:
    """`{"log":"text\\n","stream":"stdout","time":"…"}`; a part of a line lacks the line break."""
    if not line.startswith(_DOCKER):
        return None
    try:
        entry = json.loads(line)
        text, stream = entry["log"], entry["stream"]
        whole = text.endswith("\n")
        return str(stream).encode(), text.removesuffix("\n").encode("utf-8", "replace"), whole
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _joined(chunks: Iterator[bytes], part_of: Callable[[bytes], _Part | None]) -> Iterator[bytes]:
    """The programs' lines, one chunk for each chunk read. stdout and stderr are joined apart: their parts interleave.

    A line that is not in the file's form (a cut one) is passed on as it is.
    """
    begun: dict[bytes, bytearray] = {}
    for block in _whole_lines(chunks):
        out = bytearray()
        for line in block.split(b"\n"):
            part = part_of(line)
            if part is None:
                out += line + b"\n"
                continue
            stream, text, whole = part
            held = begun.setdefault(stream, bytearray())
            held += text
            if whole or len(held) > _LONGEST:
                out += held
                held.clear()
            out += b"\n"
        yield bytes(out)
    yield b"".join(bytes(held) + b"\n" for held in begun.values() if held)


def _whole_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks that end at the end of a line (which they do not contain); a very long line is cut."""
    held = bytearray()
    for chunk in chunks:
        last = chunk.rfind(b"\n")
        if last < 0:
            held += chunk
            if len(held) > 4 * _LONGEST:
                yield bytes(held)
                held.clear()
            continue
        held += chunk[:last]
        yield bytes(held)
        held = bytearray(chunk[last + 1 :])
    if held:
        yield bytes(held)
