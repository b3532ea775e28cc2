"""A pytest plugin for sessions in tests: cases whose id names a fault run the program that has it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any


def pytest_configure() -> None:
    from fixtures import cases

    rightly = cases.judged

    def judged(config: Any, settings: Any, workload: Any) -> Any:
        fault = workload.name.removeprefix("gpt2-")
        if fault in ("left_out", "sum_for_mean"):
            program = Path(__file__).with_name("wrong_reduction.py").read_text()
            broken = Path(os.environ["PLANTED"]) / f"{fault}.py"
            broken.write_text(program.replace('FAULT = "none"', f'FAULT = "{fault}"'))
            workload = replace(workload, module=fault, extra_files=((f"{fault}.py", broken),))
        return rightly(config, settings, workload)

    cases.judged = judged
