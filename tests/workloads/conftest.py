"""Real processes that train, as a launcher would start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():  # NumPy is optional for torch; its absence is announced on the first import
    warnings.simplefilter("ignore")
    import torch  # noqa: F401

ROOT = Path(__file__).parents[2]
DEADLINE = 120.0
SHORT = ("--epochs", "2", "--steps-per-epoch", "5", "--seq-len", "16")
LAUNCHED = (
    "RANK",
    "WORLD",
    "LOCAL",
    "GROUP",
    "MASTER",
    "TORCHELASTIC",
    "ALLRANKS",
    "NNODES",
    "NPROC",
    "GLOBAL",
    "PROC_",
)


def environment(**variables: str) -> dict[str, str]:
    """Ours without anything that a launcher sets, and with what is given."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHED)}
    return {**own, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}


@dataclass
class Outcome:
    """What one process left."""

    code: int
    out: str
    err: str

    def records(self, event: str | None = None) -> list[dict[str, Any]]:
        found = [
            json.loads(line.removeprefix("ALLRANKS ")) for line in self.out.splitlines() if line.startswith("ALLRANKS ")
        ]
        return [record for record in found if event in (None, record["event"])]


Bert = Callable[..., list[Outcome]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `python -m MODULE ARGS` with variables; whatever still runs at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *args],
            env=environment(**variables),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def bert(train: Bert) -> Bert:
    return partial(train, "-m", "workloads.bert", "--device", "cpu")


@pytest.fixture
def train(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> Bert:
    """Train with `processes` processes on one node, and return what each left: `train("-m", MODULE, ARGS…)`."""

    def train(*args: str, processes: int = 1, **variables: str) -> list[Outcome]:
        directory = tmp_path / "run"
        directory.mkdir(mode=0o700, exist_ok=True)
        ranks = []
        for rank in range(processes):
            told = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(processes),
                "LOCAL_WORLD_SIZE": str(processes),
                "TORCHELASTIC_RUN_ID": "test",
                "ALLRANKS_RUN_DIR": str(directory),
                **variables,
            }
            ranks.append(start(*args, **told))
        return [
            Outcome(process.wait(DEADLINE), *outputs)
            for process in ranks
            if (outputs := process.communicate(timeout=DEADLINE))
        ]

    return train


@pytest.fixture(scope="session")
def reference(train_once: Callable[..., Outcome]) -> Outcome:
    """One process with global batches of 8, seed 0: what any other division of the same work is compared with."""
    return train_once("-m", "workloads.bert", "--device", "cpu", *SHORT, "--batch-size", "8")


@pytest.fixture(scope="session")
def train_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Outcome]:
    """Train in one process, outside of any one test."""

    def train_once(*args: str) -> Outcome:
        done = subprocess.run(
            [sys.executable, *args],
            env=environment(),
            cwd=tmp_path_factory.mktemp("once"),
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=True,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return train_once
