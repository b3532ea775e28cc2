"""What the ranks say of their devices at work, in a few lines for the summary."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from statistics import fmean

from allranks.device_figures import DeviceFigures
from allranks.plan import format_ranks
from allranks.result import TrainingRun
from allranks.text import printable

_Told = dict[int, DeviceFigures]


def at_work(run: TrainingRun) -> list[str]:
    """Utilisation; clocks, power, throttling and memory; the first step. Nothing where no accelerator told of itself.

    CPUs tell of a first step alone, which says nothing about them.
    """
    told = {rank.rank: rank.device_figures for rank in run.ranks if rank.device_figures is not None}
    device = [_utilisation(told), _sensors(told)]
    if not any(device):
        return []
    return [line for line in (*device, _beginning(told)) if line]


def _utilisation(told: _Told) -> str:
    """`MFU from 8 ranks. Average=52.1 %, Lowest=50.7 % (rank 3) of 989.4 TFLOP/s (datasheet)`."""
    known = {rank: figures.mfu for rank, figures in told.items() if figures.mfu is not None}
    if not known:
        return ""
    lowest = min(known, key=lambda rank: known[rank])
    peaks = sorted({f"{f.peak_tflops:.6g} TFLOP/s ({f.peak_from})" for f in told.values() if f.peak_tflops is not None})
    of = f" of {printable(peaks[0], 40)}" if len(peaks) == 1 else f" of {len(peaks)} different peaks" if peaks else ""
    named = f", Lowest={_percent(known[lowest])} (rank {lowest})" if len(known) > 1 else ""
    return f"MFU from {len(known)} rank{'s'[: len(known) > 1]}. Average={_percent(fmean(known.values()))}{named}{of}"


def _sensors(told: _Told) -> str:
    """`at work: 1605–1710 of 1980 MHz, 692 of 700 W, at most 64 °C; power cap; at most 71.2 GiB in use`."""
    every = told.values()
    sensors = [
        _span((f.sm_clock for f in every), (f.max_sm_clock for f in every), "MHz"),
        _span((f.power for f in every), (f.power_limit for f in every), "W"),
        _most((f.temperature for f in every), lambda most: f"at most {most:.0f} °C"),
    ]
    memory = _most((f.peak_memory for f in every), lambda most: f"at most {most / 2**30:.1f} GiB in use")
    parts = [", ".join(filter(None, sensors)), _throttling(told), memory]
    return f"at work: {'; '.join(filter(None, parts))}" if any(parts) else ""


def _throttling(told: _Told) -> str:
    """Each reason, with the ranks that it held back where these are not all."""
    by_reason: dict[str, list[int]] = defaultdict(list)
    for rank, figures in told.items():
        for reason in figures.reasons:
            by_reason[printable(reason, 40)].append(rank)
    if not by_reason:
        return "not throttled" if any(figures.throttle for figures in told.values()) else ""
    return "throttled by " + ", ".join(
        reason if len(ranks) == len(told) else f"{reason} (rank{'s'[: len(ranks) > 1]} {_few(ranks)})"
        for reason, ranks in by_reason.items()
    )


def _few(ranks: list[int], most: int = 24) -> str:
    text = format_ranks(ranks)
    return text if len(text) <= most else f"{text[:most].rpartition(', ')[0]}, …, {len(ranks)} in all"


def _beginning(told: _Told) -> str:
    """`first step after 35.1 s, 18.2 s of it compiling; half of the windows within 0.3 %`."""
    every = told.values()
    compiling = _most((f.compile_time for f in every), lambda most: f", {most:.1f} s of it compiling")
    first = _most((f.time_to_first_step for f in every), lambda most: f"first step after {most:.1f} s{compiling}")
    spread = _most((f.steady_spread for f in every), lambda most: f"half of the windows within {_percent(most)}")
    return "; ".join(filter(None, (first, spread)))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _span(values: Iterable[float | None], limits: Iterable[float | None], unit: str) -> str:
    """`1605–1710 of 1980 MHz`: from the lowest rank to the highest."""
    texts = sorted({f"{value:.0f}" for value in values if value is not None}, key=float)
    most = sorted({f"{limit:.0f}" for limit in limits if limit is not None}, key=float)
    if not texts:
        return ""
    of = f" of {most[-1]}" if most else ""
    return f"{'–'.join(texts[:: max(1, len(texts) - 1)])}{of} {unit}"


def _most(values: Iterable[float | None], said: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    return said(max(known)) if known else ""
