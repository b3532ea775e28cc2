"""What one rank said in one attempt: figures and counts, bounded whatever the log's size."""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from allranks.device_figures import NUMBERS, TEXTS, DeviceFigures
from allranks.ledger.quantiles import Quantiles
from allranks.ledger.record import FIGURES, Record, Where

_RUNS = 1024
_DIGESTS = 512
_POINTS = 128
_KEPT = 16
"""How many of the like (starts, conflicts, errors, world sizes) are kept of one rank; the rest only counts."""


class Coverage:
    """A set of numbers from 0, kept as runs: as good as constant in size when they come nearly in order."""

    __slots__ = ("count", "runs")

    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        """Sorted, disjoint, not touching: [first, last]."""
        self.count = 0

    def __contains__(self, number: int) -> bool:
        at = bisect.bisect_right(self.runs, [number, math.inf]) - 1
        return at >= 0 and number <= self.runs[at][1]

    def add(self, number: int) -> None:
        """Must not be in the set. Beyond 1024 runs more of them are counted, not kept."""
        self.count += 1
        at = bisect.bisect_right(self.runs, [number, math.inf])
        if at and self.runs[at - 1][1] == number - 1:
            self.runs[at - 1][1] = number
            at -= 1
        elif len(self.runs) < _RUNS:
            self.runs.insert(at, [number, number])
        else:
            return
        if at + 1 < len(self.runs) and self.runs[at + 1][0] == self.runs[at][1] + 1:
            self.runs[at][1] = self.runs.pop(at + 1)[1]

    def gaps(self, end: int) -> Iterator[tuple[int, int]]:
        """The runs (first, last) that are missing from {0 … end−1}."""
        expected = 0
        for first, last in self.runs:
            if first >= end:
                break
            if first > expected:
                yield expected, first - 1
            expected = last + 1
        if expected < end:
            yield expected, end - 1


class Voice:
    """The records of a rank that came from one source, so that a repeated stream is told from a second speaker."""

    __slots__ = ("_digests", "first", "pod", "seen")

    def __init__(self, where: Where, pod: str | None) -> None:
        self.first = where
        self.pod = pod
        self.seen = Coverage()
        self._digests = array("Q")

    def note(self, seq: int, digest: int) -> None:
        if self.seen.runs[-1][1] >= seq + _DIGESTS:
            return  # an older part that is read later must not push out what is newer
        slot = seq % _DIGESTS
        if slot >= len(self._digests):
            self._digests.extend([0] * (slot + 1 - len(self._digests)))
        self._digests[slot] = digest

    def repeats(self, seq: int, digest: int) -> bool:
        """Whether a number that was seen comes with the same bytes.

        Of numbers 512 back the digest is gone; they pass as repeated, since a second process shows itself by the
        process id in its start record as well.
        """
        newest = self.seen.runs[-1][1]
        return seq <= newest - _DIGESTS or self._digests[seq % _DIGESTS] == digest


class LossSeries:
    """A rank's losses by step, thinned to at most 128 points; the extremes are exact."""

    __slots__ = ("_losses", "_skip", "_steps", "_stride", "count", "first", "last", "least", "not_finite")

    def __init__(self) -> None:
        self.count = 0
        self.first: tuple[float, float] | None = None
        """(step, loss) of the lowest step."""
        self.last: tuple[float, float] | None = None
        self.least: float | None = None
        self.not_finite: tuple[float, float, Where] | None = None
        """The lowest step whose loss is nan or infinite: step, loss, where."""
        self._steps = array("d")
        self._losses = array("d")
        self._stride = 1
        self._skip = 0

    def add(self, step: float, loss: float, where: Where) -> None:
        self.count += 1
        if self.first is None or step < self.first[0]:
            self.first = (step, loss)
        if self.last is None or step >= self.last[0]:
            self.last = (step, loss)
        if not math.isfinite(loss):
            if self.not_finite is None or step < self.not_finite[0]:
                self.not_finite = (step, loss, where)
            return
        self.least = loss if self.least is None else min(self.least, loss)
        self._skip += 1
        if self._skip < self._stride:
            return
        self._skip = 0
        self._steps.append(step)
        self._losses.append(loss)
        if len(self._steps) > _POINTS:
            del self._steps[1::2], self._losses[1::2]
            self._stride *= 2

    def points(self) -> list[tuple[float, float]]:
        """(step, loss) in order of steps, finite losses only, the first and the last included."""
        points = dict(zip(self._steps, self._losses, strict=True))
        points.update(p for p in (self.first, self.last) if p is not None and math.isfinite(p[1]))
        return sorted(points.items())


