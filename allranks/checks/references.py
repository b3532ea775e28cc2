"""A judged run against its references: the last of the checks, since it needs the run's times as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from allranks.checks.verdict import concluded
from allranks.device_figures import NUMBERS
from allranks.references import METRICS, Limit, Outcome, ReferenceResult, References, ReferencesError, describe
from allranks.result import SAMPLES, Finding, Phase, RankResult, TrainingRun, Verdict

_PHASES = ("capacity", "scheduled", "pulled", "started", "heard")
_MOMENTS = {"capacity": "planned"}
"""The moment that ends a start-up phase, where it is not called as the phase."""


def hold(run: TrainingRun, references: References, described: Mapping[str, str] | None = None) -> TrainingRun:
    """The run with its figures held against what fits it: a violated or unmeasured one is FAILED in phase check.

    Where a run lacks ranks already, figures that need all of them follow from that and are no finding of their own
    weight. `described` is what people say of a run whose plan and ranks do not. Raises ReferencesError when two
    references fit equally well.
    """
    subject = {**(described or {}), **subject_of(run)}
    limits = references.limits(subject)
    results = tuple(_compared(run, limit) for limit in limits)
    found = list(_findings(run, results))
    if not limits and (references.required or references.entries):
        found.append(_no_reference(references, describe(subject)))
    judgement = concluded(run.judgement, found) if found else run.judgement
    return replace(run, judgement=judgement, references=results)


def hold_or_fail(run: TrainingRun, references: References) -> TrainingRun:
    """`hold` for a run that has been made: a tie is its finding, since raising would lose the run."""
    try:
        return hold(run, references)
    except ReferencesError as error:
        tie = Finding("reference-tie", str(error), phase=Phase.CHECK)
        return replace(run, judgement=concluded(run.judgement, [tie]))


def subject_of(run: TrainingRun) -> dict[str, str]:
    """What a reference may be chosen by; only what is known. The plan's word comes before the ranks'."""
    plan = run.plan
    known = {
        "workload": plan.workload,
        "accelerator": plan.accelerator.value if plan.accelerator else None,
        "instance_type": plan.instance_type,
        "world_size": str(plan.world_size),
    }
    return dict(run.judgement.subject) | {key: value for key, value in known.items() if value}


def measure(run: TrainingRun, metric: str) -> float | None:
    """The run's figure in the metric's own unit; None unless everything that it is made of was read in the log."""
    if metric.startswith("startup_"):
        return _startup(run, metric.removeprefix("startup_"))
    if metric == "bus_bandwidth":
        told = dict(run.judgement.overall).get(metric)
        return told if told is not None else _of_all(run.ranks, metric, min)
    figure, reduce = _RANKED[metric]
    measured = _of_all(run.ranks, figure, reduce)
    return None if measured is None else measured * _SCALES.get(figure, 1.0)


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


_Reduce = Callable[[list[float]], float]
_RANKED: dict[str, tuple[str, _Reduce]] = {
    "throughput_sum": ("throughput", math.fsum),
    "throughput_mean": ("throughput", _mean),
    "throughput_slowest": ("throughput", min),
    "epoch_time": ("epoch_time", _mean),
    "step_time_p50": ("step_time_p50", max),
    "step_time_p99": ("step_time_p99", max),
    "mfu_mean": ("mfu", _mean),
    "mfu_lowest": ("mfu", min),
    "peak_memory": ("peak_memory", max),
}
"""Metric → the ranks' figure that it is made of, and how."""
_SCALES = {"mfu": 100.0, "peak_memory": 2.0**-30}
"""What makes a figure's unit the metric's, where they differ."""


def _told(rank: RankResult, figure: str) -> float | None:
    of = rank.device_figures if figure in NUMBERS else rank
    value: float | None = getattr(of, figure, None)
    return value


def _of_all(ranks: tuple[RankResult, ...], figure: str, reduce: _Reduce) -> float | None:
    values = [_told(rank, figure) for rank in ranks if rank.source == "log"]
    known = [value for value in values if value is not None]
    if not known or len(known) != len(ranks):
        return None
    # The least of numbers one of which is none depends on their order.
    return reduce(known) if all(map(math.isfinite, known)) else math.nan


