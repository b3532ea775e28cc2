"""Faults of the API server and of what comes between it and us: nothing may be lost, nothing double."""

# ruff: noqa: E501 - a table has one row a line
from __future__ import annotations

from allranks.result import TrainingRun
from tests.faults.row import REFUSED, Act, Check, Row
from tests.faults.rows_pods import BRIEF, strikes
from tests.faults.rows_program import (
    FAILED,
    INCOMPLETE,
    NODE_0,
    NODE_1,
    PASSED,
    TRAIN,
    logs,
    losses_are_named,
    shows,
)
from tests.faults.world import World

PATCHY = ("--steps", "40", "--step-time", "0.05")
SEVEN_SECONDS = ("--steps", "70", "--step-time", "0.1")
_SIZES = (0, 100, 1000, 2500, 6000)


def every_record_once(steps: int) -> Check:
    """The logs hold each rank's start, steps, epoch and end exactly once."""

    def check(world: World, result: TrainingRun) -> str:
        found, wanted = logs(result).count(b"ALLRANKS {"), 4 * (1 + steps + 1 + 1)
        return "" if found == wanted else f"{found} records in the kept logs, {wanted} were written"

    return check


def cuts(kind: str) -> tuple[dict[str, object], ...]:
    """Each of the two streams breaks off five times, at other places."""
    return tuple({"kind": kind, "path": "/log$", "bytes": size, "times": 2} for size in _SIZES)


def storm(code: int, **fault: object) -> Act:
    """Two seconds of refusals while all ranks train."""
    return strikes("error", "^/api", code=code, lasts=2, **fault)


def restart_early(world: World) -> None:
    world.job()
    world.fault("restart-api", seconds=1)


def compact(world: World) -> None:
    world.training()
    world.ask("POST", "/standin/compact")
    world.fault("restart-api")  # so that everything has to be asked for again


def revoke(world: World) -> None:
    world.training()
    world.ask("DELETE", "/standin/tokens")
    world.fault("restart-api")


def renewed(*, refused: bool) -> Check:
    """More than one token was used; `refused`: because the server did not take one any more."""

    def check(world: World, result: TrainingRun) -> str:
        issued, rejected = world.tokens("issued"), world.tokens("refused")
        if issued < 2 or (refused and not rejected):
            return f"nothing was tried: {issued} tokens, {rejected} requests refused"
        return every_record_once(70)(world, result)

    return check


def forbids(verb: str, resource: str) -> tuple[dict[str, object], ...]:
    return ({"kind": "forbid", "verbs": [verb], "resources": [resource]},)


def denied(name: str, verb: str, resource: str) -> Row:
    """A permission that is lacking is named before anything is made."""
    says = rf"(?i){verb}\b.*\b{resource.replace('/', '.')}"
    return Row(f"no right to {name}", REFUSED, says=says, before=forbids(verb, resource), since="start")


API_ROWS = (
    Row("API server restarts", PASSED, args=BRIEF, during=strikes("restart-api", "", seconds=2), check=every_record_once(60), fast=True),
    Row("API server restarts during deployment", PASSED, args=PATCHY, during=restart_early, check=every_record_once(40)),
    Row("API server restarts as a rank crashes", FAILED, TRAIN, code="exit-code", ranks=(3,), node=NODE_1, args=shows("exit", 3, "--bound", "--step-time", "0.3"), during=strikes("restart-api", "", seconds=1)),
    Row("storm of 503", PASSED, args=BRIEF, during=storm(503), check=every_record_once(60)),
    Row("storm of 500", PASSED, args=BRIEF, during=storm(500), check=every_record_once(60)),
    Row("storm of 429 with Retry-After", PASSED, args=BRIEF, during=storm(429, retryAfter=1), check=every_record_once(60)),
    Row("503 from the start", PASSED, before=({"kind": "error", "code": 503, "times": 6},)),
    Row("connections dropped", PASSED, args=PATCHY, before=({"kind": "disconnect", "times": 8, "method": "GET"},), check=every_record_once(40)),
    Row("every answer 0.3 s late", PASSED, args=PATCHY, before=({"kind": "delay", "seconds": 0.3},), check=every_record_once(40)),
    Row("watches end", PASSED, args=PATCHY, before=({"kind": "close-watch", "events": 1, "times": 12},), check=every_record_once(40)),
    Row("watches expire (410)", PASSED, args=PATCHY, before=({"kind": "expire-watch", "events": 1, "times": 12},), check=every_record_once(40)),
    Row("history compacted", PASSED, args=PATCHY, during=compact, check=every_record_once(40)),
    Row("watches go silent", PASSED, args=PATCHY, before=({"kind": "hang-watch", "path": "/(pods|jobs)$", "events": 2, "times": 2},), grace=10.0, check=every_record_once(40)),
    Row("log streams cut in mid-line", PASSED, args=PATCHY, before=cuts("cut-log"), check=every_record_once(40), fast=True),
    Row("crash while log streams are cut", FAILED, TRAIN, code="exit-code", ranks=(3,), node=NODE_1, args=shows("exit", 3, "--bound"), before=cuts("cut-log"), check=losses_are_named),
    Row("log streams end early", PASSED, args=PATCHY, before=cuts("end-log"), check=every_record_once(40), fast=True),
    Row("log streams go silent", PASSED, args=PATCHY, before=({"kind": "hang-log", "path": "/log$", "bytes": 1000, "times": 2},), check=every_record_once(40)),
    Row("log streams are empty", PASSED, args=PATCHY, before=({"kind": "end-log", "path": "/log$", "times": 10},), check=every_record_once(40)),
    Row("log streams end at rotation", PASSED, args=shows("chatter", -1, "--size", "2"), before=({"kind": "stop-at-rotation", "path": "/log$", "times": 20},)),
    Row("log endpoint fails for 2 s", PASSED, args=PATCHY, before=({"kind": "error", "path": "/log$", "code": 500, "lasts": 2},), check=every_record_once(40)),
    Row("log endpoint never answers", INCOMPLETE, code="log-loss", before=({"kind": "error", "path": "/log$", "code": 500},), grace=15.0),
    Row("logs are gone (404)", INCOMPLETE, code="log-loss", before=({"kind": "error", "path": "/log$", "code": 404},)),
    Row("clock of a node 1 h ahead", PASSED, args=PATCHY, before=({"kind": "clock-skew", "path": NODE_1, "seconds": 3600}, *cuts("cut-log")), check=every_record_once(40)),
    Row("clock of a node 1 h behind", PASSED, args=PATCHY, before=({"kind": "clock-skew", "path": NODE_0, "seconds": -3600}, *cuts("cut-log")), check=every_record_once(40)),
    Row("token expires after 5 s", PASSED, args=SEVEN_SECONDS, tokens=True, before=cuts("end-log"), check=renewed(refused=False)),
    Row("token revoked", PASSED, args=SEVEN_SECONDS, tokens=True, during=revoke, check=renewed(refused=True)),
    denied("create jobs", "create", "jobs"),
    denied("watch pods", "watch", "pods"),
    denied("read logs", "get", "pods/log"),
    denied("list nodes", "list", "nodes"),
    denied("delete jobs", "delete", "jobs"),
    denied("create namespaces", "create", "namespaces"),
)  # fmt: skip
