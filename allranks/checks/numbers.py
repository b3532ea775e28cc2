"""Evidence that is wrong rather than absent, in the order of contract 4."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from statistics import fmean, median

from allranks.checks.evidence import Evidence, finding_about
from allranks.ledger import Account
from allranks.plan import format_ranks
from allranks.result import Finding, LossCurve, Phase, Verdict
from allranks.text import printable

_SHOWN = 6
_FIGURES = ("throughput", "epoch_time", "total_time", "samples", "bus_bandwidth", "loss_first", "loss_last")
_POSITIVE = ("throughput", "epoch_time", "total_time", "samples")


def world_size(evidence: Evidence) -> Iterator[Finding]:
    """Each rank's process group has the size of the plan. One of size 1 trains alone and is as fast as ever."""
    planned = evidence.plan.world_size
    wrong: dict[int, list[int]] = {}
    lines = []
    speakers = 0
    for rank, account in {**evidence.accounts, **evidence.foreign}.items():
        for world, where in account.worlds.items():
            if world != planned:
                wrong.setdefault(world, []).append(rank)
                lines.append(f"rank {rank}: world size {world} ({where})")
                speakers += max(1, len(account.processes)) if world == 1 else 0
    if not wrong:
        return
    said = "; ".join(
        f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks)} report{'s' if len(ranks) == 1 else ''} "
        f"world size {world}"
        for world, ranks in sorted(wrong.items())
    )
    alone = ""
    if 1 in wrong:
        alone = ": each was its own process group" if speakers > 1 else ": it was its own process group"
    every = sorted({rank for ranks in wrong.values() for rank in ranks})
    yield finding_about(
        evidence,
        every,
        "world-size",
        f"{said}, planned {planned}{alone}",
        verdict=Verdict.FAILED,
        phase=Phase.CHECK,
        lines=lines[:_SHOWN],
    )


def world_size_told_for_all(evidence: Evidence) -> Iterator[Finding]:
    """World sizes that the log gives for no rank in particular, or for speakers without a rank."""
    told = dict(evidence.ledger.worlds)
    for _, series in evidence.unplaced:
        told |= {world: where for world, where in series.worlds.items() if world not in told}
    wrong = {world: where for world, where in told.items() if world != evidence.plan.world_size}
    if wrong:
        sizes = " and ".join(f"{world} ({where})" for world, where in sorted(wrong.items()))
        message = f"the log gives a world size of {sizes}, planned {evidence.plan.world_size}"
        yield Finding("world-size", message, Verdict.FAILED, Phase.CHECK)


def finite_numbers(evidence: Evidence) -> Iterator[Finding]:
    """No loss and no figure is nan or infinite; rates and times are above zero."""
    broken: dict[int, str] = {}
    for rank, account in evidence.accounts.items():
        text = _broken(account) or _no_bandwidth(account, evidence.plan.world_size)
        if text:
            broken[rank] = text
    if broken:
        first = broken[min(broken)]
        message = f"{evidence.ranks_text(broken)}: {first if len(broken) == 1 else 'numbers that cannot be'}"
        lines = [f"rank {rank}: {text}" for rank, text in list(broken.items())[:_SHOWN]]
        yield finding_about(
            evidence, broken, "not-finite", message, verdict=Verdict.FAILED, phase=Phase.CHECK, lines=lines
        )


def finite_numbers_beside(evidence: Evidence) -> Iterator[Finding]:
    """The same of speakers without a rank, of formats beside the one that counts, and of averages over all ranks."""
    for who, series in evidence.unplaced:
        text = _broken(series)
        if text:
            yield Finding("not-finite", f"{who}: {text}", Verdict.FAILED, Phase.CHECK)
            break
    for form, series in evidence.ledger.beside:
        text = _broken(series, positive=())
        if text:
            ranks = (series.rank,) if series.rank in evidence.plan.ranks else ()
            named = f"{evidence.ranks_text(ranks)}, " if ranks else ""
            yield Finding("not-finite", f"{named}in the format {form}: {text}", Verdict.FAILED, Phase.CHECK, ranks)
            break
    for record, where in evidence.ledger.summaries:
        average = record.number("throughput_average")
        if average is not None and not (math.isfinite(average) and average > 0):
            message = f"the log gives an average throughput of {average:g} ({where})"
            yield Finding("not-finite", message, Verdict.FAILED, Phase.CHECK)
            break


def _broken(account: Account, positive: Collection[str] = _POSITIVE) -> str | None:
    bad = account.losses.not_finite
    if bad is not None:
        return f"loss is {bad[1]:g} at step {bad[0]:g} ({bad[2]})"
    final = account.final
    for name in _FIGURES if final else ():
        value = getattr(final, name)
        if value is not None and (not math.isfinite(value) or (name in positive and value <= 0)):
            return f"{name.replace('_', ' ')} is {value:g} ({final.where if final else ''})"
    return None