def _startup(run: TrainingRun, phase: str) -> float | None:
    """Seconds from the end of the phase before (the last moment that is known) to the end of this one."""
    moments = dict(run.timeline)
    if phase == "total":
        heard = moments.get("heard")
        return heard - run.started if heard is not None and run.started is not None else None
    end = moments.get(_MOMENTS.get(phase, phase))
    before = [moments.get(_MOMENTS.get(name, name)) for name in _PHASES[: _PHASES.index(phase)]]
    before.append(moments.get("applied") if phase != "capacity" else None)
    start = max((at for at in [run.started, *before] if at is not None), default=None)
    return max(0.0, end - start) if end is not None and start is not None else None


def _compared(run: TrainingRun, limit: Limit) -> ReferenceResult:
    measured = None if _otherwise_counted(run, limit.metric, limit.unit) else measure(run, limit.metric)
    if measured is None:
        outcome = Outcome.MISSING
    else:
        # A figure that is not a number is within no bounds.
        within = (limit.low is None or measured >= limit.low) and (limit.high is None or measured <= limit.high)
        outcome = Outcome.MET if within and math.isfinite(measured) else Outcome.VIOLATED
    bounds = (limit.value, limit.low, limit.high)
    return ReferenceResult(limit.metric, limit.unit, measured, *bounds, limit.reference, outcome)


def _otherwise_counted(run: TrainingRun, metric: str, unit: str) -> bool:
    """Samples and tokens are not comparable."""
    return METRICS[metric] == SAMPLES and unit != run.judgement.throughput_unit


def _findings(run: TrainingRun, results: Iterable[ReferenceResult]) -> Iterator[Finding]:
    lacking = run.judgement.verdict in (Verdict.INCOMPLETE, Verdict.FAILED)
    for result in results:
        if result.outcome is Outcome.VIOLATED:
            worst = _worst(run, result)
            who = f"; rank {worst.rank}{_place(worst)}" if worst else ""
            yield Finding(
                "reference",
                f"{result.metric} is {_amount(result.measured, result.unit)}, {_expected(result)}{who}",
                phase=Phase.CHECK,
                ranks=(worst.rank,) if worst else (),
                pod=worst.pod if worst else None,
                node=worst.node if worst else None,
            )
        elif result.outcome is Outcome.MISSING:
            message = f"{result.metric} was not measured, and {result.reference} asks for it ({_lack(run, result)})"
            yield Finding("reference-missing", message, phase=Phase.CHECK, consequence=lacking)


def _worst(run: TrainingRun, result: ReferenceResult) -> RankResult | None:
    """The rank that makes the figure what it is, where it is one rank's."""
    figure, reduce = _RANKED.get(result.metric, ("bus_bandwidth", min))
    known = [(value, rank) for rank in run.ranks if (value := _told(rank, figure)) is not None]
    if reduce not in (min, max) or not known or len(run.ranks) == 1:
        return None
    return (min if reduce is min else max)(known, key=lambda pair: pair[0])[1]


def _place(rank: RankResult) -> str:
    return f" (pod {rank.pod})" if rank.pod else ""


def _lack(run: TrainingRun, result: ReferenceResult) -> str:
    if result.metric.startswith("startup_"):
        return "no such moment is known of this run"
    if _otherwise_counted(run, result.metric, result.unit):
        return f"in {result.unit}, but this log gives {run.judgement.throughput_unit}"
    figure = _RANKED.get(result.metric, ("bus_bandwidth", min))[0]
    count = sum(rank.source == "log" and _told(rank, figure) is not None for rank in run.ranks)
    return f"read from {count} of {len(run.ranks)} ranks"


def _expected(result: ReferenceResult) -> str:
    """`less than 4845 samples/s, the least that "p5" (reference 1) accepts (5100 samples/s -5 %)`."""
    assert result.measured is not None
    low = result.low is not None and not result.measured >= result.low
    bound = result.low if low else result.high
    if bound is None:
        return f"which {result.reference} cannot accept"
    side, end = ("less", "least") if low else ("more", "most")
    tolerance = f"{100 * (bound / result.value - 1):+.3g} %"
    return (
        f"{side} than {_amount(bound, result.unit)}, the {end} that {result.reference} accepts "
        f"({_amount(result.value, result.unit)} {tolerance})"
    )


def _amount(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.6g} {unit}"


def _no_reference(references: References, subject: str) -> Finding:
    where = f"no reference in {references.name} fits" if references.name else "no references were given for"
    message = f"{where} this run ({subject})"
    if references.required:
        return Finding("reference-absent", f"{message}, and one is required", phase=Phase.CHECK)
    return Finding("note-no-reference", f"{message}: its figures were not compared", Verdict.PASSED)
