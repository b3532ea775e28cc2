"""A format that the user describes: a pattern with named groups.

`--pattern 'rank (?P<rank>\\d+) done: (?P<throughput>[\\d.]+) img/s'`

Groups: rank, throughput, epoch_time (a unit may follow within the group), loss, step, world. With `step` the lines are
steps, and a rank has reported when its last one was read; without, a line is the final report of its rank. Without
`rank` it is who a launcher's prefix or the log's name says. The pattern runs by `regex` with a limit of time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from allranks.ledger.formats import Format, FormatError, Reader
from allranks.ledger.lines import Line
from allranks.ledger.record import FIGURES, STEP, Record, Remark
from allranks.ledger.text import NUMBER, UNIT, number, seconds
from allranks.text import printable

if TYPE_CHECKING:
    import regex

GROUPS = ("rank", "throughput", "epoch_time", "loss", "step", "world")
SECONDS_PER_MEGABYTE = 2.0
"""Ordinary patterns take hundredths of it; one that backtracks without end takes for ever."""
_TIME = re.compile(rb"\s*(%(n)s)\s*(%(u)s)?\s*" % {b"n": NUMBER, b"u": UNIT})
_MEGABYTE = 1 << 20


def custom(pattern: str) -> Format:
    """Raises FormatError for a pattern that is not one, or that names no group that means anything."""
    import regex  # takes a tenth of the start, and most logs need no pattern

    try:
        compiled = regex.compile(pattern.encode())
    except regex.error as error:
        raise FormatError(f"--pattern {printable(pattern, 200)!r}: {error}") from error
    named = set(compiled.groupindex)
    if unknown := sorted(named - set(GROUPS)):
        raise FormatError(f"--pattern: no such group: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    if not named & {"throughput", "epoch_time", "loss", "step"}:
        raise FormatError(f"--pattern {printable(pattern, 200)!r} has no named group of a figure: {', '.join(GROUPS)}")
    return Format("pattern", (), lambda: _reader(compiled, pattern))


def _reader(compiled: regex.Pattern[bytes], pattern: str) -> Reader:
    left = SECONDS_PER_MEGABYTE
    read_since = 0

    def read(line: Line) -> Iterator[Record | Remark]:
        nonlocal left, read_since
        read_since += line.end - line.start
        if read_since >= _MEGABYTE:
            left, read_since = SECONDS_PER_MEGABYTE, 0
        begun = time.monotonic()
        try:
            matches = list(compiled.finditer(line.text, line.start, timeout=max(left, 0.001)))
        except TimeoutError as error:
            raise FormatError(
                f"--pattern {printable(pattern, 200)!r} takes too long: more than {SECONDS_PER_MEGABYTE:g} s for a "
                f"megabyte (line {line.number}); it backtracks without end: make its repetitions exclude each other"
            ) from error
        left -= time.monotonic() - begun
        for match in matches:
            if match.start() < line.end and match.end() > match.start():
                yield _said(match)

    return read


def _said(match: regex.Match[bytes]) -> Record | Remark:
    told = {name: value for name, value in match.groupdict().items() if value is not None}
    try:
        rank = int(told.pop("rank")) if "rank" in told else None
        world = int(told.pop("world")) if "world" in told else None
        fields = {name: _value(name, value) for name, value in told.items()}
    except ValueError:
        return Remark("malformed", "a group of --pattern that is not a number", printable(match.group(), 200))
    event = STEP if "step" in compiled_groups(match) else FIGURES
    return Record(event, rank, fields, world=world or None, span=match.span())


def compiled_groups(match: regex.Match[bytes]) -> frozenset[str]:
    return frozenset(match.re.groupindex)


def _value(name: str, text: bytes) -> float:
    if name != "epoch_time":
        return number(text)
    timed = _TIME.fullmatch(text)
    if timed is None:
        raise ValueError(name)
    return seconds(timed[1], timed[2])
