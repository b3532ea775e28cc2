"""Running the launcher as users do: a process of its own, real children, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


@dataclass
class Ended:
    """A launcher that has ended: exit code, output, and what it left in the termination log."""

    code: int
    out: bytes
    err: str
    status: dict[str, Any] | None
    seconds: float

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()

    @property
    def cause(self) -> str:
        """The last line of stderr."""
        return self.err.splitlines()[-1]


class Running:
    """A launcher that runs."""

    def __init__(self, process: subprocess.Popen[bytes], termination_log: Path) -> None:
        self.process = process
        self.termination_log = termination_log
        self.began = time.monotonic()

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next line of stdout; waits for it."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def status(self) -> dict[str, Any] | None:
        try:
            text = self.termination_log.read_text()
        except FileNotFoundError:
            return None
        return json.loads(text) if text else None

    def end(self, number: int | None = None, patience: float = PATIENCE) -> Ended:
        """Send a signal, if one is given, and wait."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=patience)
        return Ended(
            self.process.returncode, out, err.decode("utf-8", "replace"), self.status(), time.monotonic() - self.began
        )


class Launcher:
    """Starts launchers and sees to it that none survives the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.started: list[Running] = []

    def program(self, source: str) -> str:
        """A Python script with this source."""
        path = self.folder / f"program{len(list(self.folder.glob('program*')))}.py"
        path.write_text(textwrap.dedent(source))
        return str(path)

    def start(
        self,
        *words: str,
        env: dict[str, str] | None = None,
        python: str = sys.executable,
        python_options: Sequence[str] = (),
        **options: Any,
    ) -> Running:
        log = self.folder / f"termination-log-{len(self.started)}"
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "JOB_COMPLETION"))}
        environ |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary), "ALLRANKS_TERMINATION_LOG": str(log)}
        arguments = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
            "cwd": self.folder,
            **options,
        }
        process = subprocess.Popen(
            [python, *python_options, "-m", "workloads.launch", *words], env=environ | (env or {}), **arguments
        )
        running = Running(process, log)
        self.started.append(running)
        return running

    def __call__(
        self, *words: str, env: dict[str, str] | None = None, patience: float = PATIENCE, **options: Any
    ) -> Ended:
        return self.start(*words, env=env, **options).end(patience=patience)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    for running in launcher.started:
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGKILL)
        running.process.communicate()


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any]], Any]:
    """Wait for a condition, with a deadline; returns its first true value."""

    def wait(condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
        deadline = time.monotonic() + patience
        while not (value := condition()):
            assert time.monotonic() < deadline, f"not within {patience} s: {condition}"
            time.sleep(0.01)
        return value

    return wait


@pytest.fixture
def gone() -> Callable[[int], bool]:
    """Whether a process no longer runs (a zombie that nobody has reaped yet does not)."""

    def check(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return shown.stdout.strip().startswith("Z") or not shown.stdout.strip()

    return check
