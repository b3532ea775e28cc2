"""The launcher against torchrun, side by side in one run.

    python benchmarks/launcher.py [--quick]

Prints, for both: the time from start to exit of 8 (and 64) processes that do nothing; the time from a rank's crash to
the end of its last sibling; and lines per second through the pipes, against torchrun's --tee, with what was lost.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = [sys.executable, "-m", "workloads.launch"]
TORCHRUN = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

CRASH = """
import os, time
folder, rank = os.environ["BENCH_DIR"], os.environ["RANK"]
open(f"{folder}/ready-{rank}", "w").close()
if rank == "0":
    while len([name for name in os.listdir(folder) if name.startswith("ready")]) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
    with open(f"{folder}/crashed", "w") as file:
        file.write(repr(time.time()))
        file.flush()
        os._exit(17)
time.sleep(600)
"""

CHATTER = """
import os, sys, time
rank, count, begin = os.environ["RANK"], int(sys.argv[1]), time.time()
block = b"".join(b"%s %d step loss 2.345678 lr 1.00e-05\\n" % (rank.encode(), i) for i in range(1000))
for _ in range(count // 1000):
    os.write(1, block)
"""


def launch(command: list[str], folder: Path, **options: object) -> subprocess.CompletedProcess[bytes]:
    environment = {**ENVIRONMENT, "BENCH_DIR": str(folder)}
    return subprocess.run(command, env=environment, check=False, stderr=subprocess.DEVNULL, **options)  # type: ignore[call-overload, no-any-return]


def start_to_exit(base: list[str], processes: int, folder: Path) -> float:
    began = time.monotonic()
    ended = launch([*base, "--nproc-per-node", str(processes), "--no-python", "true"], folder)
    if ended.returncode:
        raise SystemExit(f"{base}: exit code {ended.returncode}")
    return time.monotonic() - began


def crash_to_end(base: list[str], processes: int, folder: Path) -> float:
    """Siblings that do not handle SIGTERM; from just before the crash to the launcher's end, which outlasts them."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        program = Path(own) / "crash.py"
        program.write_text(CRASH)
        command = [*base, "--nproc-per-node", str(processes), "--no-python", sys.executable, "-S", str(program)]
        ended = launch(command, Path(own))
        finished = time.time()
        if not ended.returncode:
            raise SystemExit(f"{base}: a crash was not noticed")
        return finished - float((Path(own) / "crashed").read_text())


def lines_per_second(base: list[str], processes: int, lines: int, folder: Path) -> tuple[float, float]:
    """(lines a second from start to exit less an idle run's time, share of the lines that came out whole)."""
    program = folder / "chatter.py"
    program.write_text(CHATTER)
    command = [*base, "--nproc-per-node", str(processes), "--tee", "3", "--log-dir", str(folder / "logs")]
    if base is OURS:
        command = [*base, "--nproc-per-node", str(processes), "--line-prefix", "[${role_name}${local_rank}]:"]
    idle = min(start_to_exit(base, processes, folder) for _ in range(2))
    out = folder / "out"
    began = time.monotonic()
    with out.open("wb") as file:
        launch([*command, "--no-python", sys.executable, "-S", str(program), str(lines)], folder, stdout=file)
    elapsed = time.monotonic() - began
    whole = out.read_bytes().count(b" step loss 2.345678 lr 1.00e-05\n[") + 1
    return processes * lines / max(elapsed - idle, 0.001), whole / (processes * lines)


def compare(title: str, unit: str, measure: Callable[[list[str]], float], rounds: int, *, higher: bool = False) -> None:
    ours = statistics.median(measure(OURS) for _ in range(rounds))
    theirs = statistics.median(measure(TORCHRUN) for _ in range(max(1, rounds // 2)))
    ratio = ours / theirs if higher else theirs / ours
    print(f"{title:<52} {ours:>12,.3f} {unit:<8} {theirs:>12,.3f} {unit:<8} {ratio:>7.1f} ×", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and lines, no 64 processes")
    quick = parser.parse_args().quick
    rounds = 3 if quick else 7
    print(f"{'':<52} {'launcher':>12} {'':<8} {'torchrun':>12} {'':<8} {'better':>7}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for processes in (8,) if quick else (8, 64):
            title = f"start to exit, {processes} processes that do nothing"
            compare(title, "s", lambda base, n=processes: start_to_exit(base, n, folder), rounds)  # type: ignore[misc]
        compare("crash of a rank to the end, 8 processes", "s", lambda base: crash_to_end(base, 8, folder), rounds)
        shares: dict[bool, float] = {}

        def throughput(base: list[str]) -> float:
            rate, share = lines_per_second(base, 8, 20_000 if quick else 200_000, folder)
            shares[base is OURS] = min(share, shares.get(base is OURS, 1.0))
            return rate

        compare("lines through the pipes, 8 processes, prefixed", "lines/s", throughput, 2, higher=True)
        print(f"{'  lines that came out whole':<52} {shares[True]:>12.4%} {'':<8} {shares[False]:>12.4%}")


if __name__ == "__main__":
    main()
