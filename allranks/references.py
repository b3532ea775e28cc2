"""`references.toml`: what a run's figures are held against. Reading and choosing; comparing is the checks' part.

In ReFrame's manner: a value with a lower and an upper tolerance, as fractions of the value, and a unit.

    [[reference]]
    name = "bert base on p5"
    workload = "bert"
    instance_type = "p5*"
    [reference.metrics]
    throughput_sum = { value = 5100, lower = -0.05, upper = 0.10, unit = "samples/s" }
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

import tomllib

KEYS = ("workload", "size", "dtype", "accelerator", "product", "instance_type", "world_size")
"""What a reference may be for; each a pattern (`p5*`), the world size also a number."""

_RATE, _TIME, _BANDWIDTH, _SHARE, _MEMORY = "samples/s", "s", "GB/s", "%", "GiB"
_TOKENS = "tokens/s"
UNITS: Mapping[str, Mapping[str, float]] = {
    _RATE: {"samples/s": 1.0, "samples/min": 1 / 60},
    _TOKENS: {"tokens/s": 1.0, "tokens/min": 1 / 60},
    _TIME: {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0},
    _BANDWIDTH: {"GB/s": 1.0, "MB/s": 1e-3, "GiB/s": 1.073741824, "Gbit/s": 0.125},
    _SHARE: {"%": 1.0},
    _MEMORY: {"GiB": 1.0, "GB": 1 / 1.073741824, "MiB": 1 / 1024},
}
"""A metric's own unit → the units that it may be given in, each in multiples of the own one."""

METRICS: Mapping[str, str] = {
    "throughput_sum": _RATE,
    "throughput_mean": _RATE,
    "throughput_slowest": _RATE,
    "epoch_time": _TIME,
    "step_time_p50": _TIME,
    "step_time_p99": _TIME,
    "bus_bandwidth": _BANDWIDTH,
    "mfu_mean": _SHARE,
    "mfu_lowest": _SHARE,
    "peak_memory": _MEMORY,
    "startup_capacity": _TIME,
    "startup_scheduled": _TIME,
    "startup_pulled": _TIME,
    "startup_started": _TIME,
    "startup_heard": _TIME,
    "startup_total": _TIME,
}
"""Metric → the unit it is measured in; throughputs in tokens/s where the log's format counts tokens."""

_ENTRY = ("name", "metrics", *KEYS)
_VALUE = ("value", "lower", "upper", "unit")
_WILD = frozenset("*?[")


class ReferencesError(ValueError):
    """A references file that cannot be used; the message names the file and the key."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One metric's reference value with its bounds, in the metric's own unit."""

    metric: str
    value: float
    low: float | None
    """The least that is accepted; None: no bound."""
    high: float | None
    reference: str
    """Which reference it stands in, as people find it in the file."""
    unit: str
    """The metric's own."""


class Outcome(StrEnum):
    MET = "met"
    VIOLATED = "violated"
    MISSING = "missing"
    """There was nothing to compare: never a pass."""


@dataclass(frozen=True, slots=True)
class ReferenceResult:
    """One figure of a run, held against its limit."""

    metric: str
    unit: str
    measured: float | None
    """None where not all that it is made of was read."""
    value: float
    low: float | None
    high: float | None
    reference: str
    outcome: Outcome

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if self.measured is not None and not math.isfinite(self.measured):
            plain["measured"] = str(self.measured)  # JSON has no nan and no infinity
        return plain | {"outcome": self.outcome.value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        measured = data["measured"]
        number = float(measured) if isinstance(measured, str) else measured
        return cls(**{**data, "measured": number, "outcome": Outcome(data["outcome"])})


@dataclass(frozen=True, slots=True)
class Reference:
    """One entry: for which runs, and the limits."""

    label: str
    """Its name and number: `"bert base on p5" (reference 2)`."""
    patterns: tuple[tuple[str, str], ...]
    limits: tuple[Limit, ...]

    def fits(self, subject: Mapping[str, str]) -> bool:
        """Whether it is for this run; what is not known of the run is only met by `*`."""
        return all(pattern == "*" or fnmatchcase(subject.get(key, "\0"), pattern) for key, pattern in self.patterns)

    @property
    def specificity(self) -> tuple[int, int, int]:
        """Keys given in full, then keys given by a pattern, then the characters that the patterns spell out."""
        exact = sum(not _WILD & set(pattern) for _, pattern in self.patterns)
        wild = [pattern for _, pattern in self.patterns if _WILD & set(pattern) and pattern != "*"]
        return exact, len(wild), sum(character not in _WILD for pattern in wild for character in pattern)


@dataclass(frozen=True, slots=True)
class References:
    """What a session's runs are held against. Without entries only `required` has an effect."""

    entries: tuple[Reference, ...] = ()
    required: bool = False
    """Whether a run that no reference fits fails."""
    name: str = ""
    """The file, for messages."""
    text: str = ""
    """As it was read, so that a replay can judge the same way."""

    @classmethod
    def parse(cls, text: str, name: str, *, required: bool = False) -> Self:
        """Raises ReferencesError, which names `name`, the entry and the key."""
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ReferencesError(f"{name}: not valid TOML: {error}") from error
        _no_others(data, ("reference",), name)
        entries = data.get("reference")
        if not isinstance(entries, list) or not entries:
            raise ReferencesError(f"{name}: reference: at least one [[reference]] table is expected")
        parsed = tuple(_entry(entry, number, name) for number, entry in enumerate(entries, start=1))
        _no_twins(parsed, name)
        return cls(parsed, required, name, text)

    @classmethod
    def read(cls, path: Path | None, *, required: bool = False) -> Self:
        """From a file; without one there are no entries. Raises ReferencesError, also when it cannot be read."""
        if path is None:
            return cls(required=required)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ReferencesError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ReferencesError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from error
        return cls.parse(text, str(path), required=required)

    def limits(self, subject: Mapping[str, str]) -> tuple[Limit, ...]:
        """For a run that `subject` describes (KEYS, where known): each metric's most specific limit.

        Raises ReferencesError when two references for one metric are equally specific.
        """
        chosen: dict[str, tuple[Reference, Limit]] = {}
        ties: dict[str, Reference] = {}
        for entry in self.entries:
            if not entry.fits(subject):
                continue
            for limit in entry.limits:
                rival = chosen.get(limit.metric)
                if rival is None or entry.specificity > rival[0].specificity:
                    chosen[limit.metric] = (entry, limit)
                    ties.pop(limit.metric, None)
                elif entry.specificity == rival[0].specificity:
                    ties[limit.metric] = entry
        for metric, entry in ties.items():
            rival_label = chosen[metric][0].label
            raise ReferencesError(
                f"{self.name}: {metric}: {rival_label} and {entry.label} fit this run equally well "
                f"({describe(subject)}): give one of them a further key, or a fuller pattern"
            )
        return tuple(chosen[metric][1] for metric in METRICS if metric in chosen)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "required": self.required, "text": self.text}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        if not data["text"]:
            return cls(required=data["required"], name=data["name"])
        return cls.parse(data["text"], data["name"], required=data["required"])