def _no_bandwidth(account: Account, world_size: int) -> str | None:
    """One rank alone moves nothing over a bus, and its table says 0."""
    final = account.final
    if world_size > 1 and final is not None and final.bus_bandwidth is not None and final.bus_bandwidth <= 0:
        return f"bus bandwidth is {final.bus_bandwidth:g} ({final.where})"
    return None


def loss_falls(evidence: Evidence) -> Iterator[Finding]:
    """The loss, averaged over ranks, is lower at the end than at the beginning (medians over some steps each)."""
    firsts, lasts = [], []
    for account in [*evidence.accounts.values(), *(series for _, series in evidence.unplaced)]:
        ends = _loss_ends(account)
        if ends:
            firsts.append(ends[0])
            lasts.append(ends[1])
    if not firsts:
        return
    first, last = fmean(firsts), fmean(lasts)
    if last < first:
        return
    over = "1 rank" if len(firsts) == 1 else f"{len(firsts)} ranks"
    message = f"the loss does not fall: {first:.6g} at the beginning, {last:.6g} at the end (average over {over})"
    yield Finding("loss-not-falling", message, Verdict.FAILED, Phase.CHECK)


def _loss_ends(account: Account) -> tuple[float, float] | None:
    """Robust first and last loss of a rank; None when it gave fewer than two."""
    losses = [loss for _, loss in account.losses.points()]
    if len(losses) >= 2:
        width = min(max(1, len(losses) // 4), 16)
        return median(losses[:width]), median(losses[-width:])
    final = account.final
    if final is None or final.loss_first is None or final.loss_last is None or final.steps == 1:
        return None
    ends = (final.loss_first, final.loss_last)
    return ends if all(map(math.isfinite, ends)) else None


def same_parameters(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that hold the same part of the model (all of them, where none is named) end with the same parameters;
    the odd ones against the majority are named."""
    groups: dict[str | None, dict[int, str]] = {}
    for rank, account in evidence.accounts.items():
        if account.final and account.final.fingerprint:
            groups.setdefault(account.final.fingerprint_group, {})[rank] = account.final.fingerprint
    for group, prints in groups.items():
        yield from _same_in_group(evidence, group, prints)


def _same_in_group(evidence: Evidence, group: str | None, prints: dict[int, str]) -> Iterator[Finding]:
    counts = Counter(prints.values()).most_common()
    if len(counts) < 2:
        return
    usual, most = counts[0]
    if most > counts[1][1]:
        odd = [rank for rank, value in prints.items() if value != usual]
        of = f" of {printable(group, 40)}" if group else ""
        message = f"{evidence.ranks_text(odd)} ended with other parameters than the {most} ranks{of} that agree"
    else:
        odd = sorted(prints)
        of = f" of {printable(group, 40)}" if group else ""
        message = f"the ranks{of} ended with {len(counts)} different sets of parameters, and no majority agrees"
    lines = [f"rank {rank}: {prints[rank]}" for rank in odd[:_SHOWN]]
    yield finding_about(
        evidence, odd, "parameters-differ", message, verdict=Verdict.FAILED, phase=Phase.CHECK, lines=lines
    )


def loss_curves(evidence: Evidence) -> tuple[LossCurve, ...]:
    """What the ranks told of the loss, step by step; ranks that told the same share a curve."""
    curves: dict[tuple[int, tuple[tuple[float, float], ...]], list[int]] = {}
    for rank, account in evidence.accounts.items():
        if account.losses.count:
            curves.setdefault((account.losses.count, tuple(account.losses.points())), []).append(rank)
    return tuple(LossCurve(tuple(ranks), told, points) for (told, points), ranks in curves.items())


def losses_known(evidence: Evidence) -> Iterator[Finding]:
    """Say it when nothing could be checked, so that silence is not read as approval."""
    finished = [account for account in evidence.accounts.values() if account.finished]
    if finished and not any(map(_loss_ends, finished)):
        yield Finding("loss-unknown", "no rank gave two losses: whether the loss falls is not known", Verdict.PASSED)


def right_device(evidence: Evidence) -> Iterator[Finding]:
    """A rank of an accelerator run computes on the accelerator, or says openly that a CPU stands in for it."""
    wanted = evidence.plan.accelerator
    if wanted is None:
        return
    kinds = {"nvidia": "cuda", "neuron": "xla", "cpu": "cpu"}
    wrong: dict[int, str] = {}
    at = None
    for rank, account in evidence.accounts.items():
        for start in account.starts:
            kind = (start.device or "").partition(":")[0]
            if start.device and kind != kinds[wanted.value] and start.standin != wanted.value:
                wrong[rank] = f"rank {rank}: {start.device} ({start.where})"
                at = start.time if at is None or start.time is None else min(at, start.time)
    if wrong:
        message = f"{evidence.ranks_text(wrong)} computed on another device than the planned {wanted}"
        yield finding_about(
            evidence,
            wrong,
            "wrong-device",
            message,
            verdict=Verdict.FAILED,
            phase=Phase.START,
            at=at,
            lines=list(wrong.values())[:_SHOWN],
        )
