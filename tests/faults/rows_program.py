"""Faults of the training program and of what it says."""

# ruff: noqa: E501 - a table has one row a line
from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

from allranks.report.text import render
from allranks.result import Phase, TrainingRun, Verdict
from tests.faults.row import Check, Row
from tests.faults.world import World

PASSED, FLAKY, INCOMPLETE, FAILED = Verdict.PASSED, Verdict.FLAKY, Verdict.INCOMPLETE, Verdict.FAILED
CAPACITY, SCHEDULE, PULL, START = Phase.CAPACITY, Phase.SCHEDULE, Phase.PULL, Phase.START
RENDEZVOUS, TRAIN, CHECK = Phase.RENDEZVOUS, Phase.TRAIN, Phase.CHECK
NODE_0, NODE_1 = "standin-nvidia-0", "standin-nvidia-1"
_BOUND = 1 << 20
_LOG_LIMIT = 4 << 20


def shows(fault: str, rank: int = 1, *more: str) -> tuple[str, ...]:
    return ("--fault", fault, "--rank", str(rank), *more)


def logs(result: TrainingRun) -> bytes:
    assert result.artefacts is not None
    return b"".join(path.read_bytes() for path in sorted((Path(result.artefacts) / "logs").iterdir()))


def finds(*codes: str) -> Check:
    """Findings that have to be there beside the cause."""

    def check(world: World, result: TrainingRun) -> str:
        lacking = set(codes) - {finding.code for finding in result.findings}
        return f"not found: {', '.join(sorted(lacking))}" if lacking else ""

    return check


def peers_are_consequences(world: World, result: TrainingRun) -> str:
    """One cause; what the others died of follows from it. Their last words were read."""
    cause = result.judgement.cause
    others = [f.message for f in result.findings if f is not cause and f.verdict is FAILED and not f.consequence]
    if others:
        return f"told as causes of their own: {others}"
    stacks = logs(result).count(b"stack: hang() waits")
    return "" if stacks == 3 else f"{stacks} of 3 stacks of the peers are in the logs"


def losses_are_named(world: World, result: TrainingRun) -> str:
    """Where a stream is down at the very moment when a pod goes, its last words may be lost: but that is told."""
    told = any(finding.code == "note-log-cut" for finding in result.findings)
    complaint = peers_are_consequences(world, result)
    return "" if told and "stacks" in complaint else complaint


def harmless(world: World, result: TrainingRun) -> str:
    """No byte of a pod's is a command to the terminal or to a CI system."""
    text = "\n".join(render(result))
    if re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text):
        return f"control characters reach the terminal: {text!r}"
    commands = re.findall(r"(?m)^\s*(?:::\w+|##\[\w+).*", text)
    return f"workflow commands at the start of a line: {commands}" if commands else ""


