"""What devices say of themselves at work. It explains figures and passes no verdict on them: references do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite
from statistics import median

from allranks.checks.evidence import Evidence, finding_about
from allranks.device_figures import DeviceFigures
from allranks.result import Finding, Verdict

_BELOW = 0.95
"""Of the ranks' median, the share under which a figure is called low. Healthy cards of a kind differ by 1 or 2 %."""
_ILL = ("thermal", "thermal (hardware)", "hardware slowdown", "power brake")
"""Reasons of throttling that speak of the node. A power cap is what a card at full work runs into."""
_SHOWN = 6


def held_back(evidence: Evidence) -> Iterator[Finding]:
    """Ranks whose device was slower than the others', or was throttled for its own or its node's sake.

    In synchronous training all wait for the slowest, and only its clock may show which one that is.
    """
    told = {
        rank: account.final.device_figures
        for rank, account in evidence.accounts.items()
        if account.final is not None and account.final.device_figures is not None
    }
    usual = {name: _median(told.values(), name) for name in ("mfu", "sm_clock")}
    odd = {rank: why for rank, figures in told.items() if (why := _oddities(figures, usual))}
    if not odd:
        return
    what = next(iter(odd.values())) if len(odd) == 1 else "slower than the others', or throttled"
    message = (
        f"{evidence.ranks_text(odd)}: the device was held back ({what}), and in synchronous training all wait for the "
        "slowest: look at its cooling and power (nvidia-smi -q -d PERFORMANCE on that node)"
    )
    lines = [f"rank {rank}: {why}" for rank, why in list(odd.items())[:_SHOWN]] if len(odd) > 1 else []
    yield finding_about(evidence, odd, "note-device-held-back", message, verdict=Verdict.PASSED, lines=lines)


def _oddities(figures: DeviceFigures, usual: dict[str, float | None]) -> str:
    """`1410 MHz where the median is 1755 MHz, thermal`; empty when all is as it should be."""
    said = []
    if _low(figures.mfu, usual["mfu"]):
        said.append(f"MFU {100 * (figures.mfu or 0):.1f} % where the median is {100 * (usual['mfu'] or 0):.1f} %")
    if _low(figures.sm_clock, usual["sm_clock"]):
        said.append(f"{figures.sm_clock:.0f} MHz where the median is {usual['sm_clock']:.0f} MHz")
    return ", ".join([*said, *(reason for reason in figures.reasons if reason in _ILL)])


def _low(value: float | None, usual: float | None) -> bool:
    return value is not None and usual is not None and value < _BELOW * usual


def _median(all_figures: Iterable[DeviceFigures], name: str) -> float | None:
    values = (getattr(figures, name) for figures in all_figures)
    known = [value for value in values if value is not None and isfinite(value)]
    return median(known) if known else None
