"""Nodes that do not exist yet, and device plugins that are not there yet."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest
import yaml

from allranks.cluster import ClusterError
from allranks.cluster.choose import Choice, Kind
from allranks.cluster.client import Api
from allranks.cluster.plugins import MANIFESTS, install
from allranks.plan import Accelerator
from allranks.settings import Settings

SETS = "/apis/apps/v1/namespaces/kube-system/daemonsets"
PODS = "/api/v1/namespaces/kube-system/pods"


def test_unschedulable_is_waited_out_and_who_provisions_is_quoted(cluster: Any) -> None:
    def tell() -> None:
        """What Karpenter says of a claim that cannot be fulfilled: an event in `default`."""
        until = time.monotonic() + 30
        while not any("schedul" in progress.message for progress in cluster.progress):
            assert time.monotonic() < until
            time.sleep(0.02)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "claim-1", "namespace": "default"},
            "involvedObject": {"kind": "NodeClaim", "apiVersion": "karpenter.sh/v1", "name": "gpu-7xk2p"},
            "reason": "InsufficientCapacityError",
            "message": "no instance of type p5.48xlarge is available in us-west-2b",
            "type": "Warning",
            "firstTimestamp": now,
            "lastTimestamp": now,
        }
        cluster.create("/api/v1/namespaces/default/events", event)

    thread = threading.Thread(target=tell)
    thread.start()
    asked = {"instance_type": "p5.48xlarge", "nodes": 2, "processes_per_node": 2, "attempts": 1}
    run = cluster.run(provision=True, schedule_timeout=0.2, provision_timeout=3.0, **asked)
    thread.join()
    cause = run.judgement.cause
    assert cause is not None
    assert (cause.code, cause.phase) == ("unschedulable", "schedule")
    assert "no instance of type p5.48xlarge is available" in " ".join(cause.evidence)
    assert run.finished - run.started >= 3.0  # not the schedule timeout


@pytest.mark.parametrize("plugin", ["nvidia", "efa", "neuron"])
def test_plugins_are_valid_and_tolerate_their_nodes(plugin: str) -> None:
    things = list(yaml.safe_load_all((MANIFESTS / f"{plugin}.yaml").read_text()))
    (daemon_set,) = (thing for thing in things if thing["kind"] == "DaemonSet")
    spec = daemon_set["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    pod = spec["template"]["spec"]
    assert any(each["operator"] == "Exists" for each in pod["tolerations"])
    (container,) = pod["containers"]
    assert not container["image"].endswith(":latest")
    assert ":" in container["image"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounts["device-plugin"] == "/var/lib/kubelet/device-plugins"
    assert set(mounts) == {each["name"] for each in pod["volumes"]}


class Lacking:
    """Nodes without a plugin: 0 devices. The test makes a daemon set's pods, as its controller does."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster

    def pod(self, node: str) -> None:
        until = time.monotonic() + 20
        while not (sets := self.cluster.get(SETS)["items"]):
            assert time.monotonic() < until
            time.sleep(0.02)
        spec = {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": "c", "image": "plugin", "command": ["python3", "-c", "import time; time.sleep(99)"]}
            ],
        }
        labels = sets[0]["spec"]["template"]["metadata"]["labels"]
        metadata = {"name": f"plugin-{node}", "namespace": "kube-system", "labels": labels}
        self.cluster.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def restore(self) -> None:
        for kind in (SETS, PODS):
            for item in self.cluster.get(kind)["items"]:
                self.cluster._request("DELETE", f"{kind}/{item['metadata']['name']}")


@pytest.fixture
def lacking(cluster: Any) -> Any:
    cluster.fault(kind="device-plugin", path="nvidia", count=0)
    made = Lacking(cluster)
    yield made
    made.restore()


def installed(cluster: Any, **settings: Any) -> list[str]:
    async def main() -> list[str]:
        async with await Api.connect(Choice(Kind.STANDIN, (cluster.kubeconfig,))) as api:
            return await install(api, Settings(Accelerator.NVIDIA, **settings))

    return asyncio.run(main())


def test_plugin_is_applied_and_every_expected_pod_is_waited_for(cluster: Any, lacking: Any) -> None:
    def controller() -> None:
        lacking.pod("standin-nvidia-0")
        time.sleep(0.3)
        lacking.pod("standin-nvidia-1")

    wait_until_none(cluster)
    thread = threading.Thread(target=controller)
    thread.start()
    assert installed(cluster, ready_timeout=20.0) == ["nvidia-device-plugin-daemonset"]
    thread.join()
    (made,) = cluster.get(SETS)["items"]
    assert "standin" in json.dumps(made["spec"]["template"]["spec"]["affinity"])


def wait_until_none(cluster: Any) -> None:
    """Until the fault shows on the nodes."""
    until = time.monotonic() + 20
    while any(int(n["status"]["allocatable"].get("nvidia.com/gpu", 0)) for n in cluster.get("/api/v1/nodes")["items"]):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_pods_that_do_not_come_are_missed_by_node(cluster: Any, lacking: Any) -> None:
    wait_until_none(cluster)
    thread = threading.Thread(target=lacking.pod, args=("standin-nvidia-0",))
    thread.start()
    with pytest.raises(ClusterError, match=r"1 of 2 pods are ready after 3 s .*standin-nvidia-1: no pod"):
        installed(cluster, ready_timeout=3.0)
    thread.join()


def test_no_known_node_is_an_error_not_zero_of_zero(cluster: Any) -> None:
    with pytest.raises(ClusterError, match="no node is known to have nvidia devices"):
        installed(cluster, instance_type="p99.48xlarge")


def test_plugin_that_is_there_by_other_means_is_left_alone(cluster: Any) -> None:
    assert installed(cluster) == []
    assert cluster.get(SETS)["items"] == []