@dataclass(frozen=True, slots=True)
class Start:
    """What a rank said of itself when its process group stood."""

    pod: str | None
    node: str | None
    pid: int | None
    local_rank: int | None
    device: str | None
    standin: str | None
    """The accelerator that the CPU stands in for, on a stand-in node."""
    backend: str | None
    where: Where
    time: float | None
    subject: tuple[tuple[str, str], ...] = ()
    """What it trains, and on what: workload, size, dtype, product."""

    @property
    def process(self) -> tuple[str | None, str | None, int | None]:
        """What tells one process from another."""
        return (self.pod, self.node, self.pid)

    def __str__(self) -> str:
        named = [f"{what} {value}" for what, value in (("pod", self.pod), ("pid", self.pid)) if value is not None]
        return f"{' '.join(named) or 'a process'} ({self.where})"


@dataclass(slots=True)
class Final:
    """A rank's final figures. Those that it did not give are None."""

    where: Where
    seq: int | None = None
    records: int | None = None
    """How many records the rank says it wrote."""
    steps: int | None = None
    samples: float | None = None
    total_time: float | None = None
    throughput: float | None = None
    epoch_time: float | None = None
    bus_bandwidth: float | None = None
    """GB/s, of a program that measures collectives."""
    loss_first: float | None = None
    loss_last: float | None = None
    fingerprint: str | None = None
    fingerprint_group: str | None = None
    """Ranks that say the same here hold the same parameters: `tp0pp1` in a model that is divided; None: all do."""
    device_figures: DeviceFigures | None = None
    reported: bool = False
    """Whether it is final though it may lack a throughput: formats of steps, and tables of collectives."""


_NUMBERS = ("samples", "total_time", "throughput", "epoch_time", "bus_bandwidth", "loss_first", "loss_last")
_SUBJECT = (("workload", "workload"), ("size", "size"), ("dtype", "dtype"), ("product", "device_name"))


