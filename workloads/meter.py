"""Times of a training, measured so that measuring does not slow it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from workloads.device import Device


@dataclass
class Meter:
    """Times of steps, epochs and of all after warm-up, in seconds, without making the device wait more than it must."""

    device: Device
    warmup_steps: int
    step: int = 0
    _samples: float = 0
    _epoch_samples: float = 0
    _since: float = 0.0
    _epoch_since: float = 0.0
    _start: object = None

    def __post_init__(self) -> None:
        self._since = time.perf_counter()

    def start_epoch(self) -> None:
        self._epoch_since, self._epoch_samples = time.perf_counter(), 0

    def start_step(self, *, exact: bool) -> None:
        self.step += 1
        if exact and self.device.kind == "xla":
            self.device.synchronize()  # its marks are the host's
        self._start = self.device.mark()

    def end_step(self, samples: float, ready: object, *, exact: bool) -> dict[str, Any]:
        """The step's times; empty when they are not asked for, since looking at them means to wait.

        `ready` marks the end of the rank's own work; None where nobody can tell it from the common work.
        """
        self._samples += samples
        self._epoch_samples += samples
        times: dict[str, Any] = {}
        if exact:
            if self.device.kind == "xla":
                self.device.synchronize()
            end = self.device.mark()
            times = {
                "step_time": self.device.seconds(self._start, end),
                "local_time": None if ready is None else self.device.seconds(self._start, ready),
                "warmup": self.step <= self.warmup_steps,
            }
        if self.step == self.warmup_steps:
            self.device.synchronize()
            self._since, self._samples = time.perf_counter(), 0
        return times

    def end_epoch(self) -> dict[str, float]:
        self.device.synchronize()
        return {"time": time.perf_counter() - self._epoch_since, "samples": self._epoch_samples}

    def figures(self, steps_per_epoch: float) -> dict[str, float]:
        """This rank's samples, seconds and samples/s after warm-up, and what an epoch takes at that pace."""
        total = time.perf_counter() - self._since
        return {
            "samples": self._samples,
            "total_time": total,
            "throughput": self._samples / total,
            "epoch_time": total / (self.step - self.warmup_steps) * steps_per_epoch,
        }
