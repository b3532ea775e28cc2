"""BERT, Llama 3 and GPT-2 on one GPU, each beside its peers on the same card in the same run.

    python -m benchmarks.gpu [--only bert llama3 gpt2] [--seconds 8] [--json FILE]

One process after the other: the program of workloads/ as anyone runs it, and `benchmarks.gpu_peers`. For each: samples
or tokens a second (the median of synchronised windows at the card's temperature), their spread, the share of the
practical peak (what a matrix product of 8192³ in bfloat16 sustains on this card in this run), and how many times the
peer's pace ours is. Needs a CUDA device, and transformers and accelerate for the peers.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LONG = {"bert": 128, "llama3": 4096, "gpt2": 1024}
BATCH = {"bert": 512, "llama3": 8, "gpt2": 32}


@dataclass(frozen=True)
class Contestant:
    model: str
    title: str
    args: tuple[str, ...]
    ours: bool = False
    batch: int = 0
    same_maths: str = ""
    """Contestants of one model with equal marks compute the same; a peer is compared with ours of its mark."""


def peer(model: str, title: str, how: str, mark: str = "", *, batch: int = 0, more: tuple[str, ...] = ()) -> Contestant:
    size = batch or BATCH[model]
    every = {"bert": "10", "gpt2": "10", "llama3": "4"}[model]
    args = ("--how", how, "--batch-size", str(size), "--length", str(LONG[model]), "--every", every, *more)
    return Contestant(model, title, args, batch=size, same_maths=mark)


def ours(model: str, title: str, mark: str = "", *more: str) -> Contestant:
    return Contestant(model, title, ("--peak", "measured", *more), ours=True, batch=BATCH[model], same_maths=mark)


DROP = ("--dropout", "0.1")
CONTESTANTS = (
    ours("bert", "workloads.bert"),
    ours("bert", "workloads.bert --dropout 0.1", "dropout", *DROP),
    peer("bert", "HF, fp32, batch 8, DDP", "plain", batch=8),
    peer("bert", "HF Trainer, bf16, fused AdamW", "trainer"),
    peer("bert", "HF Trainer, the same + compile", "trainer-compile"),
    peer("bert", "HF Trainer, the same, dropout 0.1", "trainer-compile", "dropout", more=DROP),
    ours("gpt2", "workloads.gpt2"),
    peer("gpt2", "HF, bf16 autocast", "eager"),
    peer("gpt2", "HF, bf16 autocast + compile", "compile"),
    ours("llama3", "workloads.llama3 (1B)"),
    peer("llama3", "HF, bf16 autocast + compile", "compile"),
    peer("llama3", "HF, all bf16 + compile (no masters)", "compile-pure"),
)


def run(contestant: Contestant, seconds: float) -> dict[str, Any]:
    """Figures of one process: throughput in samples/s, spread, peak_memory; `error` where it failed."""
    if contestant.ours:
        command = [sys.executable, "-m", f"workloads.{contestant.model}", "--device", "cuda", *contestant.args]
    else:
        common = ["--seconds", str(seconds)]
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "benchmarks.gpu_peers",
            contestant.model,
            *contestant.args,
            *common,
        ]
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    wall = time.monotonic() - began
    lines = [
        line.removeprefix("ALLRANKS ") for line in done.stdout.splitlines() if "throughput" in line and "{" in line
    ]
    if done.returncode or not lines:
        return {"error": (done.stderr.strip().splitlines() or ["nothing said"])[-1][:200], "wall": wall}
    figures = json.loads(lines[-1].removeprefix("ALLRANKS "))
    if contestant.ours:
        figures |= {"throughput": figures["steady_throughput"], "spread": figures["steady_spread"]}
    return {**figures, "wall": wall}


def show(contestant: Contestant, figures: dict[str, Any], reference: dict[str, Any] | None, unit: int) -> str:
    title = f"  {contestant.title:<38}"
    if "error" in figures:
        return f"{title} failed: {figures['error']}"
    rate = figures["throughput"] * unit
    share = ratio = ""
    if reference:
        share = f"{figures['throughput'] * reference['flops_per_sample'] / 1e12 / reference['peak_tflops']:.1%}"
        ratio = "" if contestant.ours else f"{reference['throughput'] / figures['throughput']:.2f} ×"
    memory = (figures.get("peak_memory") or 0) / 2**30
    return (
        f"{title} {rate:>11,.0f} {figures['spread']:>7.2%} {share:>7} {memory:>7.1f} {figures['wall']:>6.0f} {ratio:>8}"
    )


def versions() -> str:
    found = []
    for package in ("torch", "triton", "transformers", "accelerate"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return f"Python {platform.python_version()}, {', '.join(found)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*LONG], default=[*LONG])
    parser.add_argument("--seconds", type=float, default=8.0, help="measured of each peer, after warm-up")
    parser.add_argument("--json", type=Path, help="write all figures there")
    args = parser.parse_args()
    print(versions(), flush=True)
    everything: list[dict[str, Any]] = []
    failed = False
    for model in args.only:
        unit = 1 if model == "bert" else LONG[model]
        name = "samples/s" if model == "bert" else "tokens/s"
        print(f"{model}, sequences of {LONG[model]}, {BATCH[model]} a step", flush=True)
        print(f"  {'':<38} {name:>11} {'spread':>7} {'peak':>7} {'GiB':>7} {'wall s':>6} {'ours is':>8}", flush=True)
        references: dict[str, dict[str, Any]] = {}
        for contestant in (c for c in CONTESTANTS if c.model == model):
            figures = run(contestant, args.seconds)
            failed |= "error" in figures
            if contestant.ours and "error" not in figures:
                references[contestant.same_maths] = figures
            print(show(contestant, figures, references.get(contestant.same_maths), unit), flush=True)
            everything.append({"model": model, "title": contestant.title, "batch": contestant.batch, **figures})
        for figures in references.values():
            print(
                f"  practical peak {figures['peak_tflops']:.0f} TFLOP/s; clock {figures.get('sm_clock')} MHz, ", end=""
            )
            print(f"{figures.get('power')} W of {figures.get('power_limit')}, held down by: {figures.get('throttle')}")
        if args.json:
            args.json.write_text(json.dumps(everything, indent=1))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
