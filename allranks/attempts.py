"""Which failed runs are tried again, and what earlier attempts make of a later one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from allranks.checks.verdict import concluded
from allranks.diagnosis import pull_is_final
from allranks.result import Finding, Judgement, Phase, TrainingRun, Verdict

FLAKY, NOTE, KEPT, NO_OTHER = "flaky", "note-attempts", "note-kept", "note-no-attempt"
_LOST = ("evicted", "preempted", "node-lost", "node-gone")


def worth_another(run: TrainingRun) -> bool:
    """Whether the infrastructure failed, not the training: that is never tried until it is green."""
    cause = run.judgement.cause
    if cause is None or run.verdict is not Verdict.FAILED or cause.code == "deadline":
        return False
    if cause.code in _LOST or cause.phase in (Phase.CAPACITY, Phase.SCHEDULE):
        return True
    return cause.phase is Phase.PULL and not pull_is_final(cause.message)


def after(judgement: Judgement, earlier: Sequence[TrainingRun]) -> Judgement:
    """The last attempt's judgement, with what came before: passed later is FLAKY, never PASSED."""
    if not earlier:
        return judgement
    lines = tuple(
        f"attempt {number}, {run.plan.run_id}: {run.sentence()} ({run.artefacts})"
        for number, run in enumerate(earlier, 1)
    )
    if judgement.verdict is Verdict.PASSED:
        cause = earlier[-1].judgement.cause
        why = cause.message if cause else "no evidence"
        message = f"attempt {len(earlier) + 1} passed; before it: {why}"
        return concluded(judgement, [Finding(FLAKY, message, Verdict.FLAKY, evidence=lines)])
    message = f"this is attempt {len(earlier) + 1}; the earlier ones failed as well"
    return concluded(judgement, [Finding(NOTE, message, Verdict.PASSED, evidence=lines)])


def repeated(judgement: Judgement, before: TrainingRun) -> Judgement:
    """For a replay: what the run's result said that its own evidence does not show."""
    return concluded(judgement, [found for found in before.findings if found.code in (FLAKY, NOTE, KEPT, NO_OTHER)])


def without_another(run: TrainingRun, why: str) -> TrainingRun:
    """The run whose failure was worth another attempt, where the cluster had no room for one."""
    note = Finding(NO_OTHER, f"there was no further attempt: {why}", Verdict.PASSED)
    return replace(run, judgement=concluded(run.judgement, [note]))
