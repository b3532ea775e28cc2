"""A run of a thousand pods followed by one small process: lag, memory, requests, and how they grow.

The stand-in's kubelet writes what the pods say instead of running them (`standin.generate`): each pod has 8 ranks, and
all pods together say 50 000 lines a second once the last has started. The harness is the real one, from the Job's
creation to the verdict; every record's way is timed, from the time in it to its entry in the ledger. The requests are
counted by the server.

Generator, API server and harness share this machine: where the rate that was reached is below the one that was asked
for, or the lag grows, look at the CPU seconds of both before blaming one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PER_NODE = 8
GOALS = "goals: lag p99 under 2 s, harness under 500 MiB, 2 requests a pod, all ranks, none twice"

HARNESS = """
import json, resource, sys, time
from pathlib import Path
from allranks.ledger import Account
from allranks.ledger.quantiles import Quantiles
from allranks.plan import Accelerator
from allranks.run import run
from allranks.settings import Settings, Workload

kubeconfig, artefacts, nodes, seconds, *args = sys.argv[1:]
lags, entered = Quantiles(), [0]
enter = Account.enter

def timed(self, record, *rest):
    if record.time is not None:
        lags.add(max(1e-6, time.time() - record.time))
        entered[0] += 1
    return enter(self, record, *rest)

Account.enter = timed
settings = Settings(Accelerator.NVIDIA, "standin", Path(kubeconfig), nodes=int(nodes), artefacts=Path(artefacts),
                    deadline=900.0, schedule_timeout=600.0, start_timeout=600.0)
result = run(settings, Workload("bench", "standin.generate", tuple(args)))
used = resource.getrusage(resource.RUSAGE_SELF)
moments = dict(result.timeline)
print(json.dumps({
    "sentence": result.sentence(), "reported": len(result.judgement.reported),
    "duplicate": len(result.judgement.duplicate), "records": entered[0], "cpu": used.ru_utime + used.ru_stime,
    "lag_p50": lags.quantile(0.5), "lag_p99": lags.quantile(0.99), "lag_max": lags.greatest,
    "peak": used.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2),
    "to_start": moments["heard"] - moments["applied"], "to_verdict": moments["verdict"] - moments["ended"],
    "bytes": sum(path.stat().st_size for path in Path(result.artefacts, "logs").iterdir()),
    "lines": sum(path.read_bytes().count(b"\\n") for path in Path(result.artefacts, "logs").iterdir()),
}))
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, nargs="+", default=[10, 100, 1000, 1280])
    parser.add_argument("--lines", type=int, default=50_000, help="a second, all pods together")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long they speak, all at once")
    parser.add_argument("--step-every", type=float, default=2.0, help="seconds between a rank's step records")
    args = parser.parse_args(argv)
    results = []
    for pods in args.pods:
        results.append(one(pods, args))
        kept = {key: value for key, value in results[-1].items() if key != "requests"}
        print(json.dumps(kept), flush=True)
    print(f"{args.lines} lines/s asked for, for {args.seconds:g} s; a step record per rank every {args.step_every:g} s")
    show(results, args)
    print(GOALS)
    return 0


def one(pods: int, args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="allranks-bench-") as name:
        directory = Path(name)
        counts = directory / "counts.json"
        standin = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.counting", str(counts), "--root", str(directory / "standin")),
                *("--nodes", f"nvidia:{pods}x{PER_NODE}", "--exit-with-parent", "--history", str(16 * pods + 1000)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert standin.stdout is not None
        while not (line := standin.stdout.readline()).startswith("export KUBECONFIG="):
            if not line:
                raise SystemExit("the stand-in did not start")
        kubeconfig = line.partition("=")[2].strip()
        speech = ["--lines-per-second", str(args.lines / pods), "--seconds", str(args.seconds)]
        harness = subprocess.run(
            [
                *(sys.executable, "-c", HARNESS, kubeconfig, str(directory / "runs"), str(pods), str(args.seconds)),
                *(*speech, "--step-every", str(args.step_every)),
            ],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        standin.send_signal(signal.SIGTERM)
        _, status, used = os.wait4(standin.pid, 0)
        standin.returncode = os.waitstatus_to_exitcode(status)
        result: dict[str, Any] = json.loads(harness.stdout.splitlines()[-1])
        result |= {"pods": pods, "requests": json.loads(counts.read_text())}
        result["standin_cpu"] = used.ru_utime + used.ru_stime
        return result


def show(results: list[dict[str, Any]], args: argparse.Namespace) -> None:
    rows: list[tuple[str, list[str]]] = [
        ("pods", [f"{each['pods']}" for each in results]),
        ("ranks", [f"{each['pods'] * PER_NODE}" for each in results]),
        ("ranks found", [f"{each['reported']}" for each in results]),
        ("ranks twice", [f"{each['duplicate']}" for each in results]),
        ("lines/s reached", [f"{each['lines'] / args.seconds:.0f}" for each in results]),
        ("lag p50 (s)", [f"{each['lag_p50']:.3f}" for each in results]),
        ("lag p99 (s)", [f"{each['lag_p99']:.3f}" for each in results]),
        ("lag, worst (s)", [f"{each['lag_max']:.3f}" for each in results]),
        ("harness, peak MiB", [f"{each['peak']:.0f}" for each in results]),
        ("harness, CPU s", [f"{each['cpu']:.1f}" for each in results]),
        ("stand-in, CPU s", [f"{each['standin_cpu']:.1f}" for each in results]),
        ("apply → all heard (s)", [f"{each['to_start']:.1f}" for each in results]),
        ("end → verdict (s)", [f"{each['to_verdict']:.2f}" for each in results]),
        ("requests", [f"{sum(each['requests'].values())}" for each in results]),
        ("requests for logs a pod", [f"{logs_a_pod(each):.2f}" for each in results]),
    ]
    for name, cells in rows:
        print(f"  {name:<26}" + "".join(f"{cell:>10}" for cell in cells))
    for each in results:
        others = {kind: count for kind, count in each["requests"].items() if " log" not in kind}
        print(f"  {each['pods']} pods, other requests: {json.dumps(others)}")


def logs_a_pod(result: dict[str, Any]) -> float:
    return sum(count for kind, count in result["requests"].items() if " log" in kind) / float(result["pods"])


if __name__ == "__main__":
    sys.exit(main())
