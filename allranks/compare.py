"""`allranks compare A B`: two results, or two directories of results or logs, case by case."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from allranks.curves import TOLERANCES, first_divergence, missing_steps, points_of
from allranks.inputs import Input, InputError, open_inputs
from allranks.ledger import Ledger
from allranks.plan import Plan, format_ranks
from allranks.result import LossCurve, TrainingRun
from allranks.text import printable

SAME, DIFFERENT, UNUSABLE = 0, 1, 2
THROUGHPUT_TOLERANCE = 0.2

# The line that the language models print, here and elsewhere: `step    3/10 | train loss 4.370156 | … | 42482 tok/s`.
_STEP = re.compile(
    rb"step\s+(\d+)/\d+\s+\|\s+train loss\s+([-+.\deE]*\d|[-+]?(?:nan|inf))\b(?:.*?\|\s*([\d.]+)\s+tok/s)?"
)
_BFLOAT16 = re.compile(rb"\"dtype\":\"bfloat16\"|--dtype[ =]bfloat16")
_LONGEST = 4096
_NAMED = "the training"


class CompareError(ValueError):
    """What cannot be compared; the message says why and what to give instead."""


@dataclass(frozen=True, slots=True)
class Training:
    """One training of either side."""

    name: str
    """What it is compared under: the case and its accelerator, or the log file's name."""
    where: str
    dtype: str
    curves: tuple[LossCurve, ...]
    rate: float | None
    """tok/s without the first step, or what the ranks measured after warm-up, added up (samples/s)."""
    unit: str = "tok/s"


