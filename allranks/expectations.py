"""What has to happen by when in a run, and what it is a failure of if it does not. Pure: state in, times out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from allranks import diagnosis
from allranks.diagnosis import Blocked, Grace
from allranks.plan import EFA
from allranks.render import GRACE_PERIOD
from allranks.result import Finding, Phase
from allranks.state import RunState
from allranks.transport import wrong_network

# Seconds that a state which nothing is expected to mend must last before it counts.
_FINAL_GRACE = 3.0
# The Job's word on pods that have all ended comes a moment later.
_JOB_GRACE = 3.0
STOP_BOUND = GRACE_PERIOD + 20.0
# The verdict does not depend on how the peers of what failed end, and they print their stacks at once.
PEERS_BOUND = 12.0
PEERS_LEFT = "peers-left"
# From the first rank that names its network until the others will have.
_ALL_HEARD = 1.0
BEFORE_START = (Phase.CAPACITY, Phase.SCHEDULE, Phase.PULL, Phase.START)

Timer = tuple[float, Callable[[], Finding]]
"""When (monotonic clock) it is a failure unless something happens before, and of what: told only when it is due, since
it may name thousands of ranks."""


def over_at(state: RunState, now: float, *, stopping: bool) -> float:
    """When the run is over as things stand; infinity while something is still to come."""
    pods = list(state.pods.values())
    ended = diagnosis.job_ended(state.job)
    indexes = {pod.index for pod in pods}
    # Nobody will ever tell how it ended on a node that is lost.
    drained = all(pod.drained or (stopping and pod.node in state.lost_nodes) for pod in pods)
    if stopping and drained:
        return now
    if pods and drained and len(indexes) == state.plan.nodes:
        return now if ended else state.first("pods ended", now) + _JOB_GRACE
    if ended and drained:
        return state.first("job ended", now) + _JOB_GRACE
    return state.first("stopping", now) + STOP_BOUND if stopping else float("inf")


def timers(state: RunState, now: float) -> Iterator[Timer]:
    """All that can become a failure by waiting, what is one already included."""
    yield from _broken(state, now)
    yield from _blocked(state, now)
    yield from _silence(state, now)
    yield from _left_over(state, now)


def _broken(state: RunState, now: float) -> Iterator[Timer]:
    """What needs no waiting, or only as long as it may mend itself."""
    for uid, at in state.disrupted.items():
        found = diagnosis.disruption(state.pods[uid].object)
        if found is not None:  # its node may be gone: it would never end
            yield now, partial(replace, found, at=at)
    if state.job_deleted is not None:
        yield now, partial(diagnosis.job_deleted, state.name, state.job_deleted)
    for name, lost in state.lost_nodes.items():
        unfinished = any(pod.node == name and not pod.terminal for pod in state.planned)
        if unfinished:
            grace = _FINAL_GRACE if lost.code == "node-gone" else state.settings.node_timeout
            yield state.troubled[name] + grace, partial(replace, lost)
    if state.suspended and "scheduled" in state.moments:
        yield now, partial(diagnosis.suspended, state.name, time.time())
    # Known as soon as the ranks speak: no reason to train on at TCP speed.
    efa = EFA in dict(state.plan.resources)
    network = wrong_network(state.plan, state.ledger, state.networks, time.time()) if efa else None
    if network is not None:
        yield state.first("network", now) + _ALL_HEARD, partial(replace, network)
    for pod in state.planned:
        if pod.out_of_memory:  # with exit code 0, perhaps, after which nobody ends its peers
            message = f"pod {pod.name} ran out of memory: its peers were ended"
            yield now, partial(Finding, "peers-ended", message, phase=Phase.TRAIN, consequence=True)


def _blocked(state: RunState, now: float) -> Iterator[Timer]:
    """Pods that do not start, or that are not there."""
    settings, standing = state.settings, _standing(state)
    state.only("blocked ", set(standing))
    grace = {
        Grace.SCHEDULE: settings.provision_timeout if settings.provision else settings.schedule_timeout,
        Grace.PULL: settings.pull_timeout,
        Grace.QUEUE: settings.lease_timeout,
        Grace.FINAL: _FINAL_GRACE,
    }
    for key, found in standing.items():
        yield state.first(f"blocked {key}", now) + grace[found.grace], partial(replace, found.finding)


def _standing(state: RunState) -> dict[str, Blocked]:
    """What keeps pods from running, by what and whom."""
    events = list(state.events.values())
    standing: dict[str, Blocked] = {}
    about, scaling = diagnosis.by_pod(events)
    for pod in state.planned:
        found = None if pod.terminal else diagnosis.blocked(pod.object, [*about.get(pod.name, ()), *scaling])
        if found is not None:
            standing[f"{found.finding.code} {pod.name}"] = found
    if len(state.planned) < state.plan.nodes and not diagnosis.job_ended(state.job):
        missing = diagnosis.no_pods(state.job, events, state.name)
        standing[missing.finding.code] = missing
    return standing


def _silence(state: RunState, now: float) -> Iterator[Timer]:
    """The whole run, the rendezvous and the training, each in its time."""
    settings, plan, progress = state.settings, state.plan, state.ledger.progress
    if not (settings.queue and state.suspended):
        deadline = state.first("began", now) + settings.deadline
        yield deadline, lambda: _at_deadline(state)
    if state.everywhere_started and progress.heard < plan.world_size:
        waited = settings.start_timeout
        started = state.first("started", now) + waited
        yield (
            started,
            lambda: diagnosis.no_rendezvous(plan, state.ledger.ranks_heard, _pods(state), waited, time.time()),
        )
    if progress.heard:
        # Before the first step programs compile, for minutes on Neuron, and say nothing meanwhile.
        stepped = "first step" in state.moments
        silence = settings.stall_timeout if stepped else max(settings.stall_timeout, settings.start_timeout)
        last = state.moments.get("last record")
        yield (
            state.moved_at + silence,
            lambda: diagnosis.stall(plan, state.ledger.ranks_finished, _pods(state), silence, last),
        )


def _at_deadline(state: RunState) -> Finding:
    standing = [found.finding for found in _standing(state).values()]
    return diagnosis.deadline(state.plan, state.settings.deadline, state.phase(), time.time(), standing)


def _pods(state: RunState) -> list[Mapping[str, Any]]:
    return [pod.object for pod in state.planned]


def _left_over(state: RunState, now: float) -> Iterator[Timer]:
    """The Job controller ends the peers of a failed pod; those that do not go have nothing more to say."""
    if not (any(pod.failed for pod in state.planned) or diagnosis.job_ended(state.job) == "Failed"):
        return
    yield state.first("failed", now) + PEERS_BOUND, partial(_peers_left, state)


def _peers_left(state: RunState) -> Finding:
    left = ", ".join(pod.name for pod in state.planned if not pod.terminal)
    message = (
        f"pods {left} did not end within {PEERS_BOUND:g} s of the first failure"
        if left
        else f"the logs of the pods were not read to their ends within {PEERS_BOUND:g} s of the first failure"
    )
    return Finding(PEERS_LEFT, message, phase=Phase.TRAIN, at=time.time(), consequence=True)
