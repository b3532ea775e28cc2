"""What a rank says of its device at work, beside its throughput."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """Named as in the `end` record. What was not said is None."""

    mfu: float | None = None
    """Model FLOPs utilisation, as a fraction of `peak_tflops`."""
    peak_tflops: float | None = None
    peak_from: str | None = None
    """`datasheet`, `measured` or `given`."""
    steady_throughput: float | None = None
    """Samples per second: the median of the windows."""
    steady_spread: float | None = None
    """The middle half of the windows, relative to their median."""
    sm_clock: float | None = None
    """MHz, the median over the measurement."""
    max_sm_clock: float | None = None
    power: float | None = None
    """Watts, the median over the measurement."""
    power_limit: float | None = None
    temperature: float | None = None
    """Degrees Celsius, the highest."""
    throttle: str | None = None
    """What held the clock down, by commas; `none` where nothing did."""
    peak_memory: float | None = None
    """Bytes that tensors had at once."""
    compile_time: float | None = None
    """Seconds of the first pass, in which kernels are compiled and loaded."""
    time_to_first_step: float | None = None
    """Seconds from the process's start to the end of its first step."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Of the throttling, one by one."""
        told = (self.throttle or "none").split(",")
        return tuple(reason for reason in map(str.strip, told) if reason not in ("", "none"))

    def to_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in NAMES}
        unfit = {n: str(v) for n, v in values.items() if isinstance(v, float) and not math.isfinite(v)}
        return values | unfit

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{name: _number(value) if name not in TEXTS else value for name, value in data.items()})


NAMES = tuple(field.name for field in fields(DeviceFigures))
TEXTS = ("peak_from", "throttle")
NUMBERS = tuple(name for name in NAMES if name not in TEXTS)


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value
