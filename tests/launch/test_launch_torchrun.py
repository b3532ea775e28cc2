"""torchrun's own option list is the measure: nothing in it may be unknown here or unmentioned in the documentation."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workloads.launch.environment import free_port
from workloads.launch.options import OWN_OPTIONS, TORCHRUN_OPTIONS

TABLE = Path(__file__).parents[2] / "docs" / "launcher.md"


@pytest.fixture(scope="module")
def torchrun_options() -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--help"],
        capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"},
    ).stdout  # fmt: skip
    options = re.findall(r"^  (?:-\w, |-\w \w+, )?--([a-z][\w-]*)", shown.partition("options:")[2], re.M)
    assert len(options) > 25, shown
    return set(options) - {"help"}


def mentioned() -> set[str]:
    return set(re.findall(r"^\| `(?:-\w`, `)?--([a-z-]+)", TABLE.read_text(), re.M))


def test_every_torchrun_option_is_known_to_the_launcher(torchrun_options: set[str]) -> None:
    assert torchrun_options == {option.name for option in TORCHRUN_OPTIONS}


def test_every_option_is_in_the_documented_table(torchrun_options: set[str]) -> None:
    assert torchrun_options | {option.name for option in OWN_OPTIONS} == mentioned()


def test_the_environment_is_torchruns_and_ours(launch: Any) -> None:
    """What a process is told by either launcher, for the same command line."""
    program = launch.program("""
        import json, os
        ours = {name: value for name, value in os.environ.items() if "RANK" in name or "WORLD" in name
                or name.startswith(("TORCH", "MASTER", "GROUP", "ROLE", "OMP"))}
        print(json.dumps(ours))
    """)
    words = ("--nproc-per-node=2", "--role=trainer", "--rdzv-id=r1", f"--master-port={free_port('127.0.0.1')}", program)
    told = {}
    for module in ("workloads.launch", "torch.distributed.run"):
        clean = {n: v for n, v in os.environ.items() if not n.startswith(("TORCH", "OMP_", "MASTER"))}
        shown = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", module, *words],
            capture_output=True, text=True, check=True, env={**clean, "PYTHONPATH": str(TABLE.parents[1])},
        )  # fmt: skip
        told[module] = sorted(map(json.loads, shown.stdout.splitlines()), key=lambda e: e["RANK"])
    for here, there in zip(told["workloads.launch"], told["torch.distributed.run"], strict=True):
        missing = {name for name in there if name not in here}
        # Where the agent wants an error described, and what the agent itself handles: there is no agent here.
        assert missing <= {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}, missing
        differing = {name for name in there if name in here and here[name] != there[name]}
        # Whether an agent keeps a store, and under which port it is reached, is the launcher's own affair.
        assert differing <= {"TORCHELASTIC_USE_AGENT_STORE", "MASTER_PORT"}, differing
