"""A run as text: the summary, a table, what is wrong, and the verdict as the last line."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

from allranks.plan import format_ranks
from allranks.report.devices import at_work
from allranks.report.references import references
from allranks.report.table import format_table
from allranks.result import SAMPLES, Finding, RankResult, Stage, TrainingRun, Verdict
from allranks.text import printable

_EVERY_RANK = 32
"""Worlds up to this size are shown rank by rank, larger ones node by node with the odd ranks below."""
_WIDEST_RANKS = 24
_ODD_RANKS = 24
_HEADS = ("rank", "node", "pod", "world", "loss", SAMPLES, "epoch", "exit", "stage")
_SHRINKING = (1, 2)


def render(run: TrainingRun, width: int = 100) -> list[str]:
    """Lines of at most `width` columns (the findings' evidence and the last line, the verdict, may be longer)."""
    lines = [
        *_header(run),
        *_devices(run),
        funnel(run),
        *summary(run),
        *at_work(run),
        "",
        *_table(run, width),
        *references(run, width),
    ]
    if run.findings:
        lines.append("")
    for finding in run.findings:
        lines += _finding(finding, width)
    if run.artefacts:
        lines += ["", f"artefacts: {printable(run.artefacts)}"]
    return [*lines, "", printable(run.sentence(), 2000)]


def funnel(run: TrainingRun) -> str:
    """How many ranks got how far: `64 planned · 64 launched · 56 heard · 56 finished · 56 measured`."""
    return " · ".join(f"{run.count(stage)} {stage}" for stage in Stage)


def summary(run: TrainingRun) -> list[str]:
    """The figures over the ranks that were read in the log, as the field prints them."""
    figures = run.figures
    lines = []
    if figures.throughput_total is not None and figures.throughput_average is not None:
        unit = run.judgement.throughput_unit
        lines.append(
            f"Parsed throughput from {figures.ranks} ranks. Total={figures.throughput_total:.2f} {unit}, "
            f"Average={figures.throughput_average:.2f} {unit}"
        )
        lines.append(f"Average Throughput: {figures.throughput_average:.2f} {unit.removesuffix('/s')}/second")
    if figures.epoch_time_sum is not None and figures.epoch_time_average is not None:
        lines.append(
            f"Parsed average epoch time from {figures.epoch_ranks} ranks. Sum={figures.epoch_time_sum:.2f}s, "
            f"Average={figures.epoch_time_average:.2f}s"
        )
    return lines or ["no figures were parsed"]


def _header(run: TrainingRun) -> list[str]:
    plan = run.plan
    what = " on ".join(x for x in (plan.workload, plan.accelerator) if x) or "training"
    shape = f"{plan.nodes} × {plan.processes_per_node} processes"
    if plan.threads_per_process > 1:
        shape += f" × {plan.threads_per_process} threads"
    parts = [what, f"{shape} = {plan.world_size} ranks" if plan.nodes > 1 else f"{plan.world_size} ranks"]
    parts += [printable(x) for x in (run.cluster, plan.instance_type) if x]
    if run.started is not None and run.finished is not None:
        parts.append(f"{run.finished - run.started:.1f} s")
    return [" · ".join(parts)]


def _devices(run: TrainingRun) -> list[str]:
    """What the ranks really computed on: `devices: 4 × cpu (in place of nvidia), gloo`."""
    kinds = Counter(
        ", ".join([re.sub(r":\d+", "", rank.device), *([_backend(rank)] if rank.backend else [])])
        for rank in run.ranks
        if rank.device
    )
    said = "; ".join(f"{count} × {printable(kind)}" for kind, count in kinds.most_common(3))
    return [f"devices: {said}"] if said else []


def _backend(rank: RankResult) -> str:
    return f"{rank.backend} over {rank.transport}" if rank.transport else str(rank.backend)


def _table(run: TrainingRun, width: int) -> list[str]:
    if len(run.ranks) <= _EVERY_RANK:
        shown: Sequence[RankResult] = run.ranks
        rows = [_row(str(rank.rank), [rank]) for rank in shown]
    else:
        rows = [_row(_named(group), group) for group in _by_place(run.ranks)]
        odd = _odd_ranks(run)
        shown = run.ranks
        rows += [_row(str(rank.rank), [rank]) for rank in odd[:_ODD_RANKS]]
        if len(odd) > _ODD_RANKS:
            rows.append((f"… and {len(odd) - _ODD_RANKS} more odd ranks",))
    heads = tuple(run.judgement.throughput_unit if head == SAMPLES else head for head in _HEADS)
    lines = format_table(heads, rows, width, _SHRINKING)
    if any(rank.source == "status" for rank in shown):
        lines.append("* from the launcher's status, not from the log")
    return lines


def _by_place(ranks: Iterable[RankResult]) -> list[list[RankResult]]:
    """Groups of ranks that share node and pod, at most as many as there are pods."""
    groups: dict[tuple[str | None, str | None], list[RankResult]] = {}
    for rank in ranks:
        groups.setdefault((rank.node, rank.pod), []).append(rank)
    return list(groups.values())


def _named(group: Sequence[RankResult]) -> str:
    """Their ranks in ranges, as many as a column has room for."""
    text = format_ranks(rank.rank for rank in group)
    if len(text) <= _WIDEST_RANKS:
        return text
    return f"{text[:_WIDEST_RANKS].rpartition(', ')[0]}, … ({len(group)} ranks)"


def _odd_ranks(run: TrainingRun) -> list[RankResult]:
    """Those that did not get to the end, and those that a finding names without naming most of them."""
    most = run.plan.world_size // 2
    named = {
        rank
        for finding in run.findings
        if finding.verdict is not Verdict.PASSED and len(finding.ranks) <= most
        for rank in finding.ranks
    }
    return [rank for rank in run.ranks if rank.stage is not Stage.MEASURED or rank.rank in named]


def _row(name: str, ranks: Sequence[RankResult]) -> tuple[str, ...]:
    """One rank, or a node's ranks: rates summed, times and losses averaged, what differs listed."""
    first, last = _mean(rank.loss_first for rank in ranks), _mean(rank.loss_last for rank in ranks)
    rates = [rank.throughput for rank in ranks if rank.throughput is not None]
    epoch = _mean(rank.epoch_time for rank in ranks)
    mark = "*" if any(rank.source == "status" for rank in ranks) else ""
    return (
        name,
        printable(ranks[0].node or "–"),
        printable(ranks[0].pod or "–"),
        _several(rank.world for rank in ranks),
        "–" if first is None or last is None else f"{first:.4g}→{last:.4g}",
        f"{sum(rates):.2f}{mark}" if rates else "–",
        f"{epoch:.2f}s" if epoch is not None else "–",
        _several(rank.exit_code for rank in ranks),
        _stages(ranks),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _several(values: Iterable[int | None]) -> str:
    distinct = sorted({value for value in values if value is not None})
    if not distinct:
        return "–"
    return ",".join(map(str, distinct[:2])) + (",…" if len(distinct) > 2 else "")


def _stages(ranks: Sequence[RankResult]) -> str:
    order = list(Stage)
    least = min((rank.stage for rank in ranks), key=order.index)
    same = sum(rank.stage is least for rank in ranks)
    return str(least) if same == len(ranks) else f"{same} {least}"


def _finding(finding: Finding, width: int) -> list[str]:
    if finding.verdict is Verdict.PASSED:
        label = "note"
    elif finding.consequence:
        label = "followed"
    else:
        label = f"{finding.verdict.upper()} in {finding.phase}" if finding.phase else finding.verdict.upper()
    text = f"{label}: {printable(finding.message, 2000)} [{finding.code}]"
    lines = textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return lines + [f"  | {printable(line)}" for line in finding.evidence]