@dataclass(slots=True)
class Comparison:
    """What came of it."""

    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    """Trainings on both sides."""


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0 the same within tolerances, 1 different, 2 unusable input or wrong usage."""
    options = _parser().parse_args(arguments)
    tolerances = {**TOLERANCES, **dict(options.loss_tolerance)}
    try:
        before, after = (collect(Path(side)) for side in (options.a, options.b))
    except (CompareError, InputError) as error:
        print(f"allranks compare: {error}", file=sys.stderr)
        return UNUSABLE
    found = compare(before, after, tolerances, options.throughput_tolerance)
    if options.json:
        print(json.dumps({name: getattr(found, name) for name in ("compared", "differences", "notes")}, indent=2))
    else:
        for line in [*found.notes, *found.differences]:
            print(line)
        told = "no difference" if not found.differences else f"{len(found.differences)} differences"
        print(f"{len(found.compared)} trainings compared: {told}")
    return DIFFERENT if found.differences else SAME


def compare(
    before: Mapping[str, Training],
    after: Mapping[str, Training],
    tolerances: Mapping[str, float] = TOLERANCES,
    throughput_tolerance: float = THROUGHPUT_TOLERANCE,
) -> Comparison:
    """`after` held against `before`: trainings and steps that either lacks, losses apart, and what became slower.

    `throughput_tolerance` is a fraction. What became faster is a note.
    """
    found = Comparison()
    for name in sorted({*before, *after}):
        a, b = before.get(name), after.get(name)
        if a is None or b is None:
            found.differences.append(f"{name}: only in {'the first' if b is None else 'the second'}")
            continue
        found.compared.append(name)
        found.differences += [f"{name}: {text}" for text in _losses(a, b, tolerances)]
        _rates(a, b, throughput_tolerance, found)
    return found


def _losses(a: Training, b: Training, tolerances: Mapping[str, float]) -> Iterator[str]:
    if a.dtype != b.dtype:
        yield f"{a.dtype} in the first, {b.dtype} in the second"
        return
    tolerance = tolerances.get(a.dtype)
    if tolerance is None:
        yield f"no tolerance for {a.dtype}: give --loss-tolerance {a.dtype}=VALUE"
        return
    reference = points_of(a.curves)
    if not reference or not points_of(b.curves):
        yield "no losses in " + ("the first" if not reference else "the second")
        return
    if divergence := first_divergence(b.curves, reference, tolerance):
        yield str(divergence)
    for first, second, which in ((a, b, "second"), (b, a, "first")):
        # A thinned curve has only some of the steps that were told.
        thinned = any(curve.steps > len(curve.points) for curve in (*first.curves, *second.curves))
        steps = sorted(int(step) for step in points_of(first.curves))
        wanted = [steps[0], steps[-1]] if thinned else steps
        for ranks, absent in missing_steps(second.curves, wanted).items():
            who = f" of rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks)}" if len(second.curves) > 1 else ""
            yield f"steps missing in the {which}{who}: {format_ranks(absent)}"


def _rates(a: Training, b: Training, tolerance: float, found: Comparison) -> None:
    if a.rate is None or b.rate is None:
        if a.rate is not b.rate:
            found.differences.append(f"{a.name}: no throughput in the {'first' if a.rate is None else 'second'}")
        return
    if a.unit != b.unit:
        found.notes.append(f"{a.name}: throughput in {a.unit} and in {b.unit} is not compared")
        return
    change = (b.rate - a.rate) / a.rate if a.rate else 0.0
    if abs(change) > tolerance:
        text = f"{a.name}: {a.rate:.2f} → {b.rate:.2f} {a.unit} ({change:+.1%}, {tolerance:.0%} allowed)"
        (found.differences if change < 0 else found.notes).append(text + (" slower" if change < 0 else " faster"))


# Reading -------------------------------------------------------------------------------------------------------------


def collect(path: Path) -> dict[str, Training]:
    """The trainings that a path stands for, by name: a result.json, a run's directory, a directory of runs, a log, or
    a directory of logs. Raises CompareError or InputError."""
    if path.is_dir():
        results = sorted(path.rglob("result.json"))
        found = [_of_result(result) for result in results] or [_of_log(log) for log in open_inputs([str(path)])]
    elif path.name.endswith(".json"):
        found = [_of_result(path)]
    else:
        found = [_of_log(log) for log in open_inputs([str(path)])]
    trainings: dict[str, Training] = {}
    for each in found:
        if each is None:
            continue
        if other := trainings.get(each.name):
            raise CompareError(f"{each.name} is there twice: {other.where} and {each.where}; give one of them")
        trainings[each.name] = each
    if not trainings:
        raise CompareError(f"{path}: no training that told its losses or its throughput")
    if path.is_file() or (path / "result.json").exists():
        # Two trainings that are named are meant for each other, whatever they are called.
        (only,) = trainings.values()
        return {_NAMED: replace(only, name=_NAMED)}
    return trainings


def _of_result(path: Path) -> Training | None:
    try:
        run = TrainingRun.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CompareError(f"{path} is no result that can be read: {error}") from error
    name = f"{run.plan.workload or 'training'} on {run.plan.world_size} ranks"
    name += f" of {run.plan.accelerator}" if run.plan.accelerator else ""
    dtype = dict(run.judgement.subject).get("dtype", "float32")
    return Training(name, str(path), dtype, run.judgement.losses, run.figures.throughput_total, "samples/s")


def _of_log(log: Input) -> Training | None:
    """By the models' step lines; where there are none, by records and the other formats that `judge` reads."""
    name = Path(log.name).name
    bfloat16 = "bfloat16" in name or "bf16" in name
    losses: dict[float, float] = {}
    rates: dict[int, float] = {}
    ledger = Ledger(Plan.of_world(1))
    reader = ledger.source(log.name)
    rest = b""
    for chunk in log.chunks():
        reader.feed(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-_LONGEST:]
        for line in lines:
            bfloat16 = bfloat16 or _BFLOAT16.search(line) is not None
            _step_line(line, losses, rates)
    _step_line(rest, losses, rates)
    reader.close()
    dtype = "bfloat16" if bfloat16 else "float32"
    if losses:
        curve = LossCurve((), len(losses), tuple(sorted(losses.items())))
        later = [rate for step, rate in rates.items() if step > min(rates)]
        return Training(name, log.name, dtype, (curve,), fmean(later) if later else None)
    accounts = ledger.accounts()
    curves = tuple(
        LossCurve((rank,), account.losses.count, tuple(account.losses.points()))
        for rank, account in accounts.items()
        if account.losses.count
    )
    finals = [a.final.throughput for a in accounts.values() if a.final and a.final.throughput is not None]
    if not curves and not finals:
        return None
    return Training(name, log.name, dtype, curves, sum(finals) if finals else None, "samples/s")


def _step_line(line: bytes, losses: dict[float, float], rates: dict[int, float]) -> None:
    for match in _STEP.finditer(line) if b"train loss" in line else ():
        losses[int(match[1])] = float(match[2])
        if match[3]:
            rates[int(match[1])] = float(match[3])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="allranks compare",
        description="Compare two trainings, or two directories of them, case by case: loss per step, throughput.",
        epilog="exit code: 0 the same within tolerances, 1 different, 2 unusable input",
    )
    parser.add_argument("a", metavar="A", help="result.json, a run's directory, a directory of runs or of logs, a log")
    parser.add_argument("b", metavar="B", help="the same, held against A")
    parser.add_argument(
        "--loss-tolerance",
        type=_tolerance,
        action="append",
        default=[],
        metavar="DTYPE=VALUE",
        help="how far losses of a step may be apart (default: float32=1e-5, bfloat16=1e-2; repeatable)",
    )
    parser.add_argument(
        "--throughput-tolerance",
        type=_fraction,
        default=THROUGHPUT_TOLERANCE,
        metavar="FRACTION",
        help="how much slower B may be (default: 0.2)",
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    return parser


def _tolerance(text: str) -> tuple[str, float]:
    dtype, equals, value = text.partition("=")
    dtype = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}.get(dtype, dtype)
    if not dtype or not equals:
        raise argparse.ArgumentTypeError(f"{printable(text, 40)}: DTYPE=VALUE is expected")
    return dtype, _fraction(value)


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: a number from 0 is expected")
    return value
