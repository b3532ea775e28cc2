"""Windows, warm-up and what a GPU says about itself."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from workloads import nvml, steady
from workloads.device import Device
from workloads.nvml import Gpu, Reading
from workloads.steady import Steady, agreed
from workloads.topology import Topology


class Clock:
    """Time that passes when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def train(meter: Steady, clock: Clock, step_times: list[float], *, every: int = 1, samples: float = 8) -> None:
    """Steps of these seconds each, looked at every so many."""
    for number, seconds in enumerate(step_times, 1):
        meter.start_step(exact=True)
        clock.now += seconds
        meter.end_step(samples, clock.now, exact=True)
        if number % every == 0:
            meter.close_window(unanimous=meter.vote)


def meter(**options: Any) -> Steady:
    return Steady(Device(Topology()), options.pop("warmup_steps", 1), **{"steps": 20, **options})


def test_the_figure_is_the_median_of_the_windows_after_warmup(clock: Clock) -> None:
    steady = meter(warmup_steps=2)
    train(steady, clock, [9, 9, 1, 1, 1, 1, 4])
    figures = steady.steady_figures()
    assert figures["windows"] == 5
    assert figures["steady_throughput"] == pytest.approx(8)
    assert steady.figures(1)["throughput"] == pytest.approx(5 * 8 / 8)
    assert figures["settled"] is None, "nobody asked for warm-up by time"


def test_the_spread_is_that_of_the_middle_half(clock: Clock) -> None:
    steady = meter(warmup_steps=1)
    train(steady, clock, [9, 0.5, 1, 1, 1, 2])  # 16, 8, 8, 8, 4 samples/s
    assert steady.steady_figures()["steady_spread"] == pytest.approx(0.0)
    train(steady, clock, [0.5, 2, 0.5])
    assert steady.steady_figures()["steady_spread"] == pytest.approx((16 - 7) / 8)


def test_windows_of_several_steps_count_all_their_samples(clock: Clock) -> None:
    steady = meter(warmup_steps=1)
    train(steady, clock, [9] + [0.5] * 8, every=3)
    # The first window has the two steps after warm-up in it, the others three each.
    assert steady.steady_figures()["windows"] == 3
    assert steady.steady_figures()["steady_throughput"] == pytest.approx(16)


def test_warmup_by_time_ends_when_the_pace_has_settled(clock: Clock) -> None:
    steady = meter(warmup_time=5.0, steps=100)
    train(steady, clock, [3, 2, 1.5, 1, 1, 1.005, 1, 1, 1])
    assert steady.warmup_steps == 6
    assert steady.settled is True
    assert steady.steady_figures()["windows"] == 3
    assert steady.figures(1)["total_time"] == pytest.approx(3)
    assert steady.figures(1)["samples"] == 24


def test_warmup_does_not_end_before_its_time(clock: Clock) -> None:
    steady = meter(warmup_time=5.0, steps=100)
    train(steady, clock, [1] * 8)
    assert steady.warmup_steps == 5


def test_warmup_does_not_wait_for_a_pace_that_never_settles(clock: Clock) -> None:
    steady = meter(warmup_time=5.0, steps=100)
    train(steady, clock, [1, 2] * 6)
    assert steady.warmup_steps == 7, "twice its time"
    assert steady.settled is False


def test_warmup_leaves_half_of_the_steps_to_measure(clock: Clock) -> None:
    steady = meter(warmup_time=500.0, steps=10)
    train(steady, clock, [1] * 10)
    assert steady.warmup_steps == 5
    assert steady.steady_figures()["windows"] == 5


def test_warmup_goes_on_while_one_rank_objects(clock: Clock) -> None:
    steady = meter(warmup_time=2.0, steps=100)
    for number in range(8):
        steady.start_step(exact=True)
        clock.now += 1
        times = steady.end_step(8, clock.now, exact=True)
        assert times["warmup"] is (number < 6)
        assert steady.vote or number < 2
        steady.close_window(unanimous=number >= 5)
    assert steady.warmup_steps == 6


