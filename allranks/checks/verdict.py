"""Plan + ledger + pods + what is known to have failed → the verdict of contract 4."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from allranks.checks import devices, exits, numbers, records, rollcall, words
from allranks.checks.evidence import Evidence, PodEvidence
from allranks.ledger import Account, Ledger
from allranks.ledger.account import Start
from allranks.ledger.series import Series
from allranks.plan import Plan
from allranks.result import Finding, Judgement, Phase, RankResult, Stage, Verdict

_CHECKS = (
    exits.failures,
    words.words_of_failure,
    exits.process_counts,
    numbers.right_device,
    numbers.world_size_told_for_all,
    numbers.world_size,
    numbers.finite_numbers,
    numbers.finite_numbers_beside,
    numbers.loss_falls,
    numbers.same_parameters,
    rollcall.unattributed,
    rollcall.each_for_itself,
    rollcall.missing_ranks,
    rollcall.ends_early,
    rollcall.duplicate_ranks,
    rollcall.foreign_ranks,
    rollcall.pods_accounted,
    records.records_whole,
    records.figures_whole,
    records.one_run,
    records.restarts,
    records.notes,
    exits.other_status,
    numbers.losses_known,
    devices.held_back,
)
"""In the order in which findings of equal weight are told; that of phase `check` is contract 4's."""
_OF_AN_EARLIER_ATTEMPT = (
    exits.failures,
    numbers.world_size,
    numbers.finite_numbers,
    numbers.loss_falls,
    numbers.same_parameters,
    rollcall.missing_ranks,
    rollcall.ends_early,
    rollcall.duplicate_ranks,
    rollcall.foreign_ranks,
    records.records_whole,
    records.figures_whole,
)
"""Those that look at nothing but what the ranks of that attempt said."""

_FOLLOWING = {"exit-code", "pod-failed", "container-start", "launcher", "out-of-memory", "rank-error", "crash"}
"""Findings of which one is the cause and the others followed from it."""
_BEFORE_START = (Phase.CAPACITY, Phase.SCHEDULE, Phase.PULL)
"""Never the consequence of a process that failed."""


def judge(
    plan: Plan, ledger: Ledger, *, pods: Sequence[PodEvidence] = (), failures: Sequence[Finding] = ()
) -> Judgement:
    """The verdict, its cause, and what is known of every planned rank.

    `pods` is what the cluster says of each pod at the end (none when logs are judged), `failures` what the diagnosis
    found (unschedulable, image pull, stall …).
    """
    evidence = Evidence(plan, ledger, pods, failures)
    return replace(_judged(evidence, _CHECKS), overall=_overall(evidence))


def earlier_attempts(plan: Plan, ledger: Ledger) -> tuple[Judgement, ...]:
    """The attempts before the one that counts, oldest first, each by what its own ranks said.

    What a log says for no rank in particular (a launcher's words, an average) is left out: it may be another attempt's.
    """
    earlier = [attempt for attempt in ledger.attempts if attempt < ledger.attempt]
    return tuple(_judged(Evidence(plan, ledger, earlier=attempt), _OF_AN_EARLIER_ATTEMPT) for attempt in earlier)


def _judged(evidence: Evidence, checks: Iterable[Callable[[Evidence], Iterator[Finding]]]) -> Judgement:
    found = [*evidence.failures, *(finding for check in checks for finding in check(evidence))]
    ranks = tuple(_rank_result(evidence, rank) for rank in evidence.plan.ranks)
    findings, cause = _ordered(found)
    verdict = cause.verdict if cause else Verdict.PASSED
    if verdict is Verdict.PASSED and any(rank.source != "log" for rank in ranks):
        raise AssertionError("a rank without a final record passed the roll call")  # never green by a bug of ours
    return Judgement(
        verdict=verdict,
        phase=cause.phase if cause and verdict is Verdict.FAILED else None,
        cause=cause if verdict is not Verdict.PASSED else None,
        findings=findings,
        ranks=ranks,
        duplicate=tuple(rank for rank, account in evidence.accounts.items() if account.duplicated),
        foreign=tuple(sorted(evidence.foreign)),
        attempt=evidence.attempt,
        completeness="proven" if evidence.ledger.runs else "unproven",
        throughput_unit=evidence.throughput_unit,
        subject=_subject(evidence.accounts.values()),
        losses=numbers.loss_curves(evidence),
    )


def concluded(judgement: Judgement, further: Sequence[Finding]) -> Judgement:
    """The judgement with findings that were made after it."""
    findings, cause = _ordered([*judgement.findings, *further])
    verdict = cause.verdict if cause else Verdict.PASSED
    phase = cause.phase if cause and verdict is Verdict.FAILED else None
    return replace(judgement, findings=findings, cause=cause, verdict=verdict, phase=phase)


def _subject(accounts: Iterable[Account]) -> tuple[tuple[str, str], ...]:
    """What the ranks say that they are, as far as all who say it agree."""
    said: dict[str, set[str]] = {}
    for account in accounts:
        for start in account.starts:
            for key, value in start.subject:
                said.setdefault(key, set()).add(value)
    return tuple((key, values.pop()) for key, values in said.items() if len(values) == 1)


