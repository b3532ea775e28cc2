"""What formats of steps share: a pattern whose named groups are fields, found anywhere in a line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from allranks.ledger.lines import Line
from allranks.ledger.record import STEP, Record, Remark
from allranks.ledger.text import number
from allranks.text import printable


def found(line: Line, pattern: re.Pattern[bytes]) -> Iterator[re.Match[bytes]]:
    """The matches that begin in this window of the line."""
    for match in pattern.finditer(line.text, line.start):
        if match.start() >= line.end:
            return
        yield match


def step(match: re.Match[bytes], world: int | None = None, **more: float | None) -> Record:
    """A step record of the named groups (not those that begin with `_`), and of what was calculated from others."""
    fields = fields_of(match.groupdict()) | {name: value for name, value in more.items() if value is not None}
    return Record(STEP, None, fields, world=world, span=match.span())


def fields_of(groups: Mapping[str, bytes | None]) -> dict[str, float]:
    return {name: number(text) for name, text in groups.items() if text is not None and name[0] != "_"}


def missed(line: Line, marker: bytes, count: int, what: str = "a step line") -> Iterator[Remark]:
    """A remark when the marker stands in this window more often than whole lines were read."""
    if count < line.text.count(marker, line.start, line.end):
        yield Remark("malformed", f"{what} that is not whole", printable(line.text[line.start :], 200))
