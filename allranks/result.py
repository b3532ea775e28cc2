"""What a run came to: plain values, the same for a live run, a replay and judged logs, and their JSON form.

Everything that reports (terminal, JUnit, HTML, history) reads a `TrainingRun` and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from allranks.device_figures import DeviceFigures
from allranks.plan import Plan, format_ranks
from allranks.references import ReferenceResult

SCHEMA_VERSION = 1
SAMPLES = "samples/s"


class Verdict(StrEnum):
    """Contract 4. Only PASSED (and, if the user allows it, FLAKY) is green."""

    PASSED = "passed"
    FLAKY = "flaky"
    INCOMPLETE = "incomplete"
    FAILED = "failed"


class Phase(StrEnum):
    """Where a failed run failed, in the order of a run's life."""

    CAPACITY = "capacity"
    SCHEDULE = "schedule"
    PULL = "pull"
    START = "start"
    RENDEZVOUS = "rendezvous"
    TRAIN = "train"
    CHECK = "check"


class Stage(StrEnum):
    """How far a rank got. Each stage includes those before it."""

    PLANNED = "planned"
    LAUNCHED = "launched"
    """The launcher started its process (second channel), or it spoke."""
    HEARD = "heard"
    """At least one record of it was read."""
    FINISHED = "finished"
    """Its process ended with exit code 0, or, where nothing tells exit codes, its final record was read."""
    MEASURED = "measured"
    """Its final record, with its throughput, was read."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong (or worth knowing) about a run, in one sentence."""

    code: str
    """Stable identifier in kebab-case: missing-rank, duplicate-rank, world-size, exit-code, unschedulable …"""
    message: str
    """What happened, to whom, and what to do next."""
    verdict: Verdict = Verdict.FAILED
    """What this finding alone makes of the run; PASSED for a note that changes nothing."""
    phase: Phase | None = None
    ranks: tuple[int, ...] = ()
    pod: str | None = None
    node: str | None = None
    at: float | None = None
    """Unix time of the fact, in seconds, where known: the earliest failure is the cause."""
    consequence: bool = False
    """It merely followed from the first failure (a peer that was terminated, its missing records)."""
    evidence: tuple[str, ...] = ()
    """The lines or events it rests on, cleaned for display."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": self.message,
            "verdict": self.verdict.value,
            "phase": self.phase.value if self.phase else None,
            "ranks": list(self.ranks),
            "pod": self.pod,
            "node": self.node,
            "at": self.at,
            "consequence": self.consequence,
            "evidence": list(self.evidence),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            **{
                **data,
                "verdict": Verdict(data["verdict"]),
                "phase": Phase(data["phase"]) if data["phase"] else None,
                "ranks": tuple(data["ranks"]),
                "evidence": tuple(data["evidence"]),
            }
        )


@dataclass(frozen=True, slots=True)
class RankResult:
    """What is known of one rank. Absent figures are None, never 0."""

    rank: int
    stage: Stage = Stage.PLANNED
    pod: str | None = None
    node: str | None = None
    local_rank: int | None = None
    world: int | None = None
    """The world size that its process group reported."""
    device: str | None = None
    """As the rank names it: `cuda:0`, `xla:0`, `cpu`; `cpu (in place of nvidia)` on a stand-in node."""
    backend: str | None = None
    transport: str | None = None
    """The network that its communication library says it uses: `AWS Libfabric`, `IB`, `Socket`."""
    exit_code: int | None = None
    """Of its process; negative for a signal, as in Python's subprocess."""
    steps: int | None = None
    samples: float | None = None
    throughput: float | None = None
    """Of this rank alone, warm-up excluded, in the judgement's unit (samples per second)."""
    epoch_time: float | None = None
    """Average seconds per epoch, warm-up excluded."""
    total_time: float | None = None
    step_time_p50: float | None = None
    """Seconds, of the steps that were read, warm-up excluded; within 1 %."""
    step_time_p99: float | None = None
    bus_bandwidth: float | None = None
    """GB/s, of programs that measure collectives."""
    loss_first: float | None = None
    loss_last: float | None = None
    fingerprint: str | None = None
    """Digest of the parameters after the last step; equal on all ranks that hold the same part of the model."""
    fingerprint_group: str | None = None
    """Which part that is, where the model is divided: `tp0pp1`."""
    device_figures: DeviceFigures | None = None
    """Utilisation, clocks, power, memory; None where it said nothing of the kind."""
    source: str | None = None
    """Where the figures came from: `log`, `status` (the launcher's termination message) or None."""
    where: str | None = None
    """File or stream and line of the final record, e.g. `pod-0.log:1201`."""

    def to_dict(self) -> dict[str, Any]:
        return {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        told = data.get("device_figures")
        known = {name: _number(value) for name, value in data.items() if name != "device_figures"}
        known["stage"] = Stage(data["stage"])
        return cls(**known, device_figures=DeviceFigures.from_dict(told) if told else None)


@dataclass(frozen=True, slots=True)
class LossCurve:
    """The losses that some ranks told, all of them the same."""

    ranks: tuple[int, ...]
    steps: int
    """How many steps they told. Where that is more than there are points, the curve was thinned."""
    points: tuple[tuple[float, float], ...]
    """(step, loss), finite ones, in order of steps; the first and the last always."""

    def to_dict(self) -> dict[str, Any]:
        return {"ranks": list(self.ranks), "steps": self.steps, "points": [list(point) for point in self.points]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(tuple(data["ranks"]), data["steps"], tuple((step, loss) for step, loss in data["points"]))


@dataclass(frozen=True, slots=True)
class Figures:
    """The summary figures over the ranks whose figures were read in the log (N4)."""

    ranks: int
    throughput_total: float | None
    """Summed over ranks, in the judgement's unit."""
    throughput_average: float | None
    epoch_ranks: int
    epoch_time_sum: float | None
    """Seconds, summed over ranks' average epoch times."""
    epoch_time_average: float | None

    @classmethod
    def of(cls, ranks: tuple[RankResult, ...]) -> Self:
        read = [rank for rank in ranks if rank.source != "status"]
        rates = [rank.throughput for rank in read if rank.throughput is not None]
        epochs = [rank.epoch_time for rank in read if rank.epoch_time is not None]
        return cls(
            ranks=len(rates),
            throughput_total=math.fsum(rates) if rates else None,
            throughput_average=math.fsum(rates) / len(rates) if rates else None,
            epoch_ranks=len(epochs),
            epoch_time_sum=math.fsum(epochs) if epochs else None,
            epoch_time_average=math.fsum(epochs) / len(epochs) if epochs else None,
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict over a plan and its evidence, before the run's circumstances are added."""

    verdict: Verdict
    phase: Phase | None
    cause: Finding | None
    """The first failure; None when the run passed."""
    findings: tuple[Finding, ...]
    """All of them: the cause first, consequences and notes last."""
    ranks: tuple[RankResult, ...]
    """One per planned rank, in rank order."""
    duplicate: tuple[int, ...] = ()
    """Ranks that more than one process claimed to be, or that reported twice."""
    foreign: tuple[int, ...] = ()
    """Ranks outside the plan that spoke."""
    attempt: int = 0
    """Which attempt of the launcher this is about (TORCHELASTIC_RESTART_COUNT): more than 0 after restarts."""
    completeness: str = "proven"
    """`proven` where records are numbered and counted, `unproven` for other people's formats."""
    throughput_unit: str = SAMPLES
    """Of the ranks' throughput: some formats count tokens."""
    subject: tuple[tuple[str, str], ...] = ()
    """What all ranks say they are: workload, size, dtype, product. References are chosen by it."""
    overall: tuple[tuple[str, float], ...] = ()
    """Figures that the log gives for the whole job, by name of the metric: bus_bandwidth (GB/s)."""
    losses: tuple[LossCurve, ...] = ()
    """Loss by step; one curve where all ranks agree, as they do when each tells the global loss."""

    @property
    def reported(self) -> tuple[int, ...]:
        """Planned ranks whose final record was read in the log. Figures from the launcher's status do not count."""
        return tuple(rank.rank for rank in self.ranks if rank.source == "log")

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(rank.rank for rank in self.ranks if rank.source != "log")


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A judged run: what a report shows and a history keeps."""

    plan: Plan
    judgement: Judgement
    cluster: str = ""
    """Which cluster, as header and summary name it: `stand-in (127.0.0.1:41873)`, `context prod (v1.36.0)`, `logs`."""
    namespace: str | None = None
    started: float | None = None
    """Unix times in seconds."""
    finished: float | None = None
    timeline: tuple[tuple[str, float], ...] = ()
    """Name and Unix seconds, in order: planned, applied, scheduled, pulled, started, heard, first step, last record."""
    artefacts: str | None = None
    """Directory with result.json, logs, events and objects."""
    attempts: tuple[Judgement, ...] = field(default=())
    """Earlier attempts, oldest first."""
    references: tuple[ReferenceResult, ...] = ()
    """Figures held against references, where there were any."""

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict

    @property
    def ranks(self) -> tuple[RankResult, ...]:
        return self.judgement.ranks

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.judgement.findings

    @property
    def figures(self) -> Figures:
        return Figures.of(self.ranks)

    def count(self, stage: Stage) -> int:
        """How many ranks got at least this far."""
        order = list(Stage)
        return sum(order.index(rank.stage) >= order.index(stage) for rank in self.ranks)

    def sentence(self) -> str:
        """The verdict in one sentence: the last line of every output."""
        judged = self.judgement
        world = self.plan.world_size
        if judged.verdict in (Verdict.PASSED, Verdict.FLAKY):
            attempt = max(len(self.attempts), judged.attempt) + 1
            also = "" if judged.verdict is Verdict.PASSED else f" at attempt {attempt}"
            return f"{judged.verdict.upper()}: all {world} ranks accounted for{also}"
        reported = len(judged.reported)
        where = f" in {judged.phase}" if judged.phase else ""
        why = judged.cause.message if judged.cause else "no evidence"
        return f"{judged.verdict.upper()}{where}: {why} ({reported} of {world} ranks reported)"

    def missing(self) -> str:
        """The ranks without a final record, in ranges; empty when there are none."""
        return format_ranks(self.judgement.missing)

    def to_dict(self) -> dict[str, Any]:
        figures = self.figures
        return {
            "schema": SCHEMA_VERSION,
            "verdict": self.verdict.value,
            "sentence": self.sentence(),
            "cluster": self.cluster,
            "namespace": self.namespace,
            "started": self.started,
            "finished": self.finished,
            "timeline": [[name, at] for name, at in self.timeline],
            "artefacts": self.artefacts,
            "plan": self.plan.to_dict(),
            "figures": {name: _plain(getattr(figures, name)) for name in figures.__dataclass_fields__},
            **_judgement_dict(self.judgement),
            "attempts": [_judgement_dict(attempt) for attempt in self.attempts],
            "references": [compared.to_dict() for compared in self.references],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Raises ValueError when the schema is not one this version reads."""
        if data.get("schema") != SCHEMA_VERSION:
            raise ValueError(f"result schema {data.get('schema')!r}; this version reads schema {SCHEMA_VERSION}")
        return cls(
            plan=Plan.from_dict(data["plan"]),
            judgement=_judgement_from(data),
            cluster=data["cluster"],
            namespace=data["namespace"],
            started=data["started"],
            finished=data["finished"],
            timeline=tuple((name, at) for name, at in data["timeline"]),
            artefacts=data["artefacts"],
            attempts=tuple(_judgement_from(attempt) for attempt in data["attempts"]),
            references=tuple(ReferenceResult.from_dict(compared) for compared in data.get("references", ())),
        )


def _judgement_dict(judged: Judgement) -> dict[str, Any]:
    return {
        "verdict": judged.verdict.value,
        "phase": judged.phase.value if judged.phase else None,
        "cause": judged.cause.to_dict() if judged.cause else None,
        "findings": [finding.to_dict() for finding in judged.findings],
        "attempt": judged.attempt,
        "completeness": judged.completeness,
        "throughput_unit": judged.throughput_unit,
        "subject": dict(judged.subject),
        "overall": {name: _plain(value) for name, value in judged.overall},
        "ranks": {
            "expected": len(judged.ranks),
            "reported": len(judged.reported),
            "missing": list(judged.missing),
            "duplicate": list(judged.duplicate),
            "foreign": list(judged.foreign),
        },
        "losses": [curve.to_dict() for curve in judged.losses],
        "rank_results": [rank.to_dict() for rank in judged.ranks],
    }


def _judgement_from(data: Mapping[str, Any]) -> Judgement:
    return Judgement(
        verdict=Verdict(data["verdict"]),
        phase=Phase(data["phase"]) if data["phase"] else None,
        cause=Finding.from_dict(data["cause"]) if data["cause"] else None,
        findings=tuple(Finding.from_dict(finding) for finding in data["findings"]),
        ranks=tuple(RankResult.from_dict(rank) for rank in data["rank_results"]),
        duplicate=tuple(data["ranks"]["duplicate"]),
        foreign=tuple(data["ranks"]["foreign"]),
        attempt=data["attempt"],
        completeness=data["completeness"],
        throughput_unit=data.get("throughput_unit", SAMPLES),
        subject=tuple(data.get("subject", {}).items()),
        overall=tuple((name, _number(value)) for name, value in data.get("overall", {}).items()),
        losses=tuple(LossCurve.from_dict(curve) for curve in data.get("losses", ())),
    )


def _plain(value: Any) -> Any:
    """JSON has no nan and no infinity: they become the strings of contract 2."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, DeviceFigures):
        return value.to_dict()
    return value.value if isinstance(value, StrEnum) else value


def _number(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value
