"""`allranks judge` on a gigabyte of noisy log of 512 ranks, against `grep -c` and a line-by-line regex loop.

The log is made in a temporary directory (it needs that much room) and removed at the end. All read the same file, from
the page cache, one after the other. Rates are per second of CPU time, user and system, so that other work on the
machine does not count; judge's has the start of Python in it. The loops are measured on a slice of the file, as their
rate does not depend on its size. What judge costs beyond the scan depends on the number of records: few and many are
shown. Where the extra `scan` is installed, judge is measured with it and without.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

RANKS = 512
PER_NODE = 8
NOISE = 16 << 20
"""Bytes of different noise; the file repeats it, with the records at other places."""
RECORD = r"ALLRANKS (\{.*\})"
JUDGE = "import sys; from allranks.cli import main; sys.exit(main(sys.argv[1:]))"
WAYS = {"without the extra scan": f"import sys; sys.modules['hyperscan'] = None; {JUDGE}"}
if importlib.util.find_spec("hyperscan"):
    WAYS = {"with the extra scan": JUDGE, **WAYS}
FIELD = (r"\[Rank (\d+)\].*local_throughput=([\d.]+) samples/s", r"Process (\d+) - Throughput: ([\d.]+)")
LOOPS: dict[str, tuple[list[re.Pattern[Any]], dict[str, str]]] = {
    "regex loop, 3 formats, text": ([re.compile(each) for each in (RECORD, *FIELD)], {"errors": "replace"}),
    "regex loop, 1 format, bytes": ([re.compile(RECORD.encode())], {"mode": "rb"}),
}
"""What people write; and the fastest of its kind."""

TEMPLATES = (
    b"2025-11-30 10:%02d:%02d,%03d INFO [trainer.py:%d] worker pool drained, queue depth %d, cache hit 0.%02d\n",
    b"ip-10-0-%d-%d:%d:%d [%d] NCCL INFO Channel %02d/0 : 3[3] -> 4[4] via P2P/CUMEM/read\n",
    b"[%02d:%02d:%02d.%03d] shard %d: prefetched %d MiB from object store, checksum ok\n",
    b'{"ts":"2025-11-30T10:%02d:%02d.%03dZ","level":"info","msg":"heartbeat","node":"node-%d","load":%d.%d}\n',
    b"  %d%%|####      | %d/%d [%02d:%02d<%02d:00, 3.21it/s]\r",
    b"DEBUG optimizer state offload %d/%d: host buffer %d KiB, stream %d, event %d, lag %d us\n",
    b"WARNING: %d dataloader workers are slow (%d.%d s); consider --num-workers %d (now %d, limit %d)\n",
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--slice", type=int, default=100, help="megabytes for the regex loops")
    parser.add_argument("--steps", type=int, nargs="+", default=[6, 60], help="step records a rank")
    parser.add_argument("--rounds", type=int, default=3, help="the best counts")
    args = parser.parse_args(argv)
    for steps in args.steps:
        with tempfile.TemporaryDirectory(prefix="allranks-bench-") as directory:
            path = Path(directory) / "training.log"
            records = write_log(path, args.megabytes * 10**6, steps)
            report(path, records, args)
    return 0


def report(path: Path, records: int, args: argparse.Namespace) -> None:
    size = path.stat().st_size
    grep = min(grep_seconds(path, records) for _ in range(args.rounds))
    loops = {name: loop_rate(path, args.slice * 10**6, *how) for name, how in LOOPS.items()}
    print(f"{size / 1e9:.2f} GB, {RANKS} ranks, {records / RANKS:.0f} records a rank; best of {args.rounds}")
    print("  MB per CPU second                                 judge against it")
    for way, program in WAYS.items():
        runs = [judge_once(program, path) for _ in range(args.rounds)]
        judge, wall, peak = (min(run[0] for run in runs), min(run[1] for run in runs), max(run[2] for run in runs))
        rate = size / judge
        print(f"  {f'allranks judge, {way}':<40}{rate / 1e6:>7.0f}")
        print(f"  {'grep -c ALLRANKS':<40}{size / grep / 1e6:>7.0f}   {rate * grep / size:>14.2f}   goal 0.2")
        for name, loop in loops.items():
            print(f"  {f'{name} ({args.slice} MB)':<40}{loop / 1e6:>7.0f}   {rate / loop:>14.1f}   goal 10")
        print(
            f"  judge: {judge:.2f} s of CPU time, {wall:.2f} s on the clock (goal: under 10 s), {peak:.0f} MiB",
            flush=True,
        )


def write_log(path: Path, size: int, steps: int) -> int:
    """Noise with the records of all ranks spread over it evenly. Returns the number of records."""
    noise = make_noise()
    lines = list(make_records(steps))
    gap = (size - sum(map(len, lines))) // len(lines)
    at = 0
    with path.open("wb", buffering=1 << 20) as file:
        for line in lines:
            left = gap
            while left > 0:
                end = noise.find(b"\n", min(at + left, len(noise) - 1)) + 1
                file.write(noise[at:end])
                left -= end - at
                at = end if end < len(noise) else 0
            file.write(line)
    return sum(line.startswith(b"ALLRANKS") for line in lines)


def make_noise() -> bytes:
    generator = random.Random(17)
    made = bytearray()
    while len(made) < NOISE:
        template = generator.choice(TEMPLATES)
        count = template.replace(b"%%", b"").count(b"%")
        made += template % tuple(generator.randrange(60) for _ in range(count))
    return bytes(made)


def make_records(steps: int) -> Iterator[bytes]:
    """In the order of a run: every rank starts, then step after step, then the ends; behind the human lines, too."""
    for seq in range(steps + 2):
        for rank in range(RANKS):
            common: dict[str, Any] = {"v": 1, "run": "bench", "rank": rank, "world": RANKS, "attempt": 0, "seq": seq}
            common |= {"event": "step", "t": 1764497325.0 + seq}
            if seq == 0:
                pod, local = divmod(rank, PER_NODE)
                common |= {"event": "start", "pod": f"bench-{pod}", "node": f"node-{pod}", "local_rank": local}
                common |= {"pid": 1000 + rank, "device": f"cuda:{local}", "backend": "nccl", "workload": "bert"}
            elif seq <= steps:
                common |= {"step": seq, "loss": 11 - seq / 100, "lr": 1e-4, "step_time": 0.1 + rank / 1e5, "samples": 8}
            else:
                figures = {"samples": 8.0 * steps, "total_time": 6.1, "throughput": 78.7, "epoch_time": 1.5}
                common |= {"event": "end", "steps": steps, "records": steps + 2, **figures, "fingerprint": "c0ffee"}
                yield (
                    f"[Rank {rank}] - local_samples=480, total_time=6.10s, local_throughput=78.70 samples/s, "
                    "local_avg_epoch_time=1.50s\n"
                ).encode()
            yield b"ALLRANKS " + json.dumps(common, separators=(",", ":")).encode() + b"\n"


def grep_seconds(path: Path, records: int) -> float:
    process = subprocess.Popen(
        ["grep", "-c", "ALLRANKS", str(path)], env={**os.environ, "LC_ALL": "C"}, stdout=subprocess.PIPE
    )
    said, usage = finished(process)
    assert int(said) == records, said
    return usage.ru_utime + usage.ru_stime


def judge_once(program: str, path: Path) -> tuple[float, float, float]:
    """CPU seconds, seconds from start to exit, peak memory in MiB."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", program, "judge", str(path), "--world-size", str(RANKS), "--json"],
        stdout=subprocess.PIPE,
    )
    output, usage = finished(process)
    seconds = time.perf_counter() - began
    said = json.loads(output)
    assert (process.returncode, said["verdict"]) == (0, "passed"), said["sentence"]
    assert said["ranks"] == {"expected": RANKS, "reported": RANKS, "missing": [], "duplicate": [], "foreign": []}
    peak = usage.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)
    return usage.ru_utime + usage.ru_stime, seconds, peak


def finished(process: subprocess.Popen[bytes]) -> tuple[bytes, resource.struct_rusage]:
    """Its output, and what it used."""
    assert process.stdout is not None
    said = process.stdout.read()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return said, usage


def loop_rate(path: Path, size: int, patterns: Sequence[re.Pattern[Any]], mode: dict[str, str]) -> float:
    """Bytes per CPU second of the usual loop: each line through the patterns."""
    read = 0
    began = time.process_time()
    with path.open(**mode) as file:  # type: ignore[call-overload]
        for line in file:
            read += len(line)
            for pattern in patterns:
                pattern.search(line)
            if read >= size:
                break
    return read / (time.process_time() - began)


if __name__ == "__main__":
    sys.exit(main())
