"""All GPUs of one host, through NCCL: who is where, how it scales, what it computes, how it dies.

    python -m benchmarks.gpu_multi [--gpus N] [--quick] [--json FILE]

Each job is one process (or thread) per GPU and is judged by `allranks judge`: every rank, each once, on a device of its
own. Printed: throughput at N GPUs against one, each GPU with the same work; the loss curves of N ranks and of one in
float32 with the same global batches; a rank killed in mid-step; the bandwidth of an all-reduce.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LAUNCH = [sys.executable, "-m", "workloads.launch"]
TORCHRUN = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
DEADLINE = 300.0
GIBIBYTE = 1 << 30


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


def command(workload: str, args: Sequence[str], ranks: int, how: str = "launch") -> list[str]:
    program = ["-m", f"workloads.{workload}", "--device", "cuda", *args]
    if how == "threads":
        return [*LAUNCH, "--nproc-per-node", "1", *program, "--nthread-per-process", str(ranks)]
    return [*(TORCHRUN if how == "torchrun" else LAUNCH), "--nproc-per-node", str(ranks), *program]


def train(folder: Path, name: str, argv: Sequence[str]) -> Job:
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        done = subprocess.run(argv, env=ENVIRONMENT, stdout=out, stderr=out, timeout=DEADLINE, check=False)
    return Job(done.returncode, log, records_of(log))


def records_of(log: Path) -> list[dict[str, Any]]:
    lines = log.read_text(errors="replace").splitlines()
    return [json.loads(line[9:]) for line in lines if line.startswith("ALLRANKS {") and line.endswith("}")]


def judged(job: Job, ranks: int) -> str:
    """What is wrong with who answered, or nothing."""
    argv = [sys.executable, "-m", "allranks", "judge", str(job.log), "--world-size", str(ranks)]
    verdict = subprocess.run(argv, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if job.code or verdict.returncode:
        said = (verdict.stdout or verdict.stderr).strip().splitlines()
        return f"exit code {job.code}; judge: {said[0] if said else verdict.returncode}"
    devices = [start["device"] for start in job.of("start")]
    if len(set(devices)) != ranks:
        return f"{ranks} ranks on the devices {', '.join(sorted(devices))}"
    return ""


def scaling(folder: Path, gpus: int, quick: bool, results: dict[str, Any]) -> None:
    """Each GPU with the same work as alone; where ranks share the work, the job's throughput against one GPU's."""
    brief = {
        "bert": ["--steps-per-epoch", "50"],
        "gpt2": ["--num-iteration", "60"],
        "llama3": ["--num-iteration", "16"],
    }
    warm = ["--warmup-time", "2", "--compile", "on"]
    n = str(gpus)
    plain = ["--compile", "off"]
    tensor = ["--tensor-parallel", n, "--batch-size", "4", *plain]
    stages = ["--pipeline-parallel", n, "--batch-size", "2", "--total-batch-size", str(4096 * 8 * gpus), *plain]
    jobs = [
        ("bert", "data parallel", []),
        ("llama3", "data parallel", []),
        ("llama3", "FSDP2 (ZeRO 3)", ["--zero-stage", "3"]),
        ("gpt2", "data parallel", []),
        ("llama3", f"tensor parallel {n}", tensor),
        ("llama3", f"pipeline {n}", stages),
    ]
    print(
        f"\n{'scaling':<28} {'1 GPU':>10} {f'{n} GPUs':>10} {'ratio':>7} {'of linear':>10}  every rank on its own GPU"
    )
    alone: dict[str, Job] = {}
    for model, title, more in jobs[: 3 if quick else None]:
        argv = [*brief[model], *warm]
        if model not in alone:
            alone[model] = train(folder, f"{model}-1", command(model, argv, 1))
        job = train(folder, f"{model}-{title.split()[0]}-{n}", command(model, [*argv, *more], gpus))
        wrong = judged(job, gpus) or judged(alone[model], 1)
        figures: dict[str, Any] = {"wrong": wrong}
        if not wrong:
            one, many = alone[model].throughput, job.throughput
            figures |= {"one": one, "many": many, "ratio": many / one}
            numbers = f"{one:>10,.1f} {many:>10,.1f} {many / one:>7.2f} {many / one / gpus:>10.1%}"
            print(f"{model + ', ' + title:<28} {numbers}  yes", flush=True)
        else:
            print(f"{model + ', ' + title:<28} {wrong}", flush=True)
        results[f"scaling {model} {title}"] = figures


def curves(folder: Path, gpus: int, results: dict[str, Any]) -> None:
    """Float32 and the same global batches: under each launcher, as threads, and divided in every way."""
    n, sixteen = str(gpus), 8 * gpus
    print(f"\n{'losses against one GPU':<44} {'deviation':>10}  every rank, on its own device")
    bert = ["--size", "tiny", "--dtype", "float32"]
    lm = ["--size", "tiny", "--dtype", "float32", "--total-batch-size", str(sixteen * 32)]
    share = ["--batch-size", str(sixteen // gpus)]
    jobs: list[tuple[str, str, str, list[str], list[str]]] = [
        ("bert", "launcher", "launch", bert, share),
        ("bert", "torchrun", "torchrun", bert, share),
        ("bert", "threads", "threads", bert, share),
        ("gpt2", "data parallel", "launch", lm, share),
        ("llama3", "data parallel, torchrun", "torchrun", lm, share),
        ("llama3", "FSDP2 (ZeRO 3)", "launch", lm, [*share, "--zero-stage", "3"]),
        ("llama3", f"tensor parallel {n}", "launch", lm, ["--batch-size", str(sixteen), "--tensor-parallel", n]),
        ("llama3", f"pipeline {n}", "launch", lm, ["--batch-size", "4", "--pipeline-parallel", n]),
    ]
    alone: dict[str, Job] = {}
    for model, title, how, common, more in jobs:
        if model not in alone:
            alone[model] = train(folder, f"{model}-tiny-1", command(model, [*common, "--batch-size", str(sixteen)], 1))
        name = f"{model}-tiny-{'-'.join(title.replace(',', '').split()[:3])}"
        job = train(folder, name, command(model, [*common, *more], gpus, how))
        wrong = judged(job, gpus) or judged(alone[model], 1)
        pairs = list(zip(job.losses, alone[model].losses, strict=False))
        worst = max((abs(one - other) for one, other in pairs), default=float("nan"))
        told = wrong or f"{worst:>10.1e}  yes"
        print(f"{model + ', ' + title:<44} {told}", flush=True)
        results[f"losses {model} {title}"] = {"wrong": wrong, "deviation": worst, "steps": len(pairs)}


def killed(folder: Path, gpus: int, results: dict[str, Any]) -> None:
    """SIGKILL to the last rank while all train: until the launcher has ended, after its last child; what it says."""
    log, status = folder / "killed.log", folder / "termination"
    status.touch()
    with log.open("wb") as out:
        process = subprocess.Popen(
            command("gpt2", ["--num-iteration", "100000", "--compile", "off"], gpus),
            env={**ENVIRONMENT, "ALLRANKS_TERMINATION_LOG": str(status)},
            stdout=out,
            stderr=out,
        )
    rank = gpus - 1
    wait_for(lambda: any(r["event"] == "step" and r["step"] >= 20 for r in records_of(log)), process)
    victim = next(r["pid"] for r in records_of(log) if r["event"] == "start" and r["rank"] == rank)
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    code = process.wait(DEADLINE)
    elapsed = time.monotonic() - began
    first = json.loads(status.read_text())["first"]
    used = gpu_memory()
    print(f"\nrank {rank} killed in mid-step: all gone after {elapsed:.2f} s, exit code {code}")
    print(f"  first failure named: rank {first['rank']}, signal {-first['code']}; GPU memory left in use: {used} MiB")
    results["killed"] = {"seconds": elapsed, "code": code, "first": first, "memory_mib": used}


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not happened():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise SystemExit("the job to be killed never got as far as training")
        time.sleep(0.1)


def gpu_memory() -> list[int]:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    listed = subprocess.run(query, capture_output=True, text=True, check=True)
    return [int(line) for line in listed.stdout.split()]


REDUCE = """
import os, time, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
n = dist.get_world_size()
for size in (1 << 20, 1 << 24, 1 << 28, 1 << 30):
    data = torch.ones(size // 4, device="cuda")
    count = 20 if size < 1 << 28 else 10
    for _ in range(5): dist.all_reduce(data)
    torch.cuda.synchronize(); dist.barrier(); torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count): dist.all_reduce(data)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / count
    if dist.get_rank() == 0:
        print(f"REDUCED {size} {seconds}", flush=True)
