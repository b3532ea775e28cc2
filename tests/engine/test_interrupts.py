"""Ctrl-C and SIGTERM in the middle of a run: it ends soon, and nothing of it is left on the cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from allranks.signals import Interrupted, run_interruptible

ROOT = Path(__file__).resolve().parents[2]


class Killer:
    """Sends this process a signal as soon as all ranks have reported."""

    def __init__(self, number: int, *, phase: str = "train") -> None:
        self.number, self.phase, self.sent = number, phase, 0.0

    def __call__(self, progress: Any) -> None:
        ready = progress.phase == self.phase and (self.phase != "train" or progress.started == progress.world_size)
        if ready and not self.sent:
            self.sent = time.monotonic()
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_in_the_middle_of_training_cleans_up(cluster: Any, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    killer = Killer(number)
    with pytest.raises(Interrupted) as caught:
        cluster.run("--steps", "1000", "--step-time", "0.1", observe=killer)
    assert caught.value.signal == number
    assert time.monotonic() - killer.sent < 20
    assert cluster.left() == []
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("phase", ["plan", "deploy", "schedule"])
def test_signal_before_the_pods_run_cleans_up(cluster: Any, phase: str) -> None:
    with pytest.raises(Interrupted):
        cluster.run("--steps", "1000", "--step-time", "0.1", observe=Killer(signal.SIGTERM, phase=phase))
    assert cluster.left() == []


def test_exception_in_an_observer_cleans_up(cluster: Any) -> None:
    def broken(progress: Any) -> None:
        if progress.phase == "train":
            raise RuntimeError("the terminal is gone")

    with pytest.raises(RuntimeError, match="the terminal is gone"):
        cluster.run("--steps", "1000", "--step-time", "0.1", observe=broken)
    assert cluster.left() == []


def test_run_in_another_thread_leaves_signals_alone(cluster: Any) -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(cluster.run()))
    thread.start()
    thread.join(60)
    assert results[0].verdict == "passed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_that_is_killed_cleans_up_and_says_so(cluster: Any, number: signal.Signals, tmp_path: Path) -> None:
    """The whole command with BERT, which needs seconds to import torch: killed while it starts."""
    options = ["--accelerator", "nvidia", "--cluster", "standin", "--kubeconfig", str(cluster.kubeconfig)]
    process = subprocess.Popen(
        [sys.executable, "-m", "allranks", "run", "bert", *options, "--artefacts", str(tmp_path)],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "rendezvous" in line or "train" in line:
            break
    process.send_signal(number)
    _, rest = process.communicate(timeout=40)
    assert process.returncode == 128 + number, rest
    assert f"ended by {number.name}" in rest
    assert cluster.left() == []


def test_second_signal_does_not_cut_the_cleaning_short() -> None:
    import asyncio

    cleaned = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(30)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.05)
            cleaned.append(True)

    with pytest.raises(Interrupted, match="SIGTERM"):
        run_interruptible(work())
    assert cleaned == [True]
