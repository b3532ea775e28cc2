"""The scheduler: what fits where, and what it says when nothing does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.standin.kit import Client, Start, job, pod

HOLD = "import time; time.sleep(60)"


@pytest.fixture
def cluster(start: Start) -> Client:
    return start("--nodes", "nvidia:2x2", "--nodes", "cpu:1")


def gpus(count: int) -> dict[str, Any]:
    return {"resources": {"limits": {"nvidia.com/gpu": count}}}


def make(cluster: Client, name: str, **spec: Any) -> dict[str, Any]:
    """A pod that holds what it asks for, once it is bound or refused."""
    path = "/api/v1/namespaces/default/pods"
    cluster.create(path, pod(HOLD, name, terminationGracePeriodSeconds=0, **spec))
    return cluster.until(f"{path}/{name}", lambda p: bool(p.get("status", {}).get("conditions")))


def message(pod: dict[str, Any]) -> str:
    (held,) = (c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled")
    assert (held["status"], held["reason"]) == ("False", "Unschedulable")
    return str(held["message"]).partition(" preemption:")[0]


def test_devices_are_counted_and_come_free(cluster: Client) -> None:
    first, second = make(cluster, "a", container=gpus(2)), make(cluster, "b", container=gpus(1))
    assert {first["spec"]["nodeName"], second["spec"]["nodeName"]} == {"standin-nvidia-0", "standin-nvidia-1"}
    third = make(cluster, "c", container=gpus(2))
    assert message(third) == "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    events = cluster.get("/api/v1/namespaces/default/events", fieldSelector="reason=FailedScheduling")["items"]
    assert [event["involvedObject"]["name"] for event in events] == ["c"]
    cluster.ask("DELETE", "/api/v1/namespaces/default/pods/a")
    placed = cluster.until("/api/v1/namespaces/default/pods/c", lambda p: "nodeName" in p["spec"])
    assert placed["spec"]["nodeName"] == first["spec"]["nodeName"]


def test_selectors_and_affinity(cluster: Client) -> None:
    assert (
        make(cluster, "a", nodeSelector={"kubernetes.io/hostname": "standin-nvidia-1"})["spec"]["nodeName"]
        == "standin-nvidia-1"
    )

    def required(**term: Any) -> dict[str, Any]:
        terms = {"nodeSelectorTerms": [term]}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    field = {"key": "metadata.name", "operator": "In", "values": ["standin-cpu-0"]}
    assert make(cluster, "b", affinity=required(matchFields=[field]))["spec"]["nodeName"] == "standin-cpu-0"
    label = {"key": "nvidia.com/gpu.product", "operator": "Exists"}
    assert make(cluster, "c", affinity=required(matchExpressions=[label]))["spec"]["nodeName"].startswith(
        "standin-nvidia"
    )
    nowhere = make(cluster, "d", nodeSelector={"no": "where"})
    assert message(nowhere) == "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."


def test_taints_and_cordons(cluster: Client) -> None:
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    for index in range(2):
        cluster.patch(f"/api/v1/nodes/standin-nvidia-{index}", {"spec": {"taints": [taint]}})
    refused = make(cluster, "a", container=gpus(1))
    expected = "1 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {nvidia.com/gpu: present}."
    assert message(refused) == f"0/3 nodes are available: {expected}"
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert "nodeName" in make(cluster, "b", container=gpus(1), tolerations=tolerations)["spec"]
    cluster.patch("/api/v1/nodes/standin-cpu-0", {"spec": {"unschedulable": True}})
    assert "1 node(s) were unschedulable" in message(make(cluster, "c"))
    cluster.patch("/api/v1/nodes/standin-cpu-0", {"spec": {"unschedulable": None}})
    cluster.until("/api/v1/namespaces/default/pods/c", lambda p: "nodeName" in p["spec"])


def test_anti_affinity_spreads_a_jobs_pods(cluster: Client) -> None:
    body = job(HOLD, completions=4)
    apart = {"labelSelector": {"matchLabels": {"app": "j"}}, "topologyKey": "kubernetes.io/hostname"}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    body["spec"]["template"]["spec"] |= {"affinity": rule, "terminationGracePeriodSeconds": 0}
    cluster.create("/apis/batch/v1/namespaces/default/jobs", body)
    cluster.until("/apis/batch/v1/namespaces/default/jobs/j", lambda j: j["status"].get("ready") == 3)
    pods = cluster.get("/api/v1/namespaces/default/pods")["items"]
    bound = sorted(p["spec"]["nodeName"] for p in pods if "nodeName" in p["spec"])
    assert bound == ["standin-cpu-0", "standin-nvidia-0", "standin-nvidia-1"]
    (left,) = (p for p in pods if "nodeName" not in p["spec"])
    assert "3 node(s) didn't match pod anti-affinity rules" in message(left)


def test_requests_that_no_node_can_hold(cluster: Client) -> None:
    huge = {"resources": {"requests": {"cpu": "1000", "memory": "1Mi"}}}
    assert message(make(cluster, "a", container=huge)) == "0/3 nodes are available: 3 Insufficient cpu."
