"""The formats that are recognised without being told.

To add one: a module here that ends in a `FORMAT`, and its name in the list below. A format names literal markers, one
of which stands in every line it can read, and a reader of such lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from allranks.ledger.lines import Line
from allranks.ledger.markers import shared
from allranks.ledger.record import Record, Remark

Reader = Callable[[Line], Iterable[Record | Remark]]


class FormatError(ValueError):
    """A format that cannot be used: the user's pattern is wrong or takes too long. The message names it."""


@dataclass(frozen=True, slots=True)
class Format:
    """How one program's lines are read."""

    name: str
    markers: tuple[bytes, ...]
    reader: Callable[[], Reader]
    """Makes a reader for one stream; it may keep state from line to line."""
    one_for_all: bool = False
    """Whether one rank speaks for all, so that its figures are the job's."""
    lasting: bool = False
    """Whether a step or a figure may be told again (progress bars, tables) without a second speaker."""
    needs_end: bool = False
    """Whether the last step is known only by a word that training is over."""
    unit: str = "samples/s"
    """Of its throughput."""


def all_formats() -> tuple[Format, ...]:
    """Our own records first: they are proof, the others are not. Of these, the first that most ranks speak counts."""
    from allranks.ledger.formats import (
        allranks_records,
        deepspeed,
        hf_trainer,
        lightning,
        megatron,
        mllog,
        nanogpt,
        nccl_tests,
        nemo,
        neuron_bert,
        nvidia_bert,
        step_lines,
        torchtitan,
    )

    return (
        allranks_records.FORMAT,
        neuron_bert.FORMAT,
        nvidia_bert.FORMAT,
        nccl_tests.FORMAT,
        step_lines.FORMAT,
        torchtitan.FORMAT,
        megatron.FORMAT,
        nemo.FORMAT,
        hf_trainer.FORMAT,
        mllog.FORMAT,
        nanogpt.FORMAT,
        deepspeed.FORMAT,
        lightning.FORMAT,
        *without_figures(),
    )


def without_figures() -> tuple[Format, ...]:
    """What is read beside any format: launchers' words, crashes, and what a log says of its node."""
    from allranks.ledger.formats import launchers, topology

    return (launchers.FORMAT, topology.FORMAT)


def readers(formats: Iterable[Format]) -> Callable[[Line], Iterator[tuple[Format, Record | Remark]]]:
    """One reader for all formats, with the state of one stream."""
    made = [(form, form.reader()) for form in formats]
    always = [at for at, (form, _) in enumerate(made) if not form.markers]
    markers = shared(tuple(marker for form, _ in made for marker in form.markers))
    readers_of: dict[bytes, set[int]] = {}
    for at, (form, _) in enumerate(made):
        for marker in form.markers:
            readers_of.setdefault(marker, set()).add(at)

    def read(line: Line) -> Iterator[tuple[Format, Record | Remark]]:
        for at in sorted({*always, *(at for marker in markers.of(line.text) for at in readers_of[marker])}):
            form, reader = made[at]
            for said in reader(line):
                yield form, said

    return read
