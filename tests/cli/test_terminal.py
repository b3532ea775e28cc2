"""What a terminal cannot show is shown otherwise, by every command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_terminal_without_unicode_loses_no_command() -> None:
    command = [
        "render",
        "bert",
        "--accelerator",
        "cpu",
        "--nodes",
        "1",
        "--nproc-per-node",
        "1",
        "--image",
        "régistre/x",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "allranks", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert rb"r\xe9gistre/x" in ran.stdout
