"""`python -m tests.faults`: every fault, what has to be said of it, what was said, and how soon."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.faults.row import Outcome
from tests.faults.rows import ROWS
from tests.faults.runner import run_rows


def main() -> int:
    """Returns 0 when every row is right, 1 when one is wrong, 2 when none was chosen."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="rows whose name has this in it")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4), help="stand-ins at a time")
    parser.add_argument("--list", action="store_true", help="print the rows and what is expected, and run nothing")
    given = parser.parse_args()
    rows = [row for row in ROWS if not given.only or any(part in row.name for part in given.only)]
    if not rows:
        print(f"no row has {' or '.join(given.only)} in its name", file=sys.stderr)
        return 2
    if given.list:
        for row in rows:
            print(f"{row.name} | {row.expected}")
        return 0
    begun = time.monotonic()
    done: dict[str, Outcome] = {}
    for outcome in run_rows(rows, given.jobs):
        done[outcome.name] = outcome
        mark = "" if not outcome.wrong else ": " + "; ".join(outcome.wrong)
        print(f"[{len(done)}/{len(rows)}] {outcome.name}{mark}", file=sys.stderr, flush=True)
    outcomes = [done[row.name] for row in rows]
    print("\n".join(table(outcomes)))
    wrong = sum(bool(outcome.wrong) for outcome in outcomes)
    print(f"\n{len(outcomes)} faults, {len(outcomes) - wrong} right, {wrong} wrong, {time.monotonic() - begun:.0f} s")
    return 1 if wrong else 0


def table(outcomes: list[Outcome]) -> list[str]:
    """Aligned columns: fault, expected, got, seconds to the verdict, ok."""
    lines = [("fault", "expected", "got", "seconds", "ok")]
    for each in outcomes:
        seconds = "" if each.seconds is None else f"{each.seconds:.1f} of {each.limit:g}"
        lines.append((each.name, each.expected, each.got[:60], seconds, "WRONG" if each.wrong else "ok"))
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    return [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


if __name__ == "__main__":
    sys.exit(main())
