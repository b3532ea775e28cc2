"""Roll call: exactly the ranks {0 … W−1}, each once."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.checks.evidence import Evidence, finding_about
from allranks.ledger.series import Series
from allranks.plan import format_ranks
from allranks.result import Finding, Verdict

_SHOWN = 6


def missing_ranks(evidence: Evidence) -> Iterator[Finding]:
    """Ranks without a final record, told apart by how much is known of them."""
    silent: list[int] = []
    unfinished: list[int] = []
    unseen: list[int] = []
    lost: list[int] = []
    maybe_lost: list[int] = []
    for rank in evidence.plan.ranks:
        account = evidence.accounts.get(rank)
        if account and account.finished:
            continue
        status = evidence.status(rank)
        if evidence.status_figures(rank):
            lost.append(rank)
        elif evidence.exit_code(rank) == 0:
            # A launcher that kept figures, though none of this rank, saw no final record in its pipe either.
            (maybe_lost if status is None or status.figures is None else unseen).append(rank)
        else:
            (unfinished if account else silent).append(rank)
    if len(silent) == evidence.plan.world_size:
        yield _nothing_read(evidence)
        return
    for ranks, code, what in (
        (silent, "missing-rank", "never reported: no record in the log"),
        (unfinished, "missing-rank", "spoke but never gave a final record with its throughput"),
        (unseen, "missing-rank", "exited with code 0 but gave no final record, neither in the log nor to its launcher"),
        (lost, "log-loss", "finished, as the launcher's status shows, but the log lacks the final record: log loss"),
        (maybe_lost, "log-loss", "exited with code 0, but the log lacks the final record: log loss, or never written"),
    ):
        if ranks:
            lines = filter(None, (_last_word(evidence, rank) for rank in ranks[:_SHOWN]))
            yield finding_about(evidence, ranks, code, f"{evidence.ranks_text(ranks)} {what}", lines=lines)


def _nothing_read(evidence: Evidence) -> Finding:
    sources = evidence.ledger.sources
    read = f"{sum(s.bytes for s in sources)} bytes of {len(sources)} {'log' if len(sources) == 1 else 'logs'}"
    every = f"none of the {evidence.plan.world_size} ranks" if evidence.plan.world_size > 1 else "the one rank never"
    others = evidence.ledger.note_counts["other-run"]
    also = f"; {others} records belong to another run" if others else ""
    message = f"{every} reported: {read} were read without a record of a planned rank{also}"
    return finding_about(evidence, evidence.plan.ranks, "missing-rank", message)


def _last_word(evidence: Evidence, rank: int) -> str:
    account = evidence.accounts.get(rank)
    if account is None:
        return ""
    last = f", last step {account.losses.last[0]:g}" if account.losses.last else ""
    records = "1 record" if account.records == 1 else f"{account.records} records"
    return f"rank {rank}: {records} from {account.first_where} on{last}"


def ends_early(evidence: Evidence) -> Iterator[Finding]:
    """In formats of steps: how far the ranks got whose last steps are not there."""
    lacking = {
        rank: account.lack
        for rank, account in evidence.accounts.items()
        if isinstance(account, Series) and account.lack is not None
    }
    if lacking:
        first = lacking[min(lacking)]
        message = f"{evidence.ranks_text(lacking)}: the log ends early: {first}"
        lines = [f"rank {rank}: {lack}" for rank, lack in list(lacking.items())[:_SHOWN]]
        yield finding_about(evidence, lacking, "log-ends-early", message, lines=lines)
    for who, series in evidence.unplaced[:_SHOWN]:
        if series.lack is not None:
            message = f"the log ends early ({who}): {series.lack}"
            yield Finding("log-ends-early", message, Verdict.INCOMPLETE)


def unattributed(evidence: Evidence) -> Iterator[Finding]:
    """Speech that no global rank is known for: the roll call stays open, whatever the figures."""
    form = evidence.ledger.others.form if evidence.unplaced else None
    if form is None:
        return
    who = [str(speaker) for speaker, _ in evidence.unplaced]
    lines = [f"{speaker}: {_figures_of(series)}" for speaker, series in evidence.unplaced[:_SHOWN]]
    if form.one_for_all and len(who) == 1:
        message = f"{form.name}: one rank speaks for all, the roll call stays open: {lines[0]}"
    else:
        local = any(speaker.local is not None for speaker, _ in evidence.unplaced)
        named = ", ".join(who[:_SHOWN]) + (f" and {len(who) - _SHOWN} more" if len(who) > _SHOWN else "")
        why = (
            "a local rank is a global one only together with its node: give --nodes and --nproc-per-node, and logs "
            "that name their node"
            if local
            else "give logs whose lines or names tell the rank"
        )
        message = f"{form.name}: no global rank is known for what was read of {named}; {why}"
    yield Finding("unattributed", message, Verdict.INCOMPLETE, evidence=tuple(lines))


def each_for_itself(evidence: Evidence) -> Iterator[Finding]:
    """A format in which one rank speaks for all, spoken by several: each may have trained apart, in a world of one."""
    form = None if evidence.ledger.proven else evidence.ledger.others.form
    speaking = [rank for rank, account in evidence.accounts.items() if account.losses.count or account.final]
    if form is not None and form.one_for_all and len(speaking) > 1:
        message = (
            f"{evidence.ranks_text(speaking)} each speak for all in {form.name}, where one rank does: each may have "
            "trained alone, as its own process group"
        )
        yield finding_about(evidence, speaking, "each-for-itself", message)


def _figures_of(series: Series) -> str:
    told = []
    if series.last_step is not None:
        planned = f" of {series.planned_steps:g}" if series.planned_steps is not None else ""
        told.append(f"step {series.last_step:g}{planned}")
    losses = series.losses
    if losses.first and losses.last:
        told.append(f"loss {losses.first[1]:.6g} to {losses.last[1]:.6g}")
    rate = series.final.throughput if series.final and series.final.throughput is not None else series.rate
    if rate is not None:
        told.append(f"throughput {rate:.6g}")
    if series.step_times:
        told.append(f"{series.step_times.quantile(0.5):.4g} s a step")
    return f"{', '.join(told) or 'no figures'} (from {series.first_where} on)"


def duplicate_ranks(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that more than one process claims, or whose figures came twice: no figure of theirs can be trusted."""
    twice = [rank for rank, account in evidence.accounts.items() if account.duplicated]
    if not twice:
        return
    lines = []
    for rank in twice[:_SHOWN]:
        account = evidence.accounts[rank]
        lines += [f"rank {rank}: {start}" for start in account.starts[:_SHOWN] if len(account.processes) > 1]
        lines += [f"rank {rank}: {where}: {why}" for where, why in account.disputes[:2]]
        pods = [f"pod {voice.pod} ({voice.first})" for voice in account.voices.values() if voice.pod]
        if len(pods) > 1:
            lines.append(f"rank {rank} was heard in {', '.join(pods[:_SHOWN])}")
    most = max(len(evidence.accounts[rank].processes) for rank in twice)
    how = f"{most} processes each" if most > 1 and len(twice) > 1 else f"{most} processes" if most > 1 else "twice"
    spoke = "claimed by" if most > 1 else "reported"
    message = f"{evidence.ranks_text(twice)} {spoke} {how}"
    yield finding_about(evidence, twice, "duplicate-rank", message, lines=lines)


