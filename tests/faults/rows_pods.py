"""Faults of pods, nodes, admission and capacity: what a cluster does to a run."""

# ruff: noqa: E501 - a table has one row a line
from __future__ import annotations

import time

from allranks.result import TrainingRun
from tests.faults.row import REFUSED, Act, Row
from tests.faults.rows_program import (
    CAPACITY,
    FAILED,
    FLAKY,
    INCOMPLETE,
    NODE_0,
    NODE_1,
    PASSED,
    PULL,
    SCHEDULE,
    START,
    TRAIN,
    shows,
)  # fmt: skip
from tests.faults.world import World

LONG = ("--steps", "400", "--step-time", "0.05")
"""As long as 20 s: something happens meanwhile."""
BRIEF = ("--steps", "60", "--step-time", "0.05")
"""3 s, and then it passes."""
FIRST = "-0-[a-z0-9]+$"
SECOND = "-1-[a-z0-9]+$"
OTHER_RUN = "llama3-nvidia-0a1b2c (ci@build-7)"
_ICE = "NodeClaim default-x7k2p event: InsufficientInstanceCapacity: no p5.48xlarge in us-east-1a"
PROVISION = {"provision": True, "instance_type": "standin.nvidia", "nodes": 2, "processes_per_node": 2}
GRACE_OF_THE_STUCK = 10.0
ALL_NODES = {"nodes": 2, "ready_timeout": 2.0}


def strikes(kind: str, path: str = SECOND, **fault: object) -> Act:
    """A fault that is switched on when all ranks train."""

    def act(world: World) -> None:
        world.training()
        world.fault(kind, path, **fault)

    return act


