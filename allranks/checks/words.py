"""What logs say of failures, where there is no cluster to ask: launchers' summaries, and what dying processes leave."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from allranks.checks.evidence import Evidence
from allranks.ledger import Account, Record, Where
from allranks.result import Finding, Phase, Verdict

_SHOWN = 6


class _Place(Enum):
    """Where a word of failure stands in its log."""

    BEFORE = "before all that the judged ranks said"
    WITHIN = "after they began, before any final record"
    AFTER = "after a final record"
    APART = "in a log without them"


def words_of_failure(evidence: Evidence) -> Iterator[Finding]:
    """A crash, an abort or a launcher's summary after the figures is a failure, and so is any where ranks are missing.

    What stands before all that the judged attempt said belongs to an earlier one; a traceback in the midst of a
    training that then came to its end was somebody's who could live with it.
    """
    if evidence.pods:
        return  # exit codes tell more
    placed = [(said, where, _place(evidence, where)) for said, where in evidence.ledger.failures]
    missing = any(not _finished(evidence, rank) for rank in evidence.plan.ranks)
    launchers = [(said, where) for said, where, place in placed if _launcher_failed(evidence, said, place, missing)]
    crashes = [(said, where) for said, where, place in placed if _crash_counts(evidence, said, place, missing)]
    for said, where in sorted(launchers, key=lambda item: item[0].rank is None)[:_SHOWN]:
        ranks = (said.rank,) if said.rank is not None and said.rank in evidence.plan.ranks else ()
        message = said.text("message") or "the launcher failed"
        phase = Phase.CHECK if said.text("phase") == "check" else Phase.TRAIN
        yield Finding("launcher", message, Verdict.FAILED, phase, ranks, evidence=(str(where),))
    if crashes:
        said, where = crashes[0]
        more = f", and {len(crashes) - 1} more" if len(crashes) > 1 else ""
        message = f"a process crashed: {said.text('message')} ({where}){more}"
        lines = tuple(f"{at}: {word.text('message')}" for word, at in crashes[:_SHOWN])
        yield Finding("crash", message, Verdict.FAILED, Phase.TRAIN, evidence=lines)
    if not launchers and not crashes:
        yield from _earlier(evidence, [(said, where) for said, where, _ in placed])


def _earlier(evidence: Evidence, told: list[tuple[Record, Where]]) -> Iterator[Finding]:
    """Failures that the judged attempt came after, or lived with."""
    launchers = [(said, where) for said, where in told if said.text("kind") == "launcher"]
    lines = tuple(f"{where}: {said.text('message')}" for said, where in (launchers or told)[:_SHOWN])
    if launchers and not evidence.ledger.attempt:
        message = "an earlier attempt in the same log failed; the figures are those of the attempt after it"
        yield Finding("restarted", message, Verdict.FLAKY, evidence=lines)
    elif told and not launchers:
        message = f"words of a crash before the end of the training, which it survived: {len(told)}"
        yield Finding("note-crash", message, Verdict.PASSED, evidence=lines)


def _launcher_failed(evidence: Evidence, said: Record, place: _Place, missing: bool) -> bool:
    if said.text("kind") == "crash":
        return False
    ledger = evidence.ledger
    if ledger.proven:
        # A launcher that restarts says it once for each attempt that failed.
        return ledger.failure_counts[said.text("launcher") or "torchrun"] > ledger.attempt
    return place is not _Place.BEFORE or (missing and not ledger.attempt)


def _crash_counts(evidence: Evidence, said: Record, place: _Place, missing: bool) -> bool:
    if said.text("kind") != "crash":
        return False
    if place in (_Place.AFTER, _Place.APART):
        return place is _Place.AFTER or not evidence.ledger.attempt
    return missing and not (place is _Place.BEFORE and evidence.ledger.attempt)


def _place(evidence: Evidence, where: Where) -> _Place:
    judged: list[Account] = [*evidence.accounts.values(), *(series for _, series in evidence.unplaced)]
    began = [a.first_where.line for a in judged if a.first_where.source == where.source]
    ended = [a.final.where.line for a in judged if a.final and a.final.where.source == where.source]
    if any(line <= where.line for line in ended):
        return _Place.AFTER
    if not began and not ended:
        return _Place.APART
    return _Place.BEFORE if where.line < min([*began, *ended]) else _Place.WITHIN


def _finished(evidence: Evidence, rank: int) -> bool:
    account = evidence.accounts.get(rank)
    return account is not None and account.finished