def foreign_ranks(evidence: Evidence) -> Iterator[Finding]:
    """Ranks outside the plan."""
    if not evidence.foreign:
        return
    ranks = sorted(evidence.foreign)
    noun = "rank" if len(ranks) == 1 else "ranks"
    message = (
        f"{noun} {format_ranks(ranks)} spoke, but the plan has ranks 0-{evidence.plan.world_size - 1} only: "
        "another job's processes, or more were started than planned"
    )
    lines = [f"rank {rank}: {evidence.foreign[rank].first_where}" for rank in ranks[:_SHOWN]]
    yield Finding("foreign-rank", message, Verdict.INCOMPLETE, ranks=tuple(ranks), evidence=tuple(lines))


def pods_accounted(evidence: Evidence) -> Iterator[Finding]:
    """Where pods are known: one for each index of the plan, no more, and each of them ended."""
    for pod in evidence.pods:
        where = f" on node {pod.node}" if pod.node else ""
        if pod.extra or not 0 <= pod.pod_index < evidence.plan.nodes:
            first = evidence.planned_pods.get(pod.pod_index)
            instead = f" beside {first.pod}" if first else ""
            message = f"pod {pod.pod}{where} is a further pod for index {pod.pod_index}{instead}: not planned"
            yield Finding("extra-pod", message, Verdict.INCOMPLETE, pod=pod.pod, node=pod.node)
        elif pod.exit_code is None and pod.phase not in ("Succeeded", "Failed"):
            message = f"pod {pod.pod}{where} has not ended (phase {pod.phase})"
            ranks = tuple(evidence.plan.ranks_of_pod(pod.pod_index))
            yield Finding("pod-not-ended", message, Verdict.INCOMPLETE, ranks=ranks, pod=pod.pod, node=pod.node)
    if evidence.pods:
        lacking = [index for index in range(evidence.plan.nodes) if index not in evidence.planned_pods]
        if lacking:
            ranks = tuple(rank for index in lacking for rank in evidence.plan.ranks_of_pod(index))
            message = f"no pod was seen for index {format_ranks(lacking)} (ranks {format_ranks(ranks)})"
            yield Finding("missing-pod", message, Verdict.INCOMPLETE, ranks=ranks)
