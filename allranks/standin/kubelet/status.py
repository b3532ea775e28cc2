"""The status of a pod, put together from the states of its containers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from allranks.standin.objects import Object, clone, set_condition, timestamp

WAITING, RUNNING, ENDED = "waiting", "running", "terminated"


@dataclass(slots=True)
class ContainerState:
    """What the kubelet knows of one container."""

    name: str
    image: str
    uid: str
    init: bool = False
    state: dict[str, Any] = field(default_factory=lambda: {WAITING: {"reason": "ContainerCreating"}})
    last: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    clock: Callable[[], float] = time.time
    runs: int = 0
    """How often a process was started, or tried to."""

    @property
    def running(self) -> bool:
        return RUNNING in self.state

    @property
    def exit_code(self) -> int | None:
        return self.state[ENDED]["exitCode"] if ENDED in self.state else None

    @property
    def container_id(self) -> str:
        return f"standin://{self.uid}/{self.name}/{self.runs}"

    def wait(self, reason: str, message: str = "") -> None:
        self.state = {WAITING: {"reason": reason} | ({"message": message} if message else {})}

    def run(self) -> None:
        self.state = {RUNNING: {"startedAt": timestamp(self.clock())}}

    def end(self, code: int, reason: str, message: str, started: str | None) -> None:
        ended: dict[str, Any] = {
            "exitCode": code,
            "reason": reason,
            "startedAt": started or timestamp(0),
            "finishedAt": timestamp(self.clock()),
            "containerID": self.container_id,
        }
        if message:
            ended["message"] = message
        self.state = {ENDED: ended}

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image if self.runs else "",
            "state": self.state,
            "lastState": self.last,
            "ready": self.exit_code == 0 if self.init else self.running,
            "started": self.running,
            "restartCount": self.restarts,
        } | ({"containerID": self.container_id} if self.runs else {})


def clone_states(states: list[ContainerState]) -> list[ContainerState]:
    """Copies whose dictionaries the store may keep."""
    copies = []
    for state in states:
        copies.append(replace(state, state=clone(state.state), last=clone(state.last)))
    return copies


def fill(pod: Object, states: list[ContainerState], phase: str, addresses: tuple[str, str], started: str) -> None:
    """Writes the kubelet's part of a pod's status in place. `addresses` are the node's and the pod's."""
    status = pod.setdefault("status", {})
    host, own = addresses
    status["phase"] = phase
    status["startTime"] = started
    status |= {"hostIP": host, "hostIPs": [{"ip": host}], "podIP": own, "podIPs": [{"ip": own}]}
    main = [state for state in states if not state.init]
    status["containerStatuses"] = [state.to_dict() for state in main]
    if len(main) != len(states):
        status["initContainerStatuses"] = [state.to_dict() for state in states if state.init]
    finished = phase in ("Succeeded", "Failed")
    unready = [state.name for state in main if not state.running]
    why, what = "", ""
    if finished:
        why = "PodCompleted" if phase == "Succeeded" else "PodFailed"
    elif unready:
        why, what = "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    initialised = all(state.exit_code == 0 for state in states if state.init)
    set_condition(pod, "PodReadyToStartContainers", "False" if finished else "True")
    set_condition(pod, "Initialized", str(initialised), "PodCompleted" if phase == "Succeeded" else "")
    for kind in ("Ready", "ContainersReady"):
        set_condition(pod, kind, str(not why), why, what)
