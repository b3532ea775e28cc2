"""Losses by step held against each other: where two trainings that must agree part, and on which ranks. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from allranks.plan import format_ranks
from allranks.result import LossCurve

TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-2}
"""How far losses of one step may lie apart, absolutely, by the dtype of the computation."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step at which losses are too far apart."""

    step: float
    expected: float
    found: float
    """Of the ranks that are farthest away."""
    ranks: tuple[int, ...]
    """All that are too far away at this step."""
    tolerance: float

    def __str__(self) -> str:
        who = f"rank{'' if len(self.ranks) == 1 else 's'} {format_ranks(self.ranks)}: " if self.ranks else ""
        apart = abs(self.found - self.expected)
        return (
            f"{who}loss {self.found:.6f} at step {self.step:g} instead of {self.expected:.6f}: {apart:.2e} apart, "
            f"{self.tolerance:.0e} allowed"
        )


def points_of(curves: Iterable[LossCurve]) -> dict[float, float]:
    """Loss by step as most ranks told it."""
    most = max(curves, key=lambda curve: len(curve.ranks), default=None)
    return dict(most.points) if most else {}


def first_divergence(
    curves: Iterable[LossCurve], reference: dict[float, float], tolerance: float, *, first_step: float = 1
) -> Divergence | None:
    """The earliest step at which any rank is farther than `tolerance` from the reference."""
    apart: dict[float, list[tuple[float, float, tuple[int, ...]]]] = {}
    for curve in curves:
        for step, loss in curve.points:
            expected = reference.get(step)
            if step >= first_step and expected is not None and not abs(loss - expected) <= tolerance:  # nan is too far
                apart.setdefault(step, []).append((abs(loss - expected), loss, curve.ranks))
    if not apart:
        return None
    step = min(apart)
    _, found, _ = max(apart[step], key=lambda each: math.inf if math.isnan(each[0]) else each[0])
    ranks = tuple(sorted(rank for _, _, ranks in apart[step] for rank in ranks))
    return Divergence(step, reference[step], found, ranks, tolerance)


def deviation(curves: Iterable[LossCurve], reference: dict[float, float]) -> float | None:
    """The largest distance at any step and rank; None where no step is common."""
    apart = [abs(loss - reference[step]) for curve in curves for step, loss in curve.points if step in reference]
    return max(apart, default=None)


def missing_steps(curves: Sequence[LossCurve], wanted: Iterable[int]) -> dict[tuple[int, ...], list[int]]:
    """Ranks → the steps of `wanted` whose (finite) loss they did not tell. A thinned curve lacks none in between."""
    wanted = list(wanted)
    lacking: dict[tuple[int, ...], list[int]] = {}
    for curve in curves:
        told = {step for step, _ in curve.points}
        if curve.steps > len(curve.points):
            absent = [step for step in wanted[:1] + wanted[-1:] if step not in told]
        else:
            absent = [step for step in wanted if step not in told]
        if absent:
            lacking[curve.ranks] = absent
    return lacking
