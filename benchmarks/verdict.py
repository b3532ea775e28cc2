"""Seconds from the last rank's exit to the verdict, and the harness's peak memory, against the polling peer.

Both look at the same Job on the same stand-in at the same time, so that no noise falls on one alone. The last rank's
exit is the time in the last `end` record, which a rank writes just before it exits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allranks.standin_process import start_standin

PROGRAM = Path(__file__).parent / "programs" / "chatter.py"
SECONDS = (1.0, 2.0, 3.0, 4.0, 5.0)
"""The jobs' lengths: a polling loop is late by what is left of its interval, so they are spread over one."""

HARNESS = """
import json, resource, sys
from pathlib import Path
from allranks.plan import Accelerator
from allranks.run import run
from allranks.settings import Settings, Workload
kubeconfig, namespace, artefacts, program, *args = sys.argv[1:]
where = {"namespace": namespace, "artefacts": Path(artefacts), "keep": "all"}
settings = Settings(Accelerator.NVIDIA, "standin", Path(kubeconfig), **where)
result = run(settings, Workload("chatter", "chatter", tuple(args), (("chatter.py", Path(program)),)))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"verdict": dict(result.timeline)["verdict"], "ranks": result.figures.ranks, "peak_mib": peak,
                  "sentence": result.sentence(), "artefacts": result.artefacts}))
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=len(SECONDS))
    parser.add_argument("--mebibytes", type=float, nargs="+", default=[8.0, 64.0], help="log per rank, for the memory")
    args = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="allranks-bench-") as directory,
        start_standin(Path(directory)) as kubeconfig,
    ):
        rounds = [
            one_round(kubeconfig, Path(directory), f"round-{number}", "--seconds", str(SECONDS[number % len(SECONDS)]))
            for number in range(args.rounds)
        ]
        print_latencies(rounds)
        noisy = {
            size: one_round(kubeconfig, Path(directory), f"noisy-{size:g}", "--seconds", "1", "--mebibytes", str(size))
            for size in args.mebibytes
        }
        print_memory({0.0: rounds[0], **noisy})
    return 0


def one_round(kubeconfig: Path, directory: Path, namespace: str, *arguments: str) -> dict[str, Any]:
    create_namespace(kubeconfig, namespace)
    polling = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.polling", str(kubeconfig), namespace], stdout=subprocess.PIPE, text=True
    )
    assert polling.stdout is not None
    assert polling.stdout.readline() == "ready\n"
    harness = subprocess.run(
        [sys.executable, "-c", HARNESS, str(kubeconfig), namespace, str(directory / "runs"), str(PROGRAM), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    ours = json.loads(harness.stdout.splitlines()[-1])
    theirs = json.loads(polling.communicate()[0].splitlines()[-1])
    last_exit = last_end_record(Path(ours["artefacts"]))
    return {
        "ours": ours["verdict"] - last_exit,
        "theirs": theirs["verdict"] - last_exit,
        "ours_mib": ours["peak_mib"],
        "theirs_mib": theirs["peak_mib"],
        "ours_ranks": ours["ranks"],
        "theirs_ranks": theirs["ranks"],
    }


def last_end_record(artefacts: Path) -> float:
    """Unix time of the last rank's `end` record in the run's logs."""
    times = [
        json.loads(line.partition(b"ALLRANKS ")[2])["t"]
        for path in artefacts.rglob("*.log")
        for line in path.open("rb")
        if b'"event":"end"' in line
    ]
    return max(times)


def create_namespace(kubeconfig: Path, name: str) -> None:
    import yaml

    config = yaml.safe_load(kubeconfig.read_text())
    body = json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}).encode()
    request = urllib.request.Request(
        config["clusters"][0]["cluster"]["server"] + "/api/v1/namespaces",
        body,
        {"Authorization": f"Bearer {config['users'][0]['user']['token']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request):
        pass


def print_latencies(rounds: list[dict[str, Any]]) -> None:
    print("last rank's exit → verdict, same Job, same stand-in (seconds)")
    print("  round   allranks   5 s polling   ratio")
    for number, each in enumerate(rounds, 1):
        print(
            f"  {number:>5}   {each['ours']:>8.3f}   {each['theirs']:>11.3f}   {each['theirs'] / each['ours']:>5.1f} ×"
        )
    ours = statistics.median(each["ours"] for each in rounds)
    theirs = statistics.median(each["theirs"] for each in rounds)
    print(f"  median  {ours:>8.3f}   {theirs:>11.3f}   {theirs / ours:>5.1f} × sooner (goal: 5 ×)")


def print_memory(rounds: dict[float, dict[str, Any]]) -> None:
    print("peak memory of the harness, 4 ranks (MiB), by the log that each rank writes")
    print("  log per rank (MiB)" + "".join(f"{size:>8g}" for size in rounds))
    for who, name in (("ours", "allranks"), ("theirs", "fetch at the end")):
        print(f"  {name:<18}" + "".join(f"{each[f'{who}_mib']:>8.0f}" for each in rounds.values()))
    found = [f"{each['ours_ranks']} and {each['theirs_ranks']}" for each in rounds.values()]
    print(f"  ranks found, allranks and fetching: {', '.join(found)}")


if __name__ == "__main__":
    sys.exit(main())