def evict(world: World) -> None:
    world.training()
    pod = world.pod(1)
    meta = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    world.ask("POST", world.path(pod) + "/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta})


def delete_pod(world: World) -> None:
    world.training()
    world.ask("DELETE", world.path(world.pod(1)))


def delete_job(world: World) -> None:
    world.training()
    world.ask("DELETE", world.path(world.job()) + "?propagationPolicy=Background")


def delete_namespace(world: World) -> None:
    world.training()
    world.ask("DELETE", f"/api/v1/namespaces/{world.job()['metadata']['namespace']}")


def end_by_deadline(world: World) -> None:
    world.training()
    world.ask("PATCH", world.path(world.job()), {"spec": {"activeDeadlineSeconds": 1}})


def second_pod(world: World) -> None:
    """As a controller does that has lost sight of the first one."""
    world.training()
    first = world.pod(1)
    spec = first["spec"] | {"affinity": {}}
    for container in spec["containers"]:
        container["resources"] = {}
    meta = {part: first["metadata"][part] for part in ("labels", "annotations", "ownerReferences", "namespace")}
    again = {"apiVersion": "v1", "kind": "Pod", "metadata": meta | {"name": first["metadata"]["name"] + "x"}}
    collection = world.path(first).rpartition("/")[0]
    world.ask("POST", collection, again | {"spec": spec})


def taint(effect: str, *, training: bool) -> Act:
    def act(world: World) -> None:
        if training:
            world.training()
        spec = {"taints": [{"key": "maintenance", "value": "tonight", "effect": effect}]}
        world.node(NODE_1, {"spec": spec})

    return act


def cordon(world: World) -> None:
    world.node(NODE_1, {"spec": {"unschedulable": True}})


def cordon_while_training(world: World) -> None:
    world.training()
    cordon(world)


def leased(duration: int, ago: float = 0.0) -> Act:
    """Another run holds the second node, and does not renew its lease any more."""
    return lambda world: world.lease(NODE_1, OTHER_RUN, duration=duration, renewed=time.time() - ago)


def occupied_for_a_while(world: World) -> None:
    world.job()
    world.until(lambda: world.get("/api/v1/pods?fieldSelector=status.phase%3DRunning")["items"], "a pod runs")
    time.sleep(2.0)
    world.release()


def no_capacity(world: World) -> None:
    world.occupy(NODE_1)
    world.event("NodeClaim", "InsufficientCapacityError", _ICE)


def job_is_untouched(world: World, result: TrainingRun) -> str:
    attempts = len(result.attempts)
    return f"{attempts} attempts before this one: a training failure was retried" if attempts else ""


def two_attempts(world: World, result: TrainingRun) -> str:
    return "" if len(result.attempts) == 1 else f"{len(result.attempts)} earlier attempts are kept, not 1"


def _registry(message: str, **fault: object) -> tuple[dict[str, object], ...]:
    return ({"kind": "bad-image", "path": "", "message": message, **fault},)


def _admission(message: str) -> tuple[dict[str, object], ...]:
    return ({"kind": "forbid-pod", "path": "", "message": message},)


_WEBHOOK = 'admission webhook "images.example.org" denied the request: image is not signed'
_PSA = 'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false'
_JOBS_DENIED = ({"kind": "error", "path": "/jobs$", "method": "POST", "code": 403, "message": _WEBHOOK},)
_LOST = {"kind": "node-lost", "path": NODE_1}

POD_ROWS = (
    # What keeps it from running.
    Row("unschedulable", FAILED, SCHEDULE, code="unschedulable", says="Insufficient nvidia.com/gpu", args=LONG, prepare=lambda w: w.occupy(NODE_1), settings={"schedule_timeout": 2.0}, since="start", grace=2.0, fast=True),
    Row("quota exceeded", FAILED, CAPACITY, code="pods-refused", says="exceeded quota: gpus", before=_admission("exceeded quota: gpus, requested: requests.nvidia.com/gpu=2"), since="fault", fast=True),
    Row("webhook refuses the pods", FAILED, SCHEDULE, code="pods-refused", says="is not signed", before=_admission(_WEBHOOK), since="fault"),
    Row("Pod Security refuses the pods", FAILED, SCHEDULE, code="pods-refused", says="violates PodSecurity", before=_admission(_PSA), since="fault"),
    Row("webhook refuses the Job", REFUSED, says="is not signed", before=_JOBS_DENIED, since="start"),
    Row("image does not exist", FAILED, PULL, code="image-pull", says="not found", before=_registry(""), since="fault", fast=True),
    Row("image needs credentials", FAILED, PULL, code="image-pull", says="(?i)unauthorized", before=_registry("401 Unauthorized"), since="fault"),
    Row("registry overloaded for 2 s", PASSED, before=_registry("429 Too Many Requests", lasts=2)),
    Row("registry times out for 2 s", PASSED, before=_registry("dial tcp 10.0.0.1:443: i/o timeout", lasts=2)),
    Row("registry never answers", FAILED, PULL, code="image-pull", says="i/o timeout", before=_registry("dial tcp 10.0.0.1:443: i/o timeout"), settings={"pull_timeout": 3.0}, since="fault", grace=3.0),
    Row("container cannot be configured", FAILED, START, code="container-config", says='secret "token" not found', before=({"kind": "config-error"},), since="fault"),
    Row("node cordoned", REFUSED, says=f"{NODE_1}.*cordoned", prepare=cordon, settings=ALL_NODES, since="start", grace=2.0),
    Row("node tainted", REFUSED, says=f"{NODE_1}.*tainted maintenance", prepare=taint("NoSchedule", training=False), settings=ALL_NODES, since="start", grace=2.0),
    Row("node NotReady", REFUSED, says=f"{NODE_1}.*NotReady", before=({"kind": "node-not-ready", "path": NODE_1},), settings=ALL_NODES, since="start", grace=2.0),
    Row("node NotReady for 2 s", PASSED, before=({"kind": "node-not-ready", "path": NODE_1, "lasts": 2},)),
    Row("device plugin restarts: 1 of 2 for 2 s", PASSED, before=({"kind": "device-plugin", "path": NODE_1, "count": 1, "lasts": 2},)),
    Row("device plugin restarts: 0 of 2 for 2 s", PASSED, before=({"kind": "device-plugin", "path": NODE_1, "count": 0, "lasts": 2},)),
    Row("device missing: 1 of 2", REFUSED, says=f"{NODE_1}.*1 of 2", before=({"kind": "device-plugin", "path": NODE_1, "count": 1},), settings={"ready_timeout": 2.0}, since="start", grace=2.0, fast=True),
    Row("all devices missing: 0 of 2", REFUSED, says=f"{NODE_1}.*0 of 2", before=({"kind": "device-plugin", "path": NODE_1, "count": 0},), settings={"ready_timeout": 2.0}, since="start", grace=2.0),
    Row("no device on any node", REFUSED, says="0 of 2", before=({"kind": "device-plugin", "path": "nvidia", "count": 0},), settings={"ready_timeout": 2.0}, since="start", grace=2.0),
    Row("node comes after 2 s (provisioned)", PASSED, args=("--steps", "100", *LONG[2:]), prepare=lambda w: w.occupy(NODE_1), during=occupied_for_a_while, settings={**PROVISION, "schedule_timeout": 1.0}),
    Row("node is never provisioned", FAILED, SCHEDULE, says="InsufficientInstanceCapacity", args=LONG, prepare=no_capacity, settings={**PROVISION, "provision_timeout": 3.0}, since="start", grace=3.0),
    Row("nodes held by another run", REFUSED, says=f"{NODE_1}.*llama3-nvidia-0a1b2c", prepare=leased(60), settings={"lease_timeout": 2.0}, since="start", grace=2.0),
    Row("lease of a run that was killed", PASSED, prepare=leased(2)),
    Row("lease of long ago", PASSED, prepare=leased(60, ago=9000.0)),
    # What takes it away.
    Row("evicted by the API", FAILED, TRAIN, code="evicted", node=NODE_1, says="EvictionByEvictionAPI", args=LONG, during=evict, since="act", fast=True),
    Row("evicted by its kubelet", FAILED, TRAIN, code="evicted", node=NODE_1, says="low on resource: memory", args=LONG, during=strikes("evict-pod"), since="fault"),
    Row("preempted", FAILED, TRAIN, code="preempted", node=NODE_1, args=LONG, during=strikes("preempt-pod"), since="fault"),
    Row("out of memory, all killed", FAILED, TRAIN, code="out-of-memory", node=NODE_1, says="OOMKilled", args=LONG, during=strikes("oom-kill"), since="fault"),
    Row("out of memory, exit code 0", FAILED, TRAIN, code="out-of-memory", node=NODE_0, says="OOMKilled", args=LONG, during=strikes("oom-kill", FIRST, code=0), since="fault"),
    Row("pod deleted by somebody", FAILED, TRAIN, node=NODE_1, says="(?i)deleted", args=LONG, during=delete_pod, since="act"),
    Row("job deleted by somebody", FAILED, TRAIN, says="(?i)job.*deleted", args=LONG, during=delete_job, since="act"),
    Row("namespace deleted by somebody", FAILED, TRAIN, says="(?i)(namespace|job).*deleted", args=LONG, during=delete_namespace, since="act"),
    Row("the Job's own deadline", FAILED, TRAIN, code="deadline", says="DeadlineExceeded", args=LONG, during=end_by_deadline, since="act"),
    Row("container restarted", INCOMPLETE, args=BRIEF, during=strikes("restart-container")),
    Row("second pod for an index", INCOMPLETE, args=BRIEF, during=second_pod),
    Row("node lost", FAILED, TRAIN, code="node-lost", node=NODE_1, args=LONG, during=strikes("node-lost", NODE_1, tolerance=1), since="fault", grace=1.0, fast=True),
    Row("node silent, its pods not yet evicted", FAILED, TRAIN, code="node-lost", node=NODE_1, args=LONG, during=strikes("node-lost", NODE_1), settings={"node_timeout": 2.0}, since="fault", grace=2.0),
    Row("first node lost", FAILED, TRAIN, code="node-lost", node=NODE_0, args=LONG, during=strikes("node-lost", NODE_0, tolerance=1), since="fault", grace=1.0),
    Row("node lost for 1 s", PASSED, args=BRIEF, during=strikes("node-lost", NODE_1, lasts=1)),
    Row("node NotReady while training", PASSED, args=BRIEF, during=strikes("node-not-ready", NODE_1, lasts=1)),
    Row("node NotReady until its pods go", FAILED, TRAIN, code="node-lost", node=NODE_1, args=LONG, during=strikes("node-not-ready", NODE_1, tolerance=1), since="fault", grace=1.0),
    Row("node cordoned while training", PASSED, args=BRIEF, during=cordon_while_training),
    Row("node tainted NoExecute while training", FAILED, TRAIN, code="node-lost", node=NODE_1, args=LONG, during=taint("NoExecute", training=True), since="act"),
    Row("crash, and its peer cannot end", FAILED, TRAIN, code="exit-code", ranks=(1,), args=shows("exit", 1, "--bound"), before=({"kind": "stuck-pod", "path": SECOND, "lasts": 25},), grace=GRACE_OF_THE_STUCK),
    # What is tried again.
    Row("evicted, then passes", FLAKY, args=BRIEF, during=evict, settings={"attempts": 2}, check=two_attempts),
    Row("preempted, then passes", FLAKY, args=BRIEF, during=strikes("preempt-pod", times=1), settings={"attempts": 2}, check=two_attempts),
    Row("crash is not tried again", FAILED, TRAIN, code="exit-code", ranks=(1,), args=shows("exit", 1, "--bound"), settings={"attempts": 2}, check=job_is_untouched),
)  # fmt: skip
