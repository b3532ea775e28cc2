"""`pytest e2e` on all GPUs of a host: BERT, and GPT-2 and Llama 3 divided in every way, under both launchers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DEADLINE = 1800.0
LENGTH = 32


def case_file(gpus: int) -> dict[str, Any]:
    """The same float32 training on one rank and on `gpus`, in the form of e2e/cases/.

    Of tensor and pipeline parallelism as many ranks as the tiny models divide into (4 heads of keys and values, 8
    layers); data parallelism takes the rest.
    """
    tensor, pipeline = math.gcd(gpus, 4), math.gcd(gpus, 8)
    common = {
        "dtype": "float32",
        "num_iteration": 10,
        "sequence_length": LENGTH,
        "total_batch_size": 8 * LENGTH * gpus,
        "learning_rate": 0.001,
        "batch_size": 8,
    }
    processes = {"nproc_per_node": gpus}
    cases: dict[str, dict[str, Any]] = {
        "1x1": {},
        f"1x{gpus}": processes,
        "zero3": {**processes, "zero_stage": 3},
        f"tp{tensor}": {**processes, "tensor_parallel": tensor},
        f"pp{pipeline}": {**processes, "pipeline_parallel": pipeline, "batch_size": 4},
        f"threads{gpus}": {"nthread_per_process": gpus},
    }
    tests = [{"id": name, "args": {**common, **args}} for name, args in cases.items()]
    return {"test_groups": [{"tag": f"{gpus}_gpus", "tests": tests}]}


def session(folder: Path, gpus: int, launcher: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """One session's verdict.json; its output passes through. Without one, what there is instead of it."""
    cases, verdict = folder / f"{gpus}_gpus.json", folder / f"verdict-{launcher}.json"
    cases.write_text(json.dumps(case_file(gpus)))
    argv = [sys.executable, "-m", "pytest", "e2e", "--cluster", "standin", "--accelerator", "nvidia"]
    argv += ["--launcher", launcher, "--case-file", str(cases), "--verdict-json", str(verdict)]
    done = subprocess.run(argv, cwd=ROOT, env=environment, timeout=DEADLINE, check=False)
    if not verdict.exists():
        return {"green": False, "sentence": f"pytest ended with {done.returncode} and no verdict", "runs": []}
    told: dict[str, Any] = json.loads(verdict.read_text())
    return told


def sessions(folder: Path, gpus: int, environment: Mapping[str, str], results: dict[str, Any]) -> None:
    for launcher in ("allranks", "torchrun"):
        told = session(folder, gpus, launcher, environment)
        print(f"\n{'pytest e2e, --launcher ' + launcher:<40} {'verdict':<10} {'ranks':>7} {'samples/s':>10} {'MFU':>7}")
        for run in told["runs"]:
            ranks, figures, name = run["ranks"], run["figures"], str(run["run"])
            mfu = f"{figures['mfu_mean']:.1f} %" if "mfu_mean" in figures else "–"
            answered = f"{ranks['reported']}/{ranks['expected']}"
            rate = figures.get("throughput_sum", math.nan)
            print(f"{name:<40} {run['verdict']:<10} {answered:>7} {rate:>10,.1f} {mfu:>7}")
        # A case that does not fit the machine is a gap in what was to be shown, not a detail.
        skipped = [f"{each['what']}: {each['why']}" for each in told.get("skipped", ())]
        wrong = "" if told["green"] and not skipped else "; ".join([told["sentence"], *skipped])
        print(wrong or told["sentence"], flush=True)
        results[f"e2e {launcher}"] = {"wrong": wrong, "runs": told["runs"]}
