"""All GPUs of one host, through NCCL: who is where, how it scales, what it computes, how it dies.

    python -m benchmarks.gpu_multi [--gpus N] [--only STAGE…] [--json FILE]
    python -m benchmarks.gpu_multi --rehearse          # on CPUs, to see that all of it runs; the figures mean nothing

`pytest e2e` on all of them; then jobs of one process (or thread) per GPU, each judged by `allranks judge`: every rank,
each once, on a device of its own. Printed, and written to --json after each stage: the bandwidth of an all-reduce; the
loss curves of N ranks and of one in float32 with the same global batches; a rank killed in mid-step; throughput at N
GPUs against one, each GPU with the same work.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_sessions import sessions

ROOT = Path(__file__).parents[1]
LAUNCH = [sys.executable, "-m", "workloads.launch"]
TORCHRUN = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
DEADLINE = 300.0


@dataclass(frozen=True)
class Machine:
    """Where it is run, and what makes a working day of it there."""

    gpus: int
    device: str = "cuda"
    warm: tuple[str, ...] = ("--warmup-time", "2", "--compile", "on")
    steps: tuple[str, str, str] = ("50", "60", "16")
    """Of BERT, GPT-2 and Llama 3."""
    length: int = 4096
    """Tokens of Llama 3's sequences."""
    reduced: tuple[int, ...] = (1 << 20, 1 << 24, 1 << 28, 1 << 30)
    """Bytes."""

    @property
    def rehearsed(self) -> bool:
        return self.device == "cpu"


REHEARSAL = Machine(2, "cpu", ("--warmup-steps", "1", "--compile", "off"), ("4", "4", "4"), 32, (1 << 20,))


@dataclass
class Job:
    """One training, ended."""

    code: int
    log: Path
    records: list[dict[str, Any]] = field(default_factory=list)

    def of(self, event: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["event"] == event]

    @property
    def throughput(self) -> float:
        """Samples/s of all ranks."""
        return sum(end.get("steady_throughput", end["throughput"]) for end in self.of("end"))

    @property
    def losses(self) -> list[float]:
        return [record["loss"] for record in self.of("step") if record["rank"] == 0]


def command(on: Machine, workload: str, args: Sequence[str], ranks: int, how: str = "launch") -> list[str]:
    program = ["-m", f"workloads.{workload}", "--device", on.device, *args]
    if how == "threads":
        return [*LAUNCH, "--nproc-per-node", "1", *program, "--nthread-per-process", str(ranks)]
    return [*(TORCHRUN if how == "torchrun" else LAUNCH), "--nproc-per-node", str(ranks), *program]


