"""How the GPU benchmarks time a training step, for every contestant alike."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

WARM_SECONDS = 4.0
"""Until the card is at its working temperature; compilation is over before that."""


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Windows:
    """Seconds per step in windows of `every` steps, each ended by a synchronisation; only those after warm-up count."""

    def __init__(self, seconds: float, every: int) -> None:
        self._seconds, self._every = seconds, every
        self._steps = 0
        self._began: float | None = None
        self._since = 0.0
        self.times: list[float] = []

    def step(self) -> bool:
        """After each step; whether another one is wanted."""
        self._steps += 1
        if self._steps % self._every:
            return True
        synchronize()
        now = time.perf_counter()
        if self._began is None:
            self._began = now
        elif now - self._began > WARM_SECONDS:
            self.times.append((now - self._since) / self._every)
        self._since = now
        return now - self._began < WARM_SECONDS + self._seconds or len(self.times) < 3

    def report(self, samples: int, **more: Any) -> None:
        """One line of JSON, the last of the process: samples/s, spread as in the programs' records, peak memory."""
        rates = sorted(samples / seconds for seconds in self.times)
        low, median, high = statistics.quantiles(rates, n=4, method="inclusive")
        memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
        figures = {"throughput": median, "spread": (high - low) / median, "windows": len(rates), "peak_memory": memory}
        print(json.dumps({**figures, **more}), flush=True)


def run(step: Callable[[], object], samples: int, seconds: float, every: int = 10) -> None:
    windows = Windows(seconds, every)
    step()
    while True:
        step()
        if not windows.step():
            break
    windows.report(samples)