def test_what_was_before_the_first_step_is_not_training(clock: Clock) -> None:
    steady = meter(warmup_steps=0)
    clock.now += 60  # compiling
    train(steady, clock, [1, 1])
    assert steady.figures(1)["total_time"] == pytest.approx(2)
    assert steady.steady_figures()["steady_throughput"] == pytest.approx(8)


def test_one_window_is_no_figure(clock: Clock) -> None:
    steady = meter(warmup_steps=1)
    train(steady, clock, [1, 1])
    assert steady.steady_figures() == {}
    assert steady.pace == pytest.approx(8)


class Votes:
    """A group in which the others vote as told and have the same loss."""

    def __init__(self, *others: bool) -> None:
        self.size = 1 + len(others)
        self._others = others

    def sum_(self, tensors: list[torch.Tensor]) -> None:
        (both,) = tensors
        both += torch.stack([both[0] * len(self._others), torch.tensor(float(sum(self._others)))])


@pytest.mark.parametrize(
    ("mine", "others", "unanimous"), [(True, (True, True), True), (True, (True, False), False), (False, (True,), False)]
)
def test_the_pace_has_settled_when_all_ranks_say_so(mine: bool, others: tuple[bool, ...], unanimous: bool) -> None:
    group: Any = Votes(*others)
    assert agreed(torch.tensor(2.0), mine, group, Device(Topology())) == (2.0 * group.size, unanimous)


class Sensors:
    """Readings one after the other."""

    power_limit, max_sm_clock = 700.0, 1980

    def __init__(self, *readings: Reading) -> None:
        self._readings = list(readings)

    def read(self) -> Reading:
        return self._readings.pop(0)


def test_the_record_has_clocks_power_and_what_held_them_down(clock: Clock) -> None:
    gpu: Any = Sensors(
        Reading(1700, 690.0, 60, ("power cap",)), Reading(1600, 695.0, 66, ("thermal",)), Reading(1650, None, 64, ())
    )
    steady = meter(warmup_steps=1, gpu=gpu)
    train(steady, clock, [1] * 4)
    figures = steady.steady_figures()
    assert (figures["sm_clock"], figures["power"], figures["temperature"]) == (1650, 692.5, 66)
    assert (figures["max_sm_clock"], figures["power_limit"]) == (1980, 700.0)
    assert figures["throttle"] == "power cap, thermal"


def test_without_the_driver_there_are_no_readings() -> None:
    assert Gpu.open("GPU-0", libraries=("libno-such-driver.so.1",)) is None
    assert steady.gpu_of(Device(Topology())) is None


NVML = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    *handle = (void *) 1;
    return strcmp(uuid, "GPU-12ab");
}
int nvmlDeviceGetClockInfo(void *handle, int type, unsigned *mhz) { *mhz = type == 1 ? 1755 : 0; return !handle; }
int nvmlDeviceGetMaxClockInfo(void *handle, int type, unsigned *mhz) { *mhz = type == 1 ? 1980 : 0; return 0; }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) { return 3; /* not supported */ }
int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *milliwatts) { *milliwatts = 700000; return 0; }
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) { *celsius = 61; return sensor; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *bits) { *bits = 0x25; return 0; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library with NVML's functions as an older driver has them, compiled here."""
    folder: Path = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(NVML)
    made = folder / "libnvidia-ml.so.1"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", made, folder / "nvml.c"], check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    return str(made)


def test_sensors_are_read_through_the_drivers_library(library: str) -> None:
    gpu = Gpu.open("12ab", libraries=(library,))
    assert gpu is not None
    assert gpu.read() == Reading(sm_clock=1755, power=None, temperature=61, reasons=("power cap", "thermal"))
    assert (gpu.power_limit, gpu.max_sm_clock) == (700.0, 1980)


def test_a_gpu_that_the_driver_does_not_know_has_no_readings(library: str) -> None:
    assert Gpu.open("GPU-other", libraries=(library,)) is None


def test_every_reason_has_a_name_of_its_own() -> None:
    assert len(set(nvml.REASONS.values())) == len(nvml.REASONS)
    assert all(bit & (bit - 1) == 0 for bit in nvml.REASONS)
    assert isinstance(ctypes.c_ulonglong(max(nvml.REASONS)).value, int)
