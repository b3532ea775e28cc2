"""Figures of a training at its working pace: when it is warm, in windows that end with the device idle.

What misleads: a device that is still cool and clocked high, steps timed on a host that runs ahead of the device, and a
mean over a run with one hiccup in it. So warm-up lasts until the pace has settled, for all ranks together; then the
median of the windows is the figure, and their spread says what it is worth.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field

import torch

from workloads import early
from workloads.device import Device
from workloads.groups import Group
from workloads.meter import Meter
from workloads.nvml import Gpu, Reading

SETTLED = 0.01
"""Largest relative difference among the last windows at which the pace counts as settled."""
_COMPARED = 3


def add_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--warmup-time", type=float, help="seconds that warm-up lasts at least, and then until the pace has settled"
    )


@dataclass
class Steady(Meter):
    """A meter that also knows windows: from one look at the device to the next.

    Warm-up ends after `warmup_steps`, or with a `warmup_time` (seconds) at the end of the first window after both at
    which every rank's pace has settled; it waits for that no longer than twice the time, nor than half of `steps`.
    """

    steps: int = 0
    warmup_time: float = 0.0
    gpu: Gpu | None = None
    settled: bool = True
    """Whether the pace had settled when the measurement began."""
    compile_time: float | None = None
    """Seconds of the first pass, in which kernels are compiled and loaded."""
    first_step: float | None = None
    """Seconds from the process's start to the end of its first step."""
    _began: float = field(default_factory=time.perf_counter)
    _window_since: float = 0.0
    _window_step: int = 0
    _window_samples: float = 0.0
    _recent: list[float] = field(default_factory=list)
    _rates: list[float] = field(default_factory=list)
    _readings: list[Reading] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._window_since = self._since
        self._by_time = self.warmup_time > 0
        self._least_steps = self.warmup_steps
        if self._by_time:
            self.warmup_steps = self.steps  # until it is over, every step is warm-up

    def start_step(self, *, exact: bool) -> None:
        if self.step == 0:  # what was before it (compilation) is not training
            self._began = self._since = self._window_since = time.perf_counter()
        super().start_step(exact=exact)

    def end_step(self, samples: float, ready: object, *, exact: bool) -> dict[str, object]:
        if exact and self.gpu and self.step > self.warmup_steps:
            self._readings.append(self.gpu.read())  # before the wait: while the device works
        self._window_samples += samples
        times = super().end_step(samples, ready, exact=exact)
        if not self._by_time and self.step == self.warmup_steps:
            self._open_window()
        return times

    @property
    def vote(self) -> bool:
        """Whether this rank, at the end of a window, has nothing against the end of the warm-up."""
        if not self._by_time or self.step > self.warmup_steps:
            return True
        now = time.perf_counter()
        latest = [*self._recent, self._step_time(now)][-_COMPARED:]
        elapsed = now - self._began
        settled = len(latest) == _COMPARED and max(latest) <= min(latest) * (1 + SETTLED)
        late = elapsed >= 2 * self.warmup_time or 2 * self.step >= self.steps
        self.settled = settled
        return self.step >= self._least_steps and (late or (elapsed >= self.warmup_time and settled))

    def close_window(self, *, unanimous: bool) -> None:
        """At a step that was looked at, with the device idle; `unanimous`: whether all ranks voted for it."""
        now = time.perf_counter()
        if self.first_step is None:
            self.first_step = now - early.STARTED
        if self.step > self.warmup_steps:
            self._rates.append(self._window_samples / (now - self._window_since))
        else:
            self._recent.append(self._step_time(now))
            if self._by_time and unanimous:
                self.warmup_steps = self.step
                self._since, self._samples = now, 0
        self._open_window(now)

    def _step_time(self, now: float) -> float:
        return (now - self._window_since) / max(1, self.step - self._window_step)

    def _open_window(self, now: float | None = None) -> None:
        self._window_since = time.perf_counter() if now is None else now
        self._window_step, self._window_samples = self.step, 0.0

    @property
    def pace(self) -> float:
        """Samples/s: the median of the windows, or where there are none to speak of, the mean."""
        if len(self._rates) < 2:
            return self._samples / (time.perf_counter() - self._since)
        return statistics.median(self._rates)

    @property
    def phases(self) -> dict[str, float | None]:
        return {"compile_time": self.compile_time, "time_to_first_step": self.first_step}

    def steady_figures(self) -> dict[str, object]:
        """Of the windows after warm-up; what is not known is None.

        `steady_throughput` (samples/s) is their median, `steady_spread` half of them around it, relative to it;
        `settled` whether the pace had settled when they began; of the GPU, the medians of clock and power.
        """
        if len(self._rates) < 2:
            return {}
        median = self.pace
        low, _, high = statistics.quantiles(self._rates, n=4, method="inclusive")
        return {
            "windows": len(self._rates),
            "steady_throughput": median,
            "steady_spread": (high - low) / median,
            "settled": self.settled if self._by_time else None,
            **_of_gpu(self.gpu, self._readings),
        }


def agreed(loss: torch.Tensor, vote: bool, group: Group, device: Device) -> tuple[float, bool]:
    """The mean loss over the global batch (of each rank's share, the sum), and whether all ranks voted for it.

    Waits for the device.
    """
    sums = torch.stack([loss.detach(), torch.full_like(loss, float(vote))])
    group.sum_([sums])
    device.synchronize()
    mean, votes = sums.tolist()
    return mean, votes == group.size


def _of_gpu(gpu: Gpu | None, readings: list[Reading]) -> dict[str, object]:
    if gpu is None or not readings:
        return {}
    clocks = [reading.sm_clock for reading in readings if reading.sm_clock is not None]
    powers = [reading.power for reading in readings if reading.power is not None]
    temperatures = [reading.temperature for reading in readings if reading.temperature is not None]
    reasons = sorted({reason for reading in readings for reason in reading.reasons})
    return {
        "sm_clock": statistics.median(clocks) if clocks else None,
        "max_sm_clock": gpu.max_sm_clock,
        "power": statistics.median(powers) if powers else None,
        "power_limit": gpu.power_limit,
        "temperature": max(temperatures, default=None),
        "throttle": ", ".join(reasons) or "none",
    }


def gpu_of(device: Device) -> Gpu | None:
    """The device's sensors, where it is an NVIDIA GPU whose driver tells."""
    uuid = device.uuid
    return None if uuid is None else Gpu.open(uuid)