def describe(subject: Mapping[str, str]) -> str:
    """`workload=bert, size=base, world_size=16`."""
    return ", ".join(f"{key}={subject[key]}" for key in KEYS if key in subject)


def _entry(entry: Any, number: int, name: str) -> Reference:
    where = f"{name}: reference {number}"
    if not isinstance(entry, dict):
        raise ReferencesError(f"{where}: a table is expected: write [[reference]]")
    _no_others(entry, _ENTRY, where)
    title = entry.get("name", "")
    if not isinstance(title, str):
        raise ReferencesError(f"{where}: name: text is expected, not {title!r}")
    label = f'"{title}" (reference {number})' if title else f"reference {number}"
    patterns = tuple((key, _pattern(entry[key], key, where)) for key in KEYS if key in entry)
    metrics = entry.get("metrics")
    if not isinstance(metrics, dict) or not metrics:
        raise ReferencesError(f"{where}: metrics: at least one metric is expected")
    _no_others(metrics, tuple(METRICS), f"{where}: metrics")
    limits = tuple(_limit(metric, given, label, f"{where}: metrics.{metric}") for metric, given in metrics.items())
    return Reference(label, patterns, limits)


def _no_twins(entries: Iterable[Reference], name: str) -> None:
    """Entries for the very same runs are a tie whatever is run: better said before anything is."""
    seen: dict[tuple[tuple[tuple[str, str], ...], str], Reference] = {}
    for entry in entries:
        for limit in entry.limits:
            twin = seen.setdefault((entry.patterns, limit.metric), entry)
            if twin is not entry:
                raise ReferencesError(
                    f"{name}: metrics.{limit.metric}: {twin.label} and {entry.label} are for the same runs"
                )


def _pattern(value: Any, key: str, where: str) -> str:
    if key == "world_size" and isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return str(value)
    if not isinstance(value, str) or not value:
        kind = "a number of at least 1 or a pattern" if key == "world_size" else "a pattern"
        raise ReferencesError(f"{where}: {key}: {kind} is expected, not {value!r}")
    return value


def _limit(metric: str, given: Any, label: str, where: str) -> Limit:
    if not isinstance(given, dict):
        raise ReferencesError(f"{where}: {{ value, lower, upper, unit }} is expected, not {given!r}")
    _no_others(given, _VALUE, where)
    owns = (_RATE, _TOKENS) if METRICS[metric] == _RATE else (METRICS[metric],)
    units = {unit: (own, factor) for own in owns for unit, factor in UNITS[own].items()}
    unit = given.get("unit")
    if not isinstance(unit, str) or unit not in units:
        raise ReferencesError(f"{where}.unit: one of {', '.join(units)} is expected, not {unit!r}")
    value = _number(given.get("value"), f"{where}.value")
    if value <= 0:
        raise ReferencesError(f"{where}.value: more than 0 is expected, not {value:g}")
    bounds = {side: _number(given[side], f"{where}.{side}") for side in ("lower", "upper") if side in given}
    if not bounds:
        raise ReferencesError(f"{where}: lower, upper: at least one tolerance is expected, else nothing could fail")
    lower, upper = bounds.get("lower"), bounds.get("upper")
    if lower is not None and not -1 < lower <= 0:
        raise ReferencesError(f"{where}.lower: a fraction from 0 to -1 is expected (-0.05 for 5 % less), not {lower:g}")
    if upper is not None and upper < 0:
        raise ReferencesError(f"{where}.upper: a fraction of at least 0 is expected (0.1 for 10 % more), not {upper:g}")
    own, factor = units[unit]
    value *= factor
    return Limit(
        metric,
        value,
        None if lower is None else value * (1 + lower),
        None if upper is None else value * (1 + upper),
        label,
        own,
    )


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ReferencesError(f"{where}: a finite number is expected, not {value!r}")
    return float(value)


def _no_others(given: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    known = tuple(known)
    for key in given:
        if key not in known:
            raise ReferencesError(f"{where}: unknown key {key!r}; there are: {', '.join(known)}")