def bounded(world: World, result: TrainingRun) -> str:
    """What was read is not held in memory: the process stays under 1 GiB, whatever the log's size."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return f"{used >> 20} MiB of memory used" if used > _BOUND << 10 else ""


def cut_on_disk(world: World, result: TrainingRun) -> str:
    """The kept logs stay near the limit, and what was not kept is told."""
    kept = len(logs(result))
    if kept > 2 * (_LOG_LIMIT + (1 << 20)):
        return f"{kept} bytes of logs on disk, the limit was {_LOG_LIMIT} a pod"
    told = [finding for finding in result.findings if re.search("(?i)limit|truncat|not kept", finding.message)]
    return "" if told else "no finding says that a log was cut"


def efa(world: World) -> None:
    amount = {"vpc.amazonaws.com/efa": "1"}
    for node in (NODE_0, NODE_1):
        world.node(node, {"status": {"capacity": amount, "allocatable": amount}}, status=True)


PROGRAM_ROWS = (
    Row("no fault", PASSED, fast=True),
    Row("rank never reports", INCOMPLETE, code="missing-rank", ranks=(2,), node=NODE_1, args=shows("silent", 2), fast=True),
    Row("rank ends early with code 0", INCOMPLETE, code="missing-rank", ranks=(1,), node=NODE_0, args=shows("exit-early")),
    Row("duplicate rank", INCOMPLETE, args=shows("duplicate", 3), check=finds("duplicate-rank", "missing-rank"), says="rank [23]"),
    Row("foreign rank", INCOMPLETE, args=shows("foreign", 3), check=finds("foreign-rank", "missing-rank"), says="rank [37]"),
    Row("every process its own group", FAILED, CHECK, code="world-size", args=shows("own-group", -1), check=finds("duplicate-rank"), fast=True),
    Row("every node its own group", FAILED, CHECK, code="world-size", args=shows("group-per-node", -1)),
    Row("loss is NaN", FAILED, CHECK, code="not-finite", ranks=(3,), node=NODE_1, says="step 3", args=shows("nan", 3)),
    Row("loss rises", FAILED, CHECK, code="loss-not-falling", args=shows("rising", -1)),
    Row("parameters differ", FAILED, CHECK, args=shows("unequal", 2), says="rank 2"),
    Row("record missing in between", INCOMPLETE, ranks=(1,), args=shows("gap")),
    Row("computes on another device", FAILED, START, code="wrong-device", ranks=(3,), args=shows("wrong-device", 3)),
    Row("EFA planned, sockets used", FAILED, RENDEZVOUS, args=shows("sockets", -1), prepare=efa, says="(?i)socket"),
    Row("EFA planned and used", PASSED, args=shows("efa", -1), prepare=efa),
    Row("exit code 17", FAILED, TRAIN, code="exit-code", ranks=(3,), node=NODE_1, says="17", args=shows("exit", 3, "--bound"), check=peers_are_consequences, fast=True),
    Row("killed by SIGKILL", FAILED, TRAIN, code="exit-code", ranks=(1,), node=NODE_0, says="SIGKILL", args=shows("kill", 1, "--bound"), check=peers_are_consequences),
    Row("segmentation fault", FAILED, TRAIN, code="exit-code", ranks=(2,), node=NODE_1, says="SIGSEGV", args=shows("segfault", 2, "--bound"), check=peers_are_consequences),
    Row("abort", FAILED, TRAIN, code="exit-code", ranks=(0,), node=NODE_0, says="SIGABRT", args=shows("abort", 0, "--bound"), check=peers_are_consequences),
    Row("launcher killed", FAILED, TRAIN, node=NODE_1, says="SIGKILL|137", args=shows("kill-launcher", 2, "--bound")),
    Row("module is missing", FAILED, START, ranks=(2,), says="transformer_engine", args=shows("no-module", 2, "--bound")),
    Row("exits before its first record", FAILED, START, code="exit-code", ranks=(2,), node=NODE_1, args=shows("exit-at-start", 2, "--bound")),
    Row("fails after its final record", FAILED, TRAIN, code="exit-code", ranks=(1,), says="code 5", args=shows("exit-late")),
    Row("hangs in a collective", FAILED, TRAIN, code="stall", ranks=(0, 1, 2, 3), args=shows("hang", 3, "--bound"), settings={"stall_timeout": 2.0}, grace=2.0, fast=True),
    Row("one rank hangs", FAILED, TRAIN, code="stall", ranks=(3,), says=NODE_1, args=shows("hang", 3), settings={"stall_timeout": 2.0}, grace=2.0),
    Row("hangs after its final record", FAILED, TRAIN, code="stall", args=shows("hang-at-exit"), settings={"stall_timeout": 2.0}, grace=2.0),
    Row("one rank absent from the rendezvous", FAILED, RENDEZVOUS, code="rendezvous", ranks=(2,), says=NODE_1, args=shows("late", 2), settings={"start_timeout": 3.0}, grace=3.0),
    Row("rendezvous never forms", FAILED, RENDEZVOUS, code="rendezvous", ranks=(0, 1, 2, 3), args=shows("late", -1), settings={"start_timeout": 3.0}, grace=3.0),
    Row("run takes too long", FAILED, TRAIN, code="deadline", args=("--steps", "900", "--step-time", "0.05"), settings={"deadline": 5.0}, since="start", grace=5.0),
    Row("second attempt of the launcher", FLAKY, args=shows("second-attempt", -1)),
    Row("records of another run beside its own", PASSED, args=shows("stranger")),
    Row("records of another run in place of its own", INCOMPLETE, code="missing-rank", ranks=(1,), args=shows("forged-run")),
    Row("another rank's number is used", INCOMPLETE, code="duplicate-rank", ranks=(2,), args=shows("forged-rank")),
    Row("figures of a silent rank are forged", INCOMPLETE, ranks=(3,), args=shows("forged-line", 3)),
    Row("terminal escapes and CI commands", FAILED, TRAIN, code="exit-code", ranks=(1,), args=shows("escapes", 1, "--bound"), check=harmless),
    Row("flood of 192 MiB of log", PASSED, args=shows("flood", 1, "--size", "192"), check=bounded),
    Row("log beyond its limit on disk", PASSED, args=shows("flood", 1, "--size", "32"), settings={"log_limit": _LOG_LIMIT}, check=cut_on_disk),
    Row("one line of 32 MiB", PASSED, args=shows("long-line", 1, "--size", "32"), check=bounded),
)  # fmt: skip
