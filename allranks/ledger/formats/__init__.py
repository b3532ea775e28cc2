"""The formats that are recognised without being told.

To add one: a module here that ends in a `FORMAT`, and its name in the list below. A format names literal markers, one
of which stands in every line it can read, and a reader of such lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from allranks.ledger.lines import Line
from allranks.ledger.record import Record, Remark

Reader = Callable[[Line], Iterable[Record | Remark]]


@dataclass(frozen=True, slots=True)
class Format:
    """How one program's lines are read."""

    name: str
    markers: tuple[bytes, ...]
    reader: Callable[[], Reader]
    """Makes a reader for one stream; it may keep state from line to line."""


def all_formats() -> tuple[Format, ...]:
    """Our own records first: they are proof, the others are not."""
    from allranks.ledger.formats import allranks_records, launchers, neuron_bert, nvidia_bert

    return (allranks_records.FORMAT, neuron_bert.FORMAT, nvidia_bert.FORMAT, launchers.FORMAT)


def readers(formats: Iterable[Format]) -> Reader:
    """One reader for all formats, with the state of one stream."""
    made = [(form.markers, form.reader()) for form in formats]

    def read(line: Line) -> Iterator[Record | Remark]:
        text = line.text
        for markers, reader in made:
            for marker in markers:
                if marker in text:
                    yield from reader(line)
                    break

    return read
