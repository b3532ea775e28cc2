"""Pod, Job and event state → why it failed, in one sentence with the evidence. Pure functions over plain objects.

Exit codes and memory kills are read by the checks from each pod's end; this is about everything else: what keeps a pod
from starting, what took it away, and what never came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from allranks.plan import Plan, format_ranks
from allranks.result import Finding, Phase, Verdict

Object = Mapping[str, Any]

_SHOWN = 5
_LONGEST = 600
INDEX = "batch.kubernetes.io/job-completion-index"
CONTAINER = "training"
"""The one of ours, as manifests/ name it; a cluster may add others (a service mesh's proxy)."""
QUEUE = "kueue.x-k8s.io/queue-name"

# Reasons of a waiting container: where it stands, and whether trying again can help.
_WAITING = {
    "ErrImagePull": (Phase.PULL, "image-pull", False),
    "ImagePullBackOff": (Phase.PULL, "image-pull", False),
    "RegistryUnavailable": (Phase.PULL, "image-pull", False),
    "ImageInspectError": (Phase.PULL, "image-pull", False),
    "InvalidImageName": (Phase.PULL, "image-pull", True),
    "ErrImageNeverPull": (Phase.PULL, "image-pull", True),
    "CreateContainerConfigError": (Phase.START, "container-config", True),
    "CreateContainerError": (Phase.START, "container-start", True),
    "RunContainerError": (Phase.START, "container-start", True),
    "CrashLoopBackOff": (Phase.START, "container-start", True),
}
_PULL_IS_FINAL = re.compile(
    r"not found|manifest unknown|does not exist|unauthorized|denied|forbidden|no basic auth|invalid reference|"
    r"no match for platform|unsupported",
    re.IGNORECASE,
)
_DISRUPTIONS = {
    "PreemptionByScheduler": ("preempted", "was preempted by a pod of higher priority"),
    "EvictionByEvictionAPI": ("evicted", "was evicted (a node is being drained?)"),
    "DeletionByTaintManager": ("node-lost", "was taken away because its node got a taint it does not tolerate"),
    "DeletionByPodGC": ("node-lost", "was removed because its node is gone"),
    "TerminationByKubelet": ("evicted", "was ended by its kubelet (node shutdown or pressure)"),
}
_NEVER_SCHEDULED = re.compile(r'persistentvolumeclaim "[^"]*" not found|is being deleted')
# What cluster autoscalers and provisioners say about a pod that waits for a node.
_SCALING = ("TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp", "Nominated", "NoCompatibleInstanceTypes")
# A pod's own reason, where no condition tells.
_TAKEN = ("Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "UnexpectedAdmissionError")


class Grace(StrEnum):
    """How long a state may last before it counts as a failure."""

    SCHEDULE = "schedule"
    PULL = "pull"
    QUEUE = "queue"
    """Until a queue's or a provisioner's turn comes."""
    FINAL = "final"
    """Nothing is expected to mend it; a few seconds for the controllers to settle."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """A state that keeps the run from going on, and becomes a failure when it lasts."""

    finding: Finding
    grace: Grace


def pod_index(pod: Object) -> int:
    """The completion index; -1 when the pod has none (it is not one of an Indexed Job's)."""
    metadata = pod["metadata"]
    text = str((metadata.get("annotations") or {}).get(INDEX, (metadata.get("labels") or {}).get(INDEX, "")))
    return int(text) if text.isdecimal() else -1


def container_state(pod: Object, kind: str) -> Object | None:
    """The `waiting`, `running` or `terminated` part of our container's state."""
    found = (container_status(pod).get("state") or {}).get(kind)
    return None if found is None else dict(found)


def container_status(pod: Object) -> Object:
    """Our container's status; empty before the kubelet has told of it."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((dict(status) for status in statuses if status.get("name") == CONTAINER), {})


def blocked(pod: Object, events: Iterable[Object] = ()) -> Blocked | None:
    """What keeps this pod from running, if anything."""
    if (pod.get("status") or {}).get("phase") not in (None, "Pending"):
        return None
    condition = _condition(pod, "PodScheduled")
    if not pod.get("spec", {}).get("nodeName"):
        if condition is not None and condition.get("status") == "False":
            return _unschedulable(pod, condition, events)
        return None
    waiting = container_state(pod, "waiting")
    reason = str((waiting or {}).get("reason", ""))
    if reason in _WAITING:
        return _waiting(pod, reason, str((waiting or {}).get("message", "")), events)
    words = _words_about(pod, events)
    what = words[0] if words else "its image is being pulled or its volumes are being mounted"
    message = f"{_place(pod)} has not started: {what}"
    return Blocked(_finding("not-started", message, Phase.PULL, pod, words), Grace.PULL)


def by_pod(events: Iterable[Object]) -> tuple[dict[str, list[Object]], list[Object]]:
    """Each pod's own events by its name, and those on the scaling of nodes, which concern all pods that wait."""
    own: dict[str, list[Object]] = {}
    scaling = []
    for event in events:
        if event.get("reason") in _SCALING or _kind(event) == "NodeClaim":
            scaling.append(event)
        elif _kind(event) == "Pod":
            own.setdefault(str(event["involvedObject"].get("name")), []).append(event)
    return own, scaling


def _unschedulable(pod: Object, condition: Object, events: Iterable[Object]) -> Blocked:
    why = _short(str(condition.get("message") or condition.get("reason") or "no reason given"))
    message = f"pod {pod['metadata']['name']} cannot be scheduled: {why}"
    about = [
        e for e in events if e.get("reason") in _SCALING or (e.get("involvedObject") or {}).get("kind") == "NodeClaim"
    ]
    at = seconds(condition.get("lastTransitionTime"))
    finding = _finding("unschedulable", message, Phase.SCHEDULE, pod, _event_lines(about), at)
    return Blocked(finding, Grace.FINAL if _NEVER_SCHEDULED.search(why) else Grace.SCHEDULE)


def _waiting(pod: Object, reason: str, text: str, events: Iterable[Object]) -> Blocked:
    phase, code, final = _WAITING[reason]
    words = _words_about(pod, events)
    # "Back-off pulling image" hides the reason, which the event told.
    telling = next((word for word in (text, *words) if word and not word.startswith("Back-off")), text)
    if phase is Phase.PULL:
        ours = [c.get("image") for c in pod["spec"].get("containers") or () if c.get("name") == CONTAINER]
        image = ours[0] if ours else "?"
        what = f"cannot pull image {image}"
        final = final or bool(_PULL_IS_FINAL.search(telling))
    else:
        what = "cannot start its container"
    message = f"{_place(pod)} {what}: {reason}: {_short(telling)}"
    finding = _finding(code, message, phase, pod, words)
    return Blocked(finding, Grace.FINAL if final else Grace.PULL if phase is Phase.PULL else Grace.SCHEDULE)


def pull_is_final(told: str) -> bool:
    """Whether trying again cannot help: the image is not there, or we may not have it."""
    return bool(_PULL_IS_FINAL.search(told)) or any(
        reason in told for reason, (phase, _, final) in _WAITING.items() if final and phase is Phase.PULL
    )


def no_pods(job: Object | None, events: Iterable[Object], name: str) -> Blocked:
    """Why the Job has fewer pods than planned: an admission or quota refusal if its events tell of one."""
    refusals = [e for e in events if e.get("reason") == "FailedCreate" and _about(e, "Job", name)]
    if refusals:
        newest = _short(str(refusals[-1].get("message", "")))
        phase = Phase.CAPACITY if "quota" in newest else Phase.SCHEDULE
        message = f"job {name}: its pods are refused: {newest}"
        if "violates PodSecurity" in newest:
            message += " (label the namespace pod-security.kubernetes.io/enforce=baseline, or leave out --namespace)"
        at = seconds(refusals[-1].get("lastTimestamp"))
        finding = Finding("pods-refused", message, phase=phase, at=at, evidence=tuple(_event_lines(refusals)))
        # A namespace made a moment ago may lack its service account still; the controller tries again by itself.
        return Blocked(finding, Grace.SCHEDULE if "serviceaccount" in newest else Grace.FINAL)
    queue = ((job or {}).get("metadata", {}).get("labels") or {}).get(QUEUE)
    if queue and (job or {}).get("spec", {}).get("suspend"):
        message = f"job {name}: queue {queue} has not admitted it"
        told = [
            e for e in events if _about(e, "Job", name) or (e.get("involvedObject") or {}).get("kind") == "Workload"
        ]
        message += f": {_short(str(told[-1].get('message', '')))}" if told else ""
        return Blocked(
            Finding("queued", message, phase=Phase.CAPACITY, evidence=tuple(_event_lines(told))), Grace.QUEUE
        )
    held = (job or {}).get("spec", {}).get("suspend")
    why = "the job is still suspended (a queue holds it?)" if held else "no event says why"
    message = f"job {name}: pods are missing: {why}"
    return Blocked(Finding("no-pods", message, phase=Phase.SCHEDULE), Grace.SCHEDULE)


def suspended(name: str, at: float) -> Finding:
    message = f"job {name} was suspended while it ran: its queue took the nodes back for other work"
    return Finding("preempted", message, phase=Phase.TRAIN, at=at)


def job_deleted(name: str, at: float) -> Finding:
    message = f"job {name} was deleted by somebody else (with its namespace?)"
    return Finding("job-deleted", message, phase=Phase.TRAIN, at=at)


def pod_deleted(pod: Object, at: float) -> Finding:
    message = f"{_place(pod)} was deleted by somebody else, while nothing had failed"
    return _finding("pod-deleted", message, Phase.TRAIN, pod, at=at)


def node_trouble(node: Object, *, deleted: bool, at: float) -> Finding | None:
    """What is wrong with a node that a pod of the run is on; None when it is ready."""
    name = str(node["metadata"]["name"])
    if deleted:
        return Finding("node-gone", f"node {name} was removed from the cluster", phase=Phase.TRAIN, node=name, at=at)
    ready = _condition(node, "Ready")
    if ready is not None and ready.get("status") == "True":
        return None
    why = _short(str((ready or {}).get("message") or (ready or {}).get("reason") or "no word from its kubelet"))
    word = "is lost" if ready is None or ready.get("status") == "Unknown" else "became NotReady"
    return Finding("node-lost", f"node {name} {word}: {why}", phase=Phase.TRAIN, node=name, at=at, evidence=(why,))


def restarted(pod: Object) -> Finding | None:
    """A container that was started again, against its pod's restart policy: its ranks are alone with what they do."""
    status = container_status(pod)
    if not status.get("restartCount"):
        return None
    last = (status.get("lastState") or {}).get("terminated") or {}
    why = f"exit code {last.get('exitCode')}, {last.get('reason')}" if last else "its end is not known"
    message = f"the container of {_place(pod)} ended ({why}) and was started again, which its policy forbids"
    return replace(_finding("container-restarted", message, None, pod), verdict=Verdict.INCOMPLETE)


def disruption(pod: Object) -> Finding | None:
    """What took the pod away, when it was not its own processes."""
    condition = _condition(pod, "DisruptionTarget")
    status = pod.get("status") or {}
    phase = Phase.TRAIN if pod.get("spec", {}).get("nodeName") else Phase.SCHEDULE
    if condition is not None and condition.get("status") == "True":
        reason = str(condition.get("reason", ""))
        code, what = _DISRUPTIONS.get(reason, ("evicted", "was disrupted"))
        said = _short(str(status.get("message") or condition.get("message") or ""))
        message = f"{_place(pod)} {what}: {reason}" + (f": {said}" if said else "")
        return _finding(code, message, phase, pod, (), seconds(condition.get("lastTransitionTime")))
    if status.get("reason") in _TAKEN:
        code = "node-lost" if status["reason"] == "NodeLost" else "evicted"
        return _finding(
            code, f"{_place(pod)}: {status['reason']}: {_short(str(status.get('message', '')))}", phase, pod
        )
    return None


def job_ended(job: Object | None) -> str | None:
    """`Complete`, `Failed`, or None while it has not ended."""
    for kind in ("Complete", "Failed"):
        condition = _condition(job or {}, kind)
        if condition is not None and condition.get("status") == "True":
            return kind
    return None


def job_failure(job: Object | None) -> Finding | None:
    """The Job's own reason. `BackoffLimitExceeded` and `PodFailurePolicy` repeat what a pod's end says better."""
    condition = _condition(job or {}, "Failed")
    if job is None or condition is None or condition.get("status") != "True":
        return None
    reason, at = str(condition.get("reason", "")), seconds(condition.get("lastTransitionTime"))
    message = f"job {job['metadata']['name']} failed: {reason}: {_short(str(condition.get('message', '')))}"
    if reason == "DeadlineExceeded":
        return Finding("deadline", message, phase=Phase.TRAIN, at=at)
    return Finding("job-failed", message, phase=Phase.TRAIN, at=at)


def deadline(plan: Plan, seconds: float, phase: Phase, at: float, standing: Sequence[Finding] = ()) -> Finding:
    """`standing` is what kept pods from running at that time: then that is where the run was."""
    message = (
        f"the run did not end within its deadline of {seconds:g} s; raise it with --deadline if that is too little"
    )
    if standing:
        phase = standing[0].phase or phase
        message += f". It got no further than this: {standing[0].message}"
    told = [finding.message for finding in standing[1:]] + [line for finding in standing for line in finding.evidence]
    return Finding("deadline", message, phase=phase, at=at, ranks=tuple(plan.ranks), evidence=tuple(told[:_SHOWN]))


def stall(plan: Plan, finished: Iterable[int], pods: Sequence[Object], silence: float, last: float | None) -> Finding:
    """No record from any rank for so long; `last` is when the newest one was read (Unix seconds)."""
    waiting = sorted(set(plan.ranks) - set(finished))
    where = _where(plan, waiting, pods)
    message = (
        f"no rank reported anything for {silence:g} s; not finished: {where}. "
        "They were told to print their stacks: see the end of each log"
        if waiting
        else f"all ranks gave their final records, but their pods did not end for {silence:g} s"
    )
    return Finding("stall", message, phase=Phase.TRAIN, at=last, ranks=tuple(waiting))


def no_rendezvous(plan: Plan, heard: Iterable[int], pods: Sequence[Object], waited: float, at: float) -> Finding:
    """The containers run, but not every rank has reported: who is absent."""
    heard = set(heard)
    absent = [rank for rank in plan.ranks if rank not in heard]
    where = _where(plan, absent, pods)
    if heard:
        message = f"{len(absent)} of {plan.world_size} ranks did not report within {waited:g} s of their start: {where}"
    else:
        message = f"no rank reported within {waited:g} s of its start: the process group never formed ({where})"
    return Finding("rendezvous", message, phase=Phase.RENDEZVOUS, at=at, ranks=tuple(absent))


def shared_nodes(pods: Iterable[Object]) -> list[Finding]:
    """Nodes that had several of the planned pods, one after the other: the scheduler separates running pods only."""
    by_node: dict[str, list[str]] = {}
    for pod in pods:
        if node := pod.get("spec", {}).get("nodeName"):
            by_node.setdefault(str(node), []).append(str(pod["metadata"]["name"]))
    return [
        Finding(
            "shared-node",
            f"pods {', '.join(sorted(names))} ran one after the other on node {node}: not the planned number of nodes",
            phase=Phase.CHECK,
            node=node,
        )
        for node, names in sorted(by_node.items())
        if len(names) > 1
    ]


def _where(plan: Plan, ranks: Sequence[int], pods: Sequence[Object]) -> str:
    """`ranks 0-7 (pod a on node x); rank 9 (pod b on node y)`."""
    by_index = {pod_index(pod): pod for pod in pods}
    by_pod: dict[int, list[int]] = {}
    for rank in sorted(ranks):
        by_pod.setdefault(plan.position(rank).pod_index, []).append(rank)
    places = []
    for index, here in by_pod.items():
        pod = by_index.get(index)
        noun = "rank" if len(here) == 1 else "ranks"
        places.append(f"{noun} {format_ranks(here)} ({_place(pod) if pod else f'no pod for index {index}'})")
    more = f"; and {len(places) - _SHOWN} more pods" if len(places) > _SHOWN else ""
    return "; ".join(places[:_SHOWN]) + more


def _condition(thing: Object, kind: str) -> Object | None:
    conditions = (thing.get("status") or {}).get("conditions") or ()
    return next((dict(each) for each in conditions if each.get("type") == kind), None)


def _about(event: Object, kind: str, name: str) -> bool:
    involved = event.get("involvedObject") or {}
    return involved.get("kind") == kind and involved.get("name") == name


def _kind(event: Object) -> str:
    return str((event.get("involvedObject") or {}).get("kind", ""))


def _words_about(pod: Object, events: Iterable[Object]) -> list[str]:
    """Warnings about the pod, the newest first."""
    name = pod["metadata"]["name"]
    mine = [e for e in events if e.get("type") == "Warning" and _about(e, "Pod", name)]
    return [_short(str(event.get("message", ""))) for event in reversed(mine)][:_SHOWN]


def _event_lines(events: Sequence[Object]) -> list[str]:
    return [f"{e.get('reason')}: {_short(str(e.get('message', '')))}" for e in events[-_SHOWN:]]


def _finding(
    code: str, message: str, phase: Phase | None, pod: Object, evidence: Iterable[str] = (), at: float | None = None
) -> Finding:
    node = pod.get("spec", {}).get("nodeName")
    name = str(pod["metadata"]["name"])
    return Finding(code, message, phase=phase, pod=name, node=node, at=at, evidence=tuple(evidence))


def _place(pod: Object) -> str:
    node = pod.get("spec", {}).get("nodeName")
    return f"pod {pod['metadata']['name']}" + (f" on node {node}" if node else "")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " …"


def event_time(event: Object) -> float:
    """When it last happened, by the clock of who reports it; 0 when it does not say."""
    times = (seconds(event.get(name)) for name in ("lastTimestamp", "eventTime", "firstTimestamp"))
    return max((at for at in times if at is not None), default=0.0)


def seconds(text: Any) -> float | None:
    """RFC 3339 → Unix seconds; None for what is none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