class Account:
    """One rank in one attempt."""

    __slots__ = (
        "attempt", "conflict_count", "conflicts", "errors", "final", "first_where", "last_time", "losses", "numbered",
        "rank", "records", "repeated", "starts", "step_times", "voices", "worlds",
    )  # fmt: skip

    def __init__(self, rank: int, attempt: int, numbered: bool, where: Where) -> None:
        self.rank = rank
        self.attempt = attempt
        self.numbered = numbered
        """Whether its records are numbered, so that their completeness can be proven."""
        self.first_where = where
        self.voices: dict[str, Voice] = {}
        self.starts: list[Start] = []
        self.worlds: dict[int, Where] = {}
        self.losses = LossSeries()
        self.step_times: Quantiles | None = None
        """Of the steps after warm-up; None before the first."""
        self.final: Final | None = None
        self.errors: list[tuple[str, Where, float | None]] = []
        self.conflicts: list[tuple[Where, str]] = []
        """Records that cannot be this process's: where, and why."""
        self.conflict_count = 0
        self.records = 0
        """Distinct ones."""
        self.repeated = 0
        """Read again from the same source, byte for byte."""
        self.last_time: float | None = None

    def enter(self, record: Record, where: Where, pod: str | None) -> bool:
        """Take a record of this rank down; False when it only repeats one from the same source."""
        voice = self.voices.get(where.source)
        if voice is None:
            voice = self.voices[where.source] = Voice(where, pod)
        if record.seq is not None and not self._count(record.seq, record.digest, voice, where):
            return False
        self.records += 1
        if record.time is not None and math.isfinite(record.time):
            self.last_time = max(record.time, self.last_time or record.time)
        if record.world is not None and len(self.worlds) < _KEPT:
            self.worlds.setdefault(record.world, where)
        match record.event:
            case "start":
                self._start(record, where)
            case "step":
                self._step(record, where)
            case "end":
                self._end(record, where)
            case "error" if len(self.errors) < _KEPT:
                kind, message = record.text("type") or "error", record.text("message") or ""
                self.errors.append((f"{kind}: {message}".rstrip(": "), where, record.time))
            case event if event == FIGURES:
                self._figures(record, where)
        return True

    def _count(self, seq: int, digest: int, voice: Voice, where: Where) -> bool:
        if seq in voice.seen:
            if voice.repeats(seq, digest):
                self.repeated += 1
                return False
            self._conflict(where, f"record {seq} again, with other content")
            return True
        for name, other in self.voices.items():
            if other is not voice and seq in other.seen:
                copied = (
                    ", byte for byte: the same log twice?" if other.repeats(seq, digest) else ", with other content"
                )
                self._conflict(where, f"record {seq} also in {name}{copied}")
                break
        voice.seen.add(seq)
        voice.note(seq, digest)
        return True

    def _conflict(self, where: Where, why: str) -> None:
        self.conflict_count += 1
        if len(self.conflicts) < _KEPT:
            self.conflicts.append((where, why))

    def _start(self, record: Record, where: Where) -> None:
        start = Start(
            pod=record.text("pod"),
            node=record.text("node"),
            pid=record.integer("pid"),
            local_rank=record.integer("local_rank"),
            device=record.text("device"),
            standin=record.text("standin"),
            backend=record.text("backend"),
            where=where,
            time=record.time,
            subject=tuple((key, value) for key, name in _SUBJECT if (value := record.text(name)) is not None),
        )
        if len(self.starts) < _KEPT:
            self.starts.append(start)

    def _step(self, record: Record, where: Where) -> None:
        step, loss = record.number("step"), record.number("loss")
        if step is not None and loss is not None:
            self.losses.add(step, loss, where)
        seconds = record.number("step_time")
        if seconds is not None and 0 < seconds < math.inf and record.fields.get("warmup") is not True:
            self.step_times = self.step_times or Quantiles()
            self.step_times.add(seconds)

    def _end(self, record: Record, where: Where) -> None:
        if self.final is not None:
            self._conflict(where, "a second final record")
            return
        self.final = Final(where, seq=record.seq, records=record.integer("records"), steps=record.integer("steps"))
        self.final.fingerprint = record.text("fingerprint")
        self.final.fingerprint_group = record.text("fingerprint_group")
        for name in _NUMBERS:
            setattr(self.final, name, record.number(name))
        told = {name: record.number(name) for name in NUMBERS} | {name: record.text(name) for name in TEXTS}
        if any(value is not None for value in told.values()):
            self.final.device_figures = DeviceFigures(**told)  # type: ignore[arg-type]

    def _figures(self, record: Record, where: Where) -> None:
        self.final = self.final or Final(where)
        for name in record.fields:
            if getattr(self.final, name) is not None:
                self._conflict(where, f"a second {name.replace('_', ' ')}")
                continue
            setattr(self.final, name, record.number(name))
            if name == "throughput":
                self.final.where = where

    @property
    def finished(self) -> bool:
        """Whether its final record, with its throughput, was read; in formats of steps the last ones."""
        final = self.final
        return final is not None and (final.reported or (self.numbered and final.throughput is not None))

    @property
    def processes(self) -> set[tuple[str | None, str | None, int | None]]:
        """The distinct processes that started as this rank."""
        return {start.process for start in self.starts}

    @property
    def disputes(self) -> list[tuple[Where, str]]:
        """What cannot be this process's, and why: the first few."""
        return self.conflicts

    @property
    def duplicated(self) -> bool:
        """Whether more than one process spoke as this rank, or one spoke in two places."""
        pods = {voice.pod for voice in self.voices.values() if voice.pod is not None}
        return bool(self.conflict_count) or len(self.processes) > 1 or len(pods) > 1

    def seen(self) -> Coverage:
        """The numbers read, over all sources."""
        if len(self.voices) == 1:
            return next(iter(self.voices.values())).seen
        seen = Coverage()
        for voice in self.voices.values():
            for first, last in voice.seen.runs:
                for seq in range(first, last + 1):
                    if seq not in seen:
                        seen.add(seq)
        return seen