def train(folder: Path, name: str, argv: Sequence[str]) -> Job:
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        try:
            code = subprocess.run(
                argv, env=ENVIRONMENT, stdout=out, stderr=out, timeout=DEADLINE, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = 124
    return Job(code, log, records_of(log))


def records_of(log: Path) -> list[dict[str, Any]]:
    lines = log.read_text(errors="replace").splitlines()
    return [json.loads(line[9:]) for line in lines if line.startswith("ALLRANKS {") and line.endswith("}")]


def judged(on: Machine, job: Job, ranks: int) -> str:
    """What is wrong with who answered, or nothing."""
    argv = [sys.executable, "-m", "allranks", "judge", str(job.log), "--world-size", str(ranks)]
    verdict = subprocess.run(argv, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if job.code or verdict.returncode:
        said = (verdict.stdout or verdict.stderr).strip().splitlines()
        return f"exit code {job.code}; judge: {said[0] if said else verdict.returncode}"
    devices = [start["device"] for start in job.of("start")]
    if len(set(devices)) != ranks and not on.rehearsed:
        return f"{ranks} ranks on the devices {', '.join(sorted(devices))}"
    return ""


def scaling(folder: Path, on: Machine, results: dict[str, Any]) -> None:
    """Each GPU with the same work as alone; where ranks share the work, the job's throughput against one GPU's."""
    gpus, n = on.gpus, str(on.gpus)
    brief = {
        "bert": ["--steps-per-epoch", on.steps[0]],
        "gpt2": ["--num-iteration", on.steps[1]],
        "llama3": ["--num-iteration", on.steps[2], "--sequence-length", str(on.length)],
    }
    plain = ["--compile", "off"]
    tensor = ["--tensor-parallel", str(math.gcd(gpus, 8)), "--batch-size", "4", *plain]  # 8 heads of keys and values
    stages = ["--pipeline-parallel", n, "--batch-size", "2", "--total-batch-size", str(on.length * 8 * gpus), *plain]
    jobs = [
        ("bert", "data parallel", []),
        ("gpt2", "data parallel", []),
        ("llama3", "data parallel", []),
        ("llama3", "FSDP2 (ZeRO 3)", ["--zero-stage", "3"]),
        ("llama3", f"tensor parallel {tensor[1]}", tensor),
        ("llama3", f"pipeline {n}", stages),
    ]
    print(
        f"\n{'scaling':<28} {'1 GPU':>10} {f'{n} GPUs':>10} {'ratio':>7} {'of linear':>10}  every rank on its own GPU"
    )
    alone: dict[str, Job] = {}
    for model, title, more in jobs:
        argv = [*brief[model], *on.warm]
        if model not in alone:
            alone[model] = train(folder, f"{model}-1", command(on, model, argv, 1))
        job = train(folder, f"{model}-{title.split()[0]}-{n}", command(on, model, [*argv, *more], gpus))
        wrong = judged(on, job, gpus) or judged(on, alone[model], 1)
        figures: dict[str, Any] = {"wrong": wrong}
        if not wrong:
            one, many = alone[model].throughput, job.throughput
            figures |= {"one": one, "many": many, "ratio": many / one}
            numbers = f"{one:>10,.1f} {many:>10,.1f} {many / one:>7.2f} {many / one / gpus:>10.1%}"
            print(f"{model + ', ' + title:<28} {numbers}  yes", flush=True)
        else:
            print(f"{model + ', ' + title:<28} {wrong}", flush=True)
        results[f"scaling {model} {title}"] = figures


def curves(folder: Path, on: Machine, results: dict[str, Any]) -> None:
    """Float32 and the same global batches: under each launcher, as threads, and divided in every way."""
    gpus, sequences = on.gpus, 8 * on.gpus
    tensor, pipeline = (
        math.gcd(gpus, 4),
        math.gcd(gpus, 8),
    )  # as the tiny models divide; data parallelism takes the rest
    print(f"\n{'losses against one GPU':<44} {'deviation':>10}  every rank, on its own device")
    bert = ["--size", "tiny", "--dtype", "float32"]
    lm = ["--size", "tiny", "--dtype", "float32", "--total-batch-size", str(sequences * 32)]
    share = ["--batch-size", "8"]
    jobs: list[tuple[str, str, str, list[str], list[str]]] = [
        ("bert", "launcher", "launch", bert, share),
        ("bert", "torchrun", "torchrun", bert, share),
        ("bert", "threads", "threads", bert, share),
        ("gpt2", "data parallel", "launch", lm, share),
        ("llama3", "data parallel, torchrun", "torchrun", lm, share),
        ("llama3", "FSDP2 (ZeRO 3)", "launch", lm, [*share, "--zero-stage", "3"]),
        ("llama3", f"tensor parallel {tensor}", "launch", lm, [*share, "--tensor-parallel", str(tensor)]),
        ("llama3", f"pipeline {pipeline}", "launch", lm, ["--batch-size", "4", "--pipeline-parallel", str(pipeline)]),
    ]
    alone: dict[str, Job] = {}
    for model, title, how, common, more in jobs:
        if model not in alone:
            whole = [*common, "--batch-size", str(sequences)]
            alone[model] = train(folder, f"{model}-tiny-1", command(on, model, whole, 1))
        name = f"{model}-tiny-{'-'.join(title.replace(',', '').split()[:3])}"
        job = train(folder, name, command(on, model, [*common, *more], gpus, how))
        wrong = judged(on, job, gpus) or judged(on, alone[model], 1)
        pairs = list(zip(job.losses, alone[model].losses, strict=False))
        worst = max((abs(one - other) for one, other in pairs), default=float("nan"))
        told = wrong or f"{worst:>10.1e}  yes"
        print(f"{model + ', ' + title:<44} {told}", flush=True)
        results[f"losses {model} {title}"] = {"wrong": wrong, "deviation": worst, "steps": len(pairs)}


def killed(folder: Path, on: Machine, results: dict[str, Any]) -> None:
    """SIGKILL to the last rank while all train: until the launcher has ended, after its last child; what it says."""
    log, status = folder / "killed.log", folder / "termination"
    status.touch()
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(on, "gpt2", ["--num-iteration", "100000", "--compile", "off"], on.gpus),
            env={**ENVIRONMENT, "ALLRANKS_TERMINATION_LOG": str(status)},
            stdout=out,
            stderr=out,
        )
    rank = on.gpus - 1
    if not wait_for(lambda: any(r["event"] == "step" and r["step"] >= 20 for r in records_of(log)), process):
        results["killed"] = {"wrong": "the job to be killed never got as far as training"}
        print(results["killed"]["wrong"], flush=True)
        return
    victim = next(r["pid"] for r in records_of(log) if r["event"] == "start" and r["rank"] == rank)
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    code = process.wait(DEADLINE)
    elapsed = time.monotonic() - began
    first = json.loads(status.read_text())["first"]
    used = [] if on.rehearsed else gpu_memory()
    print(f"\nrank {rank} killed in mid-step: all gone after {elapsed:.2f} s, exit code {code}")
    print(f"  first failure named: rank {first['rank']}, signal {-first['code']}; GPU memory left in use: {used} MiB")
    named = first["rank"] == rank and first["code"] == -signal.SIGKILL
    wrong = "" if named and code else f"exit code {code}, first failure {first}"
    results["killed"] = {"wrong": wrong, "seconds": elapsed, "code": code, "first": first, "memory_mib": used}


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + DEADLINE
    while not happened():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            return False
        time.sleep(0.1)
    return True


def gpu_memory() -> list[int]:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    listed = subprocess.run(query, capture_output=True, text=True, check=True)
    return [int(line) for line in listed.stdout.split()]


def reduced(folder: Path, on: Machine, results: dict[str, Any]) -> None:
    """As nccl-tests define them: algorithm bandwidth is size over time, bus bandwidth that × 2 (n − 1) / n."""
    program = ["-m", "benchmarks.programs.all_reduce", on.device, *map(str, on.reduced)]
    argv = [*LAUNCH, "--nproc-per-node", str(on.gpus), *program]
    done = subprocess.run(argv, env=ENVIRONMENT, capture_output=True, text=True, timeout=DEADLINE, check=False)
    print(f"\n{'all-reduce of':<14} {'time':>10} {'algbw GB/s':>11} {'busbw GB/s':>11}")
    told = [line[line.index("REDUCED") :].split()[1:] for line in done.stdout.splitlines() if "REDUCED" in line]
    for size, seconds in told:
        algorithm = int(size) / float(seconds) / 1e9
        bus = algorithm * 2 * (on.gpus - 1) / on.gpus
        print(f"{int(size) >> 20:>10} MiB {float(seconds) * 1e6:>7,.0f} µs {algorithm:>11.1f} {bus:>11.1f}", flush=True)
        results[f"all-reduce {size}"] = {"seconds": float(seconds), "algbw": algorithm, "busbw": bus}
    wrong = "" if len(told) == len(on.reduced) else f"exit code {done.returncode}: {done.stderr[-500:].strip()}"
    if wrong:
        print(wrong, flush=True)
    results["all-reduce"] = {"wrong": wrong}


def end_to_end(folder: Path, on: Machine, results: dict[str, Any]) -> None:
    sessions(folder, on.gpus, ENVIRONMENT, results)


STAGES = {"reduce": reduced, "losses": curves, "killed": killed, "e2e": end_to_end, "scaling": scaling}


def about(on: Machine) -> dict[str, Any]:
    """What the figures were measured with."""
    told: dict[str, Any] = {"gpus": on.gpus, "rehearsal": on.rehearsed, "python": platform.python_version()}
    told["torch"] = torch.__version__
    if not on.rehearsed:
        told |= {"cards": [torch.cuda.get_device_name(n) for n in range(on.gpus)], "nccl": torch.cuda.nccl.version()}
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, help="default: all")
    parser.add_argument(
        "--only", nargs="+", choices=list(STAGES), default=list(STAGES), metavar="STAGE", help=", ".join(STAGES)
    )
    parser.add_argument("--rehearse", action="store_true", help="two ranks on CPUs, tiny models")
    parser.add_argument(
        "--json", type=Path, default=Path("artefacts/gpu_multi.json"), help="all figures (default: %(default)s)"
    )
    args = parser.parse_args()
    on = REHEARSAL if args.rehearse else Machine(args.gpus or len(gpu_memory()))
    if on.gpus < 2:
        print(f"{on.gpus} GPU here: this needs two or more", file=sys.stderr)
        return 2
    results: dict[str, Any] = about(on)
    print(json.dumps(results))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        for stage in args.only:
            try:
                STAGES[stage](Path(name), on, results)
            except (subprocess.TimeoutExpired, KeyError, ValueError) as error:
                results[stage] = {"wrong": [f"{type(error).__name__}: {error}"]}
            args.json.write_text(json.dumps(results, indent=1))  # what a later stage or a time limit cannot take away
    wrong = [name for name, value in results.items() if isinstance(value, dict) and value.get("wrong")]
    print(f"\n{'rehearsed on CPUs: the figures mean nothing; ' * on.rehearsed}wrong: {', '.join(wrong) or 'nothing'}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
