"""What is known of a run while it is followed, and by when something has to happen."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from allranks.expectations import timers
from allranks.plan import Accelerator
from allranks.result import Phase
from allranks.settings import Settings
from allranks.state import RunState
from tests.ledger.speech import ledger_of, log, plan_of, rank_lines, world_lines


def state_of(*logs: bytes, **settings: float) -> RunState:
    plan = plan_of()
    return RunState(plan, Settings(Accelerator.NVIDIA, **settings), ledger_of(*logs, plan=plan))


def test_routine_events_of_many_pods_do_not_hide_what_comes_after_them() -> None:
    state = state_of()
    for number in range(2500):
        state.event({"metadata": {"uid": str(number)}, "reason": "Pulled"})
    state.event({"metadata": {"uid": "0"}, "reason": "FailedCreate"})
    assert len(state.events) == 2000
    assert [event["reason"] for event in state.events.values()][-2:] == ["Pulled", "FailedCreate"]


@pytest.mark.parametrize(("stepped", "patience"), [(False, 900.0), (True, 300.0)])
def test_programs_that_compile_before_their_first_step_are_not_stalled(stepped: bool, patience: float) -> None:
    state = state_of(log(rank_lines(0)[:1]), start_timeout=900.0, stall_timeout=300.0)
    if stepped:
        state.moment("first step")
    now = time.monotonic()
    due = {found().code: at for at, found in timers(state, now)}
    assert math.isclose(due["stall"], state.moved_at + patience)


def pod(index: int, *, going: bool = False, code: int | None = None) -> dict[str, Any]:
    annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
    meta = {"name": f"p-{index}", "uid": f"u{index}", "annotations": annotations}
    state: dict[str, object] = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
    status = {
        "phase": "Running" if code is None else "Failed",
        "containerStatuses": [{"name": "training", "state": state}],
    }
    return {"metadata": {**meta, **({"deletionTimestamp": "now"} if going else {})}, "spec": {}, "status": status}


def test_a_pod_that_ends_at_once_when_somebody_deletes_it_was_deleted_by_somebody() -> None:
    state = state_of()
    for index in (0, 1):
        state.pod(pod(index), deleted=False)
    state.pod(pod(1, going=True), deleted=False)
    state.pod(pod(1, going=True, code=143), deleted=False)
    state.pod(pod(0, going=True), deleted=False)  # the controller takes the peers of what has failed
    state.pod(pod(0, going=True, code=143), deleted=False)
    assert list(state.taken) == ["u1"]


def test_peers_that_a_listing_brings_before_the_pod_that_failed_were_taken_by_the_controller() -> None:
    state = state_of()
    for index in (0, 1):
        state.pod(pod(index), deleted=False)
    state.pod(pod(0, going=True), deleted=False)
    state.pod(pod(1, code=17), deleted=False)
    state.pod(pod(0, going=True, code=143), deleted=False)
    assert not state.taken


def test_what_one_piece_of_a_log_brings_at_once_keeps_its_order() -> None:
    state = state_of(*(log(lines) for lines in world_lines()))
    state.heard(stepped=True)
    assert list(state.moments) == ["heard", "first step", "last record"]
    assert state.moments["heard"] <= state.moments["first step"] <= state.moments["last record"]


def test_a_deadline_says_what_the_pods_waited_for() -> None:
    state = state_of(deadline=0.0)
    waiting = pod(1)
    waiting["spec"] = {"nodeName": "node-1"}
    waiting["status"] = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    state.pod(pod(0), deleted=False)
    state.pod(waiting, deleted=False)
    sandbox = "Failed to create pod sandbox: plugin bridge is not there"
    about = {"kind": "Pod", "name": "p-1"}
    state.event({"metadata": {"uid": "e"}, "type": "Warning", "message": sandbox, "involvedObject": about})
    (found,) = [told() for _, told in timers(state, time.monotonic()) if told().code == "deadline"]
    assert found.phase is Phase.PULL
    assert f"pod p-1 on node node-1 has not started: {sandbox}" in found.message


@pytest.mark.parametrize("started", [None, "1970-01-01T00:00:00Z"])
def test_a_container_that_was_ended_before_it_ran_has_no_log_and_did_not_start(started: str | None) -> None:
    state = state_of()
    ended = pod(0, code=137)
    ended["status"]["containerStatuses"][0]["state"]["terminated"] |= {"startedAt": started}
    found = state.pod(ended, deleted=False)
    assert (found.started, found.terminal, found.log_whole) == (False, True, True)
