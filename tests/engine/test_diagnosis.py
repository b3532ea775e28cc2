"""Pod, Job and event state → the sentence that says why."""

from __future__ import annotations

from typing import Any

import pytest

from allranks import diagnosis
from allranks.diagnosis import Grace
from allranks.plan import Plan
from allranks.result import Phase

PLAN = Plan(nodes=2, processes_per_node=2, run_id="bert-x-1")


def pod(index: int = 0, node: str | None = "node-a", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"bert-x-1-{index}-abc",
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
        },
        "spec": {"nodeName": node, "containers": [{"name": "training", "image": "pytorch/pytorch:none"}]},
        "status": {"phase": "Pending", **status},
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return pod(containerStatuses=[{"name": "training", "state": {"waiting": {"reason": reason, "message": message}}}])


def event(reason: str, message: str, kind: str = "Pod", name: str = "bert-x-1-0-abc") -> dict[str, Any]:
    involved = {"kind": kind, "name": name}
    return {"type": "Warning", "reason": reason, "message": message, "involvedObject": involved}


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    at = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def test_unschedulable_quotes_the_scheduler() -> None:
    why = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    found = diagnosis.blocked(pod(node=None, conditions=[condition("PodScheduled", "False", "Unschedulable", why)]))
    assert found is not None
    assert (found.grace, found.finding.code, found.finding.phase) == (Grace.SCHEDULE, "unschedulable", Phase.SCHEDULE)
    assert found.finding.message == f"pod bert-x-1-0-abc cannot be scheduled: {why}"
    assert found.finding.at == 1767225600.0


@pytest.mark.parametrize(
    ("message", "grace"),
    [
        ('failed to resolve reference "x": docker.io/x: not found', Grace.FINAL),
        ("pull access denied, repository does not exist or may require authorization", Grace.FINAL),
        ("401 Unauthorized", Grace.FINAL),
        ("dial tcp: i/o timeout", Grace.PULL),
        ("429 Too Many Requests", Grace.PULL),
    ],
)
def test_image_that_is_not_there_is_final_and_a_slow_registry_is_not(message: str, grace: Grace) -> None:
    found = diagnosis.blocked(waiting("ErrImagePull", message))
    assert found is not None
    assert (found.grace, found.finding.code, found.finding.phase) == (grace, "image-pull", Phase.PULL)
    assert "cannot pull image pytorch/pytorch:none: ErrImagePull" in found.finding.message
    assert found.finding.node == "node-a"


def test_back_off_hides_the_reason_which_the_event_tells() -> None:
    stuck = waiting("ImagePullBackOff", 'Back-off pulling image "x"')
    found = diagnosis.blocked(stuck, [event("Failed", "manifest unknown"), event("Failed", "x", name="other")])
    assert found is not None
    assert found.finding.message.endswith("ImagePullBackOff: manifest unknown")
    assert found.grace is Grace.FINAL


@pytest.mark.parametrize("reason", ["CreateContainerConfigError", "CreateContainerError", "RunContainerError"])
def test_container_that_cannot_be_made(reason: str) -> None:
    found = diagnosis.blocked(waiting(reason, 'configmap "bert-x-1" not found'))
    assert found is not None
    assert (found.grace, found.finding.phase) == (Grace.FINAL, Phase.START)
    assert 'configmap "bert-x-1" not found' in found.finding.message


def test_slow_start_quotes_the_newest_warning() -> None:
    found = diagnosis.blocked(waiting("ContainerCreating"), [event("FailedMount", "old"), event("FailedMount", "new")])
    assert found is not None
    assert (found.grace, found.finding.code) == (Grace.PULL, "not-started")
    assert found.finding.evidence == ("new", "old")


def test_running_and_scheduled_pods_are_not_blocked() -> None:
    assert diagnosis.blocked(pod(phase="Running")) is None
    assert diagnosis.blocked(pod(node=None)) is None


