"""verdict.json: a session in one document, for the pipeline that decides by it (docs/verdict.schema.json)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.checks.references import measure, subject_of
from allranks.references import METRICS
from allranks.result import Finding, Judgement, TrainingRun, Verdict

SCHEMA_VERSION = 1
_SAME = ("verdict", "phase", "sentence", "cluster", "started", "finished", "artefacts")
"""What a run has under the same name in its result.json."""
_WORST = (Verdict.FAILED, Verdict.INCOMPLETE, Verdict.FLAKY, Verdict.PASSED)


@dataclass(frozen=True, slots=True)
class Skip:
    """Something that was to be tested and was not."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Session:
    """What a session came to."""

    sentence: str
    """The verdict in one sentence, as the terminal's last line."""
    green: bool
    """Whether the session exits 0."""
    runs: Sequence[TrainingRun] = ()
    failed_tests: Sequence[str] = ()
    skipped: Sequence[Skip] = ()

    @property
    def verdict(self) -> str:
        """The worst of the runs'; `failed` where they passed and something else did not, `none` without a run."""
        if not self.runs:
            return "none"
        worst = min((run.verdict for run in self.runs), key=_WORST.index)
        return str(Verdict.FAILED if worst is Verdict.PASSED and not self.green else worst)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA_VERSION,
            "verdict": self.verdict,
            "green": self.green,
            "sentence": self.sentence,
            "runs": [_run(run) for run in self.runs],
            "failed_tests": list(self.failed_tests),
            "skipped": [{"what": skip.what, "why": skip.why} for skip in self.skipped],
        }

    def write(self, path: Path) -> None:
        """In one step: whoever reads it sees all of it or none. Raises OSError."""
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(path)


def _run(run: TrainingRun) -> dict[str, Any]:
    whole = run.to_dict()
    figures = {metric: measure(run, metric) for metric in METRICS}
    return {
        **{name: whole[name] for name in _SAME},
        "run": run.plan.run_id,
        "subject": subject_of(run),
        "ranks": whole["ranks"],
        "cause": _cause(run.judgement.cause),
        "figures": {metric: _plain(value) for metric, value in figures.items() if value is not None},
        "references": whole["references"],
        "attempts": [*map(_attempt, run.attempts), _attempt(run.judgement)],
        "left_out": [_cause(finding) for finding in run.findings if finding.code == "note-node-skipped"],
    }


def _attempt(judged: Judgement) -> Mapping[str, Any]:
    return {
        "verdict": judged.verdict.value,
        "phase": judged.phase.value if judged.phase else None,
        "cause": _cause(judged.cause),
        "reported": len(judged.reported),
        "restarts": judged.attempt,
    }


def _cause(finding: Finding | None) -> dict[str, Any] | None:
    if finding is None:
        return None
    return {name: finding.to_dict()[name] for name in ("code", "message", "ranks", "pod", "node")}


def _plain(value: float | None) -> float | str | None:
    """JSON has no nan and no infinity (contract 2)."""
    return value if value is None or abs(value) < float("inf") else str(value)


def skips(reasons: Mapping[str, str]) -> Iterable[Skip]:
    """One per test and reason, as pytest gives them."""
    return (Skip(test, why.removeprefix("Skipped: ")) for test, why in sorted(reasons.items()))
