"""`allranks judge LOGS… --world-size W`: the verdict over logs from anywhere, without a cluster."""

from __future__ import annotations

import argparse
import codecs
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from allranks.checks import earlier_attempts, judge
from allranks.checks.references import hold
from allranks.inputs import Input, InputError, open_inputs
from allranks.ledger import Format, Ledger
from allranks.ledger.formats import FormatError, without_figures
from allranks.ledger.formats.custom import GROUPS, custom
from allranks.plan import Plan, PlanError
from allranks.references import KEYS, References, ReferencesError
from allranks.report.text import render
from allranks.result import TrainingRun, Verdict
from allranks.text import printable

PASSED, NOT_PASSED, UNUSABLE = 0, 1, 2
_MOST_RANKS = 1 << 20
"""Each planned rank is named in the result: a slip of the hand must not take all memory."""


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0 passed, 1 not passed, 2 unusable input or wrong usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        references = References.read(options.references, required=options.require_reference)
        plan = _plan(options)
        formats = (custom(options.pattern), *without_figures()) if options.pattern is not None else None
        shaped = options.processes is not None
        run = judge_logs(plan, open_inputs(options.logs), formats=formats, shaped=shaped)
        run = hold(run, references, dict(options.describe))
    except (InputError, PlanError, ReferencesError, FormatError) as error:
        return _unusable(str(error))
    try:
        _print(run, as_json=options.json)
    except BrokenPipeError:
        raise
    except OSError as error:
        return _unusable(f"the result cannot be written: {error.strerror or error}")
    green = (Verdict.PASSED, Verdict.FLAKY) if options.allow_flaky else (Verdict.PASSED,)
    return PASSED if run.verdict in green else NOT_PASSED


def _unusable(why: str) -> int:
    print(f"allranks judge: {printable(why, 2000)}", file=sys.stderr)
    return UNUSABLE


def _print(run: TrainingRun, *, as_json: bool) -> None:
    """In whatever characters the terminal or pipe takes: a verdict must not be lost to an accent."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if as_json:
        ascii_only = codecs.lookup(encoding).name != "utf-8"
        text = json.dumps(run.to_dict(), indent=2, ensure_ascii=ascii_only, allow_nan=False)
    else:
        text = "\n".join(render(run)).encode(encoding, "backslashreplace").decode(encoding)
    print(text, flush=True)


def judge_logs(
    plan: Plan, inputs: Sequence[Input], *, formats: Sequence[Format] | None = None, shaped: bool | None = None
) -> TrainingRun:
    """`formats` in place of those that are recognised; `shaped`: nodes and processes per node of the plan are known.

    Raises InputError when an input cannot be read, or when there is nothing in any of them, FormatError when a pattern
    takes too long.
    """
    ledger = Ledger(plan, formats, shaped=shaped)
    for log in inputs:
        reader = ledger.source(log.name)
        for chunk in log.chunks():
            reader.feed(chunk)
        reader.close()
    if not any(source.bytes for source in ledger.sources):
        names = ", ".join(source.name for source in ledger.sources)
        raise InputError(f"{names}: empty; there is nothing to judge")
    return TrainingRun(
        plan=plan, judgement=judge(plan, ledger), cluster="logs", attempts=earlier_attempts(plan, ledger)
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="allranks judge",
        description="Judge the logs of a training job: was every rank heard, once, to its end, with good numbers?",
        epilog="exit code: 0 passed, 1 not passed, 2 unusable input",
    )
    parser.add_argument("logs", nargs="+", metavar="LOGS", help="files (.gz too), directories, patterns; - for stdin")
    parser.add_argument("--world-size", type=int, metavar="W", help="how many ranks must answer")
    parser.add_argument("--nodes", type=int, metavar="N", help="with --nproc-per-node: the job's shape, N × P = W")
    parser.add_argument("--nproc-per-node", "--nproc_per_node", type=int, metavar="P", dest="processes")
    parser.add_argument(
        "--pattern",
        metavar="REGEX",
        help=f"another format, by the named groups {', '.join(GROUPS)}; a line that matches is its rank's report",
    )
    parser.add_argument("--run-id", metavar="ID", help="only records of this run count (default: the logs' only one)")
    parser.add_argument("--allow-flaky", action="store_true", help="exit 0 also when a restarted job passed")
    parser.add_argument("--references", type=Path, metavar="FILE", help="hold the figures against references.toml")
    parser.add_argument("--require-reference", action="store_true", help="a run that no reference fits is failed")
    parser.add_argument(
        "--describe",
        type=_description,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"for choosing references, what the logs do not say: {', '.join(KEYS[:-1])} (repeatable)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of text")
    return parser


def _description(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    if key not in KEYS[:-1] or not value:
        raise argparse.ArgumentTypeError(f"{text}: KEY=VALUE is expected, with KEY one of {', '.join(KEYS[:-1])}")
    return key, value


def _plan(options: argparse.Namespace) -> Plan:
    """Raises PlanError when the numbers are missing or do not go together."""
    world, nodes, processes = options.world_size, options.nodes, options.processes
    if nodes is None and processes is not None and world is not None and processes > 0:
        nodes, left = divmod(world, processes)
        if left or not nodes:
            raise PlanError(f"--world-size {world} is no multiple of --nproc-per-node {processes}")
    if (nodes is None) != (processes is None):
        raise PlanError("--nodes and --nproc-per-node go together")
    if nodes is None:
        if world is None:
            raise PlanError("--world-size says how many ranks must answer (or --nodes and --nproc-per-node)")
        if world < 1:
            raise PlanError(f"--world-size {world}: there must be at least one rank")
        nodes, processes = 1, world
    if max(nodes, processes, nodes * processes) > _MOST_RANKS:
        raise PlanError(f"{nodes * processes} ranks are more than can be judged: at most {_MOST_RANKS}")
    plan = Plan(nodes=nodes, processes_per_node=processes, run_id=options.run_id)
    if world is not None and world != plan.world_size:
        raise PlanError(f"--world-size {world} is not {nodes} nodes × {processes} processes = {plan.world_size}")
    return plan