@pytest.mark.parametrize(
    ("message", "phase", "grace"),
    [
        ('pods "x" is forbidden: exceeded quota: gpus, requested: 8', Phase.CAPACITY, Grace.FINAL),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest"', Phase.SCHEDULE, Grace.FINAL),
        ('error looking up service account: serviceaccount "default" not found', Phase.SCHEDULE, Grace.SCHEDULE),
    ],
)  # fmt: skip
def test_refused_pods_quote_admission(message: str, phase: Phase, grace: Grace) -> None:
    found = diagnosis.no_pods({}, [event("FailedCreate", message, "Job", "bert-x-1")], "bert-x-1")
    assert (found.finding.code, found.finding.phase, found.grace) == ("pods-refused", phase, grace)
    assert message in found.finding.message
    assert ("enforce=baseline" in found.finding.message) is ("PodSecurity" in message)  # what to do about it


def test_job_held_by_a_queue_says_so() -> None:
    assert "still suspended" in diagnosis.no_pods({"spec": {"suspend": True}}, [], "bert-x-1").finding.message


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("PreemptionByScheduler", "preempted"),
        ("EvictionByEvictionAPI", "evicted"),
        ("DeletionByTaintManager", "node-lost"),
        ("DeletionByPodGC", "node-lost"),
        ("TerminationByKubelet", "evicted"),
        ("SomethingNew", "evicted"),
    ],
)
def test_disruption_is_named(reason: str, code: str) -> None:
    found = diagnosis.disruption(pod(phase="Failed", conditions=[condition("DisruptionTarget", "True", reason, "why")]))
    assert found is not None
    assert (found.code, found.phase, found.node) == (code, Phase.TRAIN, "node-a")
    assert reason in found.message
    assert "why" in found.message


def test_eviction_by_pressure_without_a_condition() -> None:
    found = diagnosis.disruption(pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory."))
    assert found is not None
    assert "low on resource: memory" in found.message


def test_undisturbed_pod() -> None:
    assert diagnosis.disruption(pod(phase="Failed")) is None
    assert diagnosis.disruption(pod(conditions=[condition("DisruptionTarget", "False")])) is None


def job(*conditions: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "bert-x-1"}, "status": {"conditions": list(conditions)}}


def test_failure_target_is_not_the_end_of_a_job() -> None:
    assert diagnosis.job_ended(job(condition("FailureTarget", "True"))) is None
    assert diagnosis.job_ended(job(condition("SuccessCriteriaMet", "True"))) is None
    assert diagnosis.job_ended(job(condition("FailureTarget", "True"), condition("Failed", "True"))) == "Failed"
    assert diagnosis.job_ended(None) is None


def test_job_that_ran_out_of_time() -> None:
    found = diagnosis.job_failure(job(condition("Failed", "True", "DeadlineExceeded", "too long")))
    assert found is not None
    assert (found.code, found.phase) == ("deadline", Phase.TRAIN)
    other = diagnosis.job_failure(job(condition("Failed", "True", "BackoffLimitExceeded")))
    assert other is not None
    assert other.code == "job-failed"


def test_stall_names_the_unfinished_ranks_and_their_places() -> None:
    found = diagnosis.stall(PLAN, [0, 1, 3], [pod(0), pod(1, "node-b")], 300, 1.5)
    assert found.ranks == (2,)
    assert (
        "no rank reported anything for 300 s; not finished: rank 2 (pod bert-x-1-1-abc on node node-b)" in found.message
    )
    assert found.at == 1.5


def test_stall_after_the_last_record_is_a_pod_that_does_not_end() -> None:
    assert "pods did not end" in diagnosis.stall(PLAN, range(4), [pod()], 300, 1.5).message


def test_rendezvous_that_never_forms_names_who_is_absent() -> None:
    nobody = diagnosis.no_rendezvous(PLAN, [], [pod(0), pod(1, "node-b")], 600, 2.0)
    assert nobody.phase is Phase.RENDEZVOUS
    assert "the process group never formed (ranks 0-1 (pod" in nobody.message
    some = diagnosis.no_rendezvous(PLAN, [0, 1, 2], [pod(0), pod(1, "node-b")], 600, 2.0)
    assert (
        some.message
        == "1 of 4 ranks did not report within 600 s of their start: rank 3 (pod bert-x-1-1-abc on node node-b)"
    )


