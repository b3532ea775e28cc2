"""A run's figures against their references, as a table."""

from __future__ import annotations

from allranks.references import Outcome, ReferenceResult
from allranks.report.table import format_table
from allranks.result import TrainingRun
from allranks.text import printable

_HEADS = ("figure", "measured", "least", "most", "unit", "", "reference")
_WORDS = {Outcome.MET: "ok", Outcome.VIOLATED: "VIOLATED", Outcome.MISSING: "NOT MEASURED"}


def references(run: TrainingRun, width: int) -> list[str]:
    """Nothing where a run was not compared."""
    if not run.references:
        return []
    return ["", *format_table(_HEADS, [_row(result) for result in run.references], width, (6,))]


def _row(result: ReferenceResult) -> tuple[str, ...]:
    numbers = (_number(value) for value in (result.measured, result.low, result.high))
    return (result.metric, *numbers, result.unit, _WORDS[result.outcome], printable(result.reference))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"