dist.destroy_process_group()
"""


def reduced(folder: Path, gpus: int, results: dict[str, Any]) -> None:
    """As nccl-tests define them: algorithm bandwidth is size over time, bus bandwidth that × 2 (n − 1) / n."""
    program = folder / "reduce.py"
    program.write_text(REDUCE)
    argv = [*LAUNCH, "--nproc-per-node", str(gpus), str(program)]
    done = subprocess.run(argv, env=ENVIRONMENT, capture_output=True, text=True, timeout=DEADLINE, check=False)
    print(f"\n{'all-reduce of':<14} {'time':>10} {'algbw GB/s':>11} {'busbw GB/s':>11}")
    for line in done.stdout.splitlines():
        if "REDUCED" in line:
            size, seconds = line[line.index("REDUCED") :].split()[1:]
            algorithm = int(size) / float(seconds) / 1e9
            bus = algorithm * 2 * (gpus - 1) / gpus
            print(
                f"{int(size) >> 20:>10} MiB {float(seconds) * 1e6:>7,.0f} µs {algorithm:>11.1f} {bus:>11.1f}",
                flush=True,
            )
            results[f"all-reduce {size}"] = {"seconds": float(seconds), "algbw": algorithm, "busbw": bus}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, help="default: all")
    parser.add_argument("--quick", action="store_true", help="scaling of data parallelism and FSDP2 alone")
    parser.add_argument("--json", type=Path, help="write all figures there")
    args = parser.parse_args()
    gpus = args.gpus or len(gpu_memory())
    if gpus < 2:
        print(f"{gpus} GPU here: this needs two or more", file=sys.stderr)
        return 2
    results: dict[str, Any] = {"gpus": gpus}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reduced(folder, gpus, results)
        curves(folder, gpus, results)
        killed(folder, gpus, results)
        scaling(folder, gpus, args.quick, results)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    return int(any(isinstance(value, dict) and value.get("wrong") for value in results.values()))


if __name__ == "__main__":
    sys.exit(main())