def test_long_messages_are_cut() -> None:
    found = diagnosis.blocked(waiting("CreateContainerError", "x" * 10_000))
    assert found is not None
    assert len(found.finding.message) < 1000


def node(name: str, status: str, reason: str = "", message: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"conditions": [condition("Ready", status, reason, message)]}}


def test_node_that_is_ready_is_no_trouble() -> None:
    assert diagnosis.node_trouble(node("a", "True"), deleted=False, at=5.0) is None


@pytest.mark.parametrize(
    ("status", "says"), [("Unknown", "node a is lost: Kubelet stopped"), ("False", "node a became NotReady: Kubelet")]
)
def test_node_that_is_lost_quotes_its_condition(status: str, says: str) -> None:
    found = diagnosis.node_trouble(
        node("a", status, "NodeStatusUnknown", "Kubelet stopped posting node status."), deleted=False, at=5.0
    )
    assert found is not None
    assert found.message.startswith(says)
    assert (found.code, found.node, found.at) == ("node-lost", "a", 5.0)


def test_node_that_was_removed() -> None:
    found = diagnosis.node_trouble(node("a", "True"), deleted=True, at=5.0)
    assert found is not None
    assert found.code == "node-gone"


def test_container_that_was_started_again_tells_how_it_had_ended() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    again = pod(
        phase="Running",
        containerStatuses=[{"name": "training", "restartCount": 1, "lastState": ended, "state": {"running": {}}}],
    )
    found = diagnosis.restarted(again)
    assert found is not None
    assert "ended (exit code 137, OOMKilled) and was started again" in found.message
    assert (
        diagnosis.restarted(pod(phase="Running", containerStatuses=[{"name": "training", "restartCount": 0}])) is None
    )


def test_container_that_the_cluster_added_is_not_ours() -> None:
    """A service mesh's proxy runs on when the training has ended, and sorts before it."""
    proxy = {"name": "istio-proxy", "restartCount": 3, "state": {"running": {}}}
    ours = {"name": "training", "restartCount": 0, "state": {"terminated": {"exitCode": 17}}}
    both = pod(phase="Running", containerStatuses=[proxy, ours])
    assert diagnosis.container_state(both, "running") is None
    assert diagnosis.container_state(both, "terminated") == {"exitCode": 17}
    assert diagnosis.restarted(both) is None


def test_claim_that_does_not_exist_is_never_scheduled() -> None:
    why = '0/3 nodes are available: persistentvolumeclaim "shared" not found.'
    found = diagnosis.blocked(pod(node=None, conditions=[condition("PodScheduled", "False", "Unschedulable", why)]))
    assert found is not None
    assert found.grace is Grace.FINAL


def test_provisioners_are_quoted_with_a_pod_that_waits_for_a_node() -> None:
    waits = pod(node=None, conditions=[condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")])
    events = [
        event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached"),
        event("InsufficientCapacityError", "no p5.48xlarge in us-west-2b", kind="NodeClaim", name="gpu-1"),
        event("Pulled", "not about this"),
    ]
    found = diagnosis.blocked(waits, events)
    assert found is not None
    assert found.finding.evidence == (
        "NotTriggerScaleUp: pod didn't trigger scale-up: 1 max node group size reached",
        "InsufficientCapacityError: no p5.48xlarge in us-west-2b",
    )


def test_job_that_a_queue_has_not_admitted_waits_for_it() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "gpus"}
    job = {"metadata": {"labels": labels}, "spec": {"suspend": True}}
    told = event("Pending", "couldn't assign flavors: insufficient quota", kind="Workload", name="job-bert-x-1-3f")
    found = diagnosis.no_pods(job, [told], "bert-x-1")
    assert (found.grace, found.finding.code) == (Grace.QUEUE, "queued")
    assert "insufficient quota" in found.finding.message


@pytest.mark.parametrize(
    ("told", "final"),
    [("ErrImagePull: not found", True), ("ErrImageNeverPull: ", True), ("ImagePullBackOff: i/o timeout", False)],
)
def test_pull_that_cannot_succeed_is_told_apart(told: str, final: bool) -> None:
    assert diagnosis.pull_is_final(told) is final