def _overall(evidence: Evidence) -> tuple[tuple[str, float], ...]:
    """Figures that the log gives for the whole job: of several bandwidths the worst, and what one rank says for all."""
    told = [record.number("bus_bandwidth") for record, _ in evidence.ledger.summaries]
    known = [value for value in told if value is not None]
    figures: dict[str, float | None] = {"bus_bandwidth": min(known) if known else None}
    averages = [record.number("throughput_average") for record, _ in evidence.ledger.summaries]
    figures["throughput_average"] = next((value for value in reversed(averages) if value is not None), None)
    if len(evidence.unplaced) == 1:
        figures |= _spoken_for_all(evidence.unplaced[0][1])
    return tuple((name, value) for name, value in figures.items() if value is not None)


def _spoken_for_all(series: Series) -> dict[str, float | None]:
    final, losses, times = series.final, series.losses, series.step_times
    throughput = final.throughput if final is not None and final.throughput is not None else series.rate
    return {
        "throughput": throughput,
        "steps": series.last_step,
        "total_time": final.total_time if final else None,
        "step_time_p50": times.quantile(0.5) if times else None,
        "step_time_p99": times.quantile(0.99) if times else None,
        "loss_first": losses.first[1] if losses.first else None,
        "loss_last": losses.last[1] if losses.last else None,
    }


def _ordered(found: Sequence[Finding]) -> tuple[tuple[Finding, ...], Finding | None]:
    """Cause first, then what weighs less, consequences and notes last; and the cause."""
    broken = [f for f in found if f.verdict is Verdict.FAILED and f.phase is not Phase.CHECK]
    first = min([f for f in broken if not f.consequence] or broken, key=_precedence, default=None)
    if first is not None:
        found = [_following(finding, first) for finding in found]
    weight = {Verdict.FAILED: 0, Verdict.INCOMPLETE: 1, Verdict.FLAKY: 2, Verdict.PASSED: 4}
    ordered = sorted(found, key=lambda f: (f is not first, 3 if f.consequence else weight[f.verdict]))
    leading = ordered[0] if ordered else None
    return tuple(ordered), leading if leading and leading.verdict is not Verdict.PASSED else None


def _precedence(finding: Finding) -> tuple[int, float]:
    """What comes first among failures: what kept pods from starting, then the earliest."""
    order = _BEFORE_START.index(finding.phase) if finding.phase in _BEFORE_START else len(_BEFORE_START)
    return (order, finding.at if finding.at is not None else math.inf)


def _following(finding: Finding, first: Finding) -> Finding:
    """A failure explains the failures after it and the records that are missing; it does not explain wrong numbers."""
    if finding is first:
        return finding
    follows = finding.code in _FOLLOWING or finding.verdict is Verdict.INCOMPLETE
    return replace(finding, consequence=True) if follows else finding


def _rank_result(evidence: Evidence, rank: int) -> RankResult:
    account = evidence.accounts.get(rank)
    status, code, place = evidence.status(rank), evidence.exit_code(rank), evidence.place(rank)
    start = account.starts[0] if account and account.starts else None
    measured = account is not None and account.finished
    known_place = evidence.plan.run_id is not None or evidence.plan.nodes > 1
    local_rank = start.local_rank if start else None
    if local_rank is None and known_place:
        local_rank = evidence.plan.position(rank).local_rank
    figures = _figures(account) if account is not None else {}
    status_figures = evidence.status_figures(rank)
    if status_figures is not None and not measured:
        figures |= {
            "throughput": status_figures.throughput,
            "epoch_time": status_figures.epoch_time,
            "source": "status",
        }
    return RankResult(
        rank=rank,
        stage=_stage(account, measured, code, launched=status is not None and (code is not None or not status.first)),
        pod=place.pod,
        node=place.node,
        local_rank=local_rank,
        world=_world(account, evidence.plan.world_size),
        device=_device(start) if start else None,
        backend=start.backend if start else None,
        exit_code=code,
        **figures,
    )


def _device(start: Start) -> str | None:
    return f"{start.device} (in place of {start.standin})" if start.standin else start.device


def _world(account: Account | None, planned: int) -> int | None:
    """What it said; where it said several sizes, a wrong one."""
    worlds = list(account.worlds) if account else []
    return next((world for world in worlds if world != planned), worlds[0] if worlds else None)


_FINAL = (
    "steps", "samples", "throughput", "epoch_time", "total_time", "bus_bandwidth", "fingerprint", "fingerprint_group",
    "device_figures",
)  # fmt: skip


def _figures(account: Account) -> dict[str, Any]:
    """What the rank said of its training, by the fields of its result."""
    losses, times, final = account.losses, account.step_times, account.final
    figures: dict[str, Any] = {
        "loss_first": losses.first[1] if losses.first else None,
        "loss_last": losses.last[1] if losses.last else None,
        "step_time_p50": times.quantile(0.5) if times else None,
        "step_time_p99": times.quantile(0.99) if times else None,
    }
    if final is None:
        return figures
    figures |= {name: getattr(final, name) for name in _FINAL}
    told = {"loss_first": final.loss_first, "loss_last": final.loss_last}
    figures |= {name: loss for name, loss in told.items() if loss is not None}
    return figures | {"source": "log" if account.finished else None, "where": str(final.where)}


def _stage(account: Account | None, measured: bool, code: int | None, *, launched: bool) -> Stage:
    """Each stage includes those before it: a rank is no further than the first thing it lacks."""
    if account is None:
        return Stage.LAUNCHED if launched else Stage.PLANNED
    if (code is not None and code != 0) or (code is None and not measured):
        return Stage.HEARD
    return Stage.MEASURED if measured else Stage.FINISHED
