"""`python -m benchmarks` runs all of them, `python -m benchmarks verdict` one."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = {
    "verdict": "seconds from the last rank's exit to the verdict, against polling; peak memory of the harness",
    "launcher": "the launcher against torchrun: start to exit, crash to the last sibling's end, lines per second",
    "judge": "a gigabyte of log of 512 ranks: allranks judge against grep -c and against regex loops",
    "follow": "1 280 pods, 10 240 ranks, 50 000 lines a second: lag, memory, requests, and how they grow",
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    failed = 0
    for name in names or BENCHMARKS:
        print(f"\n=== {name}: {BENCHMARKS[name]}", flush=True)
        failed |= subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
