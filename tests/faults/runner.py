"""Runs rows, each worker process on a stand-in of its own, and says what they came to."""

from __future__ import annotations

import atexit
import dataclasses
import re
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

from allranks.cluster import ClusterError
from allranks.plan import Accelerator
from allranks.result import TrainingRun, Verdict
from allranks.run import run
from allranks.settings import Settings, Workload
from allranks.standin_process import start_standin
from tests.faults.row import REFUSED, WITHIN, Outcome, Row
from tests.faults.rows import ROWS
from tests.faults.world import World

PROGRAM = Path(__file__).parent / "programs" / "unruly.py"
OPTIONS = ["--log-max-size", "1Mi", "--log-max-files", "2", "--token-life", "5"]
DEADLINE = 45.0
_held: list[World] = []


def start_world(stack: ExitStack) -> World:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="allranks-faults-")))
    return World(stack.enter_context(start_standin(directory, ["nvidia:2x2"], OPTIONS)))


def run_rows(rows: Sequence[Row], jobs: int) -> Iterator[Outcome]:
    """The outcomes as they come. A row runs alone on its worker's stand-in."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_open_world) as pool:
        for done in as_completed([pool.submit(_run_named, row.name) for row in rows]):
            yield done.result()


def _open_world() -> None:
    stack = ExitStack()
    _held.append(start_world(stack))
    atexit.register(stack.close)


def _run_named(name: str) -> Outcome:
    return run_row(next(row for row in ROWS if row.name == name), _held[0])


def run_row(row: Row, world: World) -> Outcome:
    """One row from a clean stand-in to a clean stand-in."""
    started = time.monotonic()
    world.restore()
    world.begin()
    for fault in row.before:
        world.fault(**fault)
    if row.prepare is not None:
        row.prepare(world)
    act = _Act(row, world)
    act.start()
    with tempfile.TemporaryDirectory(prefix="allranks-artefacts-") as artefacts:
        outcome = _judged(row, world, Path(artefacts), act)
    world.restore()
    return dataclasses.replace(outcome, took=time.monotonic() - started)


class _Act(threading.Thread):
    """What happens meanwhile, and when it had happened."""

    def __init__(self, row: Row, world: World) -> None:
        super().__init__(daemon=True)
        self._row, self._world = row, world
        self.ended: float | None = None
        self.error = ""

    def run(self) -> None:
        try:
            if self._row.during is not None:
                self._row.during(self._world)
                self.ended = time.time()
        except Exception:
            self.error = traceback.format_exc(limit=-2).strip().splitlines()[-1]


def _judged(row: Row, world: World, artefacts: Path, act: _Act) -> Outcome:
    began = time.time()
    result, sentence = _run(row, world, artefacts)
    ended = dict(result.timeline)["verdict"] if result else time.time()
    act.join(20)
    facts: dict[str, Callable[[], float | None]] = {
        "diary": lambda: max(world.noted("fact"), default=None),
        "fault": world.struck,
        "act": lambda: act.ended,
        "start": lambda: began,
    }
    fact, limit = facts[row.since](), WITHIN + row.grace
    seconds = None if fact is None else ended - fact
    unmet, left = world.unmet(), world.left()
    wrong = [f"meanwhile: {act.error}"] if act.error else []
    wrong += _differences(row, world, result, sentence)
    wrong += [f"the fault {kind} did not strike" for kind in unmet]
    wrong += [f"left on the cluster: {', '.join(left)}"] if left else []
    if seconds is None:
        wrong.append("it is not known when it happened")
    elif not 0 <= seconds <= limit:
        wrong.append(f"{seconds:.1f} s, not within {limit:g} s")
    return Outcome(row.name, row.expected, _got(result, sentence), seconds, limit, tuple(wrong))


def _run(row: Row, world: World, artefacts: Path) -> tuple[TrainingRun | None, str]:
    """The run, if one was judged, and its sentence, or why there was none."""
    kubeconfig = world.kubeconfig.with_name("kubeconfig-exec") if row.tokens else world.kubeconfig
    given = {"deadline": DEADLINE, "attempts": 1, **row.settings}
    settings = Settings(Accelerator.NVIDIA, "standin", kubeconfig, artefacts=artefacts, **given)
    arguments = ("--diary", str(world.diary), *row.args)
    try:
        result = run(settings, Workload("unruly", "unruly", arguments, (("unruly.py", PROGRAM),)))
    except ClusterError as error:
        return None, f"{REFUSED}: {error}"
    except Exception as error:  # a defect of the harness: this row is wrong, the others are still to be run
        return None, f"broken: {type(error).__name__}: {error}"
    return result, result.sentence()


def _got(result: TrainingRun | None, sentence: str) -> str:
    if result is None:
        return sentence.splitlines()[0]
    judged = result.judgement
    where = f" in {judged.phase}" if judged.phase else ""
    return f"{judged.verdict}{where}" + (f" ({judged.cause.code})" if judged.cause else "")


def _differences(row: Row, world: World, result: TrainingRun | None, sentence: str) -> list[str]:
    wrong = []
    verdict = sentence.partition(":")[0] if result is None else result.verdict
    if verdict != row.verdict:
        wrong.append(sentence)
    evidence = result.judgement.cause.evidence if result and result.judgement.cause else ()
    if row.says and not re.search(row.says, "\n".join((sentence, *evidence)), re.DOTALL):
        wrong.append(f"does not say {row.says!r}: {sentence}")
    if result is None:
        return wrong
    judged, cause = result.judgement, result.judgement.cause
    if verdict == Verdict.FAILED and judged.phase != row.phase:
        wrong.append(f"phase {judged.phase}: {sentence}")
    for name, wanted, got in (
        ("code", row.code, cause and cause.code),
        ("ranks", row.ranks, cause and cause.ranks),
        ("node", row.node, cause and cause.node),
    ):
        if wanted is not None and wanted != got:
            wrong.append(f"{name} {got}, not {wanted}: {sentence}")
    complaint = row.check(world, result) if row.check is not None else ""
    return [*wrong, complaint] if complaint else wrong
