"""What was said: one value for all formats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from allranks.text import printable

EVENTS = ("start", "step", "epoch", "end", "error")
"""The events of our own records (contract 2)."""
STEP = "step"
FIGURES = "figures"
"""Event of formats without numbered records: final figures of one rank, perhaps not all of them at once."""
DONE = "done"
"""Event of formats of steps: the speaker says that its training is over, perhaps with figures over all of it."""
MEMBER = "member"
"""Event of a rank that is named as taking part, without figures."""
FACT = "fact"
"""Event of what a log says of its node: nproc, node rank, which local rank is which global one."""
FAILURE = "failure"
"""Event of a launcher's word that the job failed (field kind: launcher), or of a crash (kind: crash)."""
SUMMARY = "summary"
"""Event of figures that no rank is named for (an average over all of them)."""


class Where(NamedTuple):
    """Place of a line: source and line number from 1."""

    source: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Record:
    """One thing said by one rank."""

    event: str
    rank: int | None
    """Global rank; None where the format does not name one."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    run: str | None = None
    world: int | None = None
    attempt: int = 0
    seq: int | None = None
    """Number of the record among this rank's in this attempt; None where the format does not number."""
    time: float | None = None
    """Unix seconds, by the speaker's clock."""
    digest: int = 0
    """Of the record's exact bytes: tells a line read twice from another process saying the same."""
    span: tuple[int, int] | None = None
    """Where it stands in its line, for those who look at what is around it; None where the format has looked."""

    def number(self, name: str) -> float | None:
        """The field as a number, also where it is written "nan" or "inf"; None when absent or not a number."""
        value = self.fields.get(name)
        return value if type(value) is float else as_number(value)

    def integer(self, name: str) -> int | None:
        value = self.fields.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, name: str) -> str | None:
        """The field as text that may be shown; None when absent or empty."""
        value = self.fields.get(name)
        return printable(value).strip() or None if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that looks like a record and is not taken as one."""

    kind: str
    """`malformed` or `quoted`."""
    reason: str
    excerpt: str


def as_number(value: Any) -> float | None:
    """JSON number or one of the strings "nan", "inf", "-inf" (contract 2)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
        return float(value)
    return None
