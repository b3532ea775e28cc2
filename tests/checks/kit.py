"""Evidence of pods made up for tests, and its judgement."""

from dataclasses import replace
from typing import Any

from allranks.checks import PodEvidence, judge
from allranks.ledger.status import LauncherStatus, RankFigures
from allranks.plan import Plan
from allranks.result import Finding, Judgement, Verdict
from tests.ledger.speech import RUN, ledger_of, plan_of


def pod(index: int, *codes: int | None, figures: bool = True, **changes: Any) -> PodEvidence:
    """A pod of two processes that ended well, but for what is given."""
    codes = codes or (0, 0)
    status = LauncherStatus(
        run=RUN,
        attempt=0,
        node=index,
        nnodes=2,
        nproc=len(codes),
        state="failed" if any(codes) else "succeeded",
        codes=codes,
        first=changes.pop("first", None),
        figures={2 * index + local: RankFigures(49.97, 0.31) for local in range(2)} if figures else None,
    )
    code = next((code if code > 0 else 128 - code for code in codes if code), 0)
    phase = "Failed" if code else "Succeeded"
    reason = "Error" if code else "Completed"
    evidence = PodEvidence(index, f"bert-{index}", f"node-{index}", status, phase, code, reason, None)
    return replace(evidence, **changes)


def judged(*logs: bytes, plan: Plan | None = None, **evidence: Any) -> Judgement:
    plan = plan or plan_of()
    return judge(plan, ledger_of(*logs, plan=plan), **evidence)


def codes(judgement: Judgement) -> list[str]:
    """Findings that count, notes left out."""
    return [finding.code for finding in judgement.findings if finding.verdict is not Verdict.PASSED]


def cause(judgement: Judgement) -> Finding:
    assert judgement.cause is not None
    return judgement.cause
