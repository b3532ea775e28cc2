"""A pytest plugin for sessions in tests: cases whose id begins with a fault's name run on a cluster that has it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[2] / "workloads" / "programs" / "wrong_reduction.py"
START = """import runpy, sys
sys.argv[1:1] = [{fault!r}, "gpt2"]
runpy.run_module("wrong_reduction", run_name="__main__", alter_sys=True)
"""


def pytest_configure() -> None:
    from fixtures import cases

    rightly = cases.judged

    def judged(config: Any, settings: Any, workload: Any) -> Any:
        fault = next((f for f in ("left_out", "sum_for_mean") if workload.name.startswith(f"gpt2-{f}")), None)
        if fault and not workload.name.endswith("_on_1_rank"):
            start = Path(os.environ["PLANTED"]) / f"{fault}.py"
            start.write_text(START.format(fault=fault))
            files = ((start.name, start), (PROGRAM.name, PROGRAM))
            workload = replace(workload, module=fault, extra_files=files)
        return rightly(config, settings, workload)

    cases.judged = judged
