"""Nodes → pools → plan: which nodes count, which are left out and why, and what each pod asks for."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.cluster import ClusterError, NoSuchPool
from allranks.cluster.inventory import choose_pool, make_plan, parse_quantity, provisioned_plan, read
from allranks.plan import Accelerator, Plan, PlanError
from allranks.settings import Settings, Workload

GPU, NEURON, CORE = "nvidia.com/gpu", "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
BERT = Workload("bert", "workloads.bert")


def node(name: str, kind: str = "p5.48xlarge", ready: bool = True, **changes: Any) -> dict[str, Any]:
    """`allocatable` and `capacity` by keyword; capacity defaults to allocatable."""
    allocatable = changes.get("allocatable", {GPU: "8"})
    return {
        "metadata": {"name": name, "labels": {"node.kubernetes.io/instance-type": kind, **changes.get("labels", {})}},
        "spec": {"unschedulable": changes.get("cordoned", False), "taints": changes.get("taints", [])},
        "status": {
            "allocatable": allocatable,
            "capacity": changes.get("capacity", allocatable),
            "conditions": [{"type": "Ready", "status": "True" if ready else "False", "reason": "KubeletNotReady"}],
        },
    }


def planned(found: list[dict[str, Any]], accelerator: Accelerator = Accelerator.NVIDIA, **settings: Any) -> Plan:
    asked = Settings(accelerator, **settings)
    return make_plan(choose_pool(read(found, accelerator, dict(asked.node_selector)), asked), asked, BERT, "bert-x-1")


def test_all_nodes_and_all_devices_by_default() -> None:
    plan = planned([node("b"), node("a"), node("cpu", "m5.large", allocatable={"cpu": "4"})])
    assert (plan.nodes, plan.processes_per_node, plan.node_names) == (2, 8, ("a", "b"))
    assert plan.resources == ((GPU, "8"),)
    assert plan.instance_type == "p5.48xlarge"


def test_fewer_processes_ask_for_fewer_devices() -> None:
    plan = planned([node("a")], processes_per_node=2)
    assert plan.resources == ((GPU, "2"),)


def test_threads_share_the_devices_of_the_node() -> None:
    plan = planned([node("a")], threads_per_process=4)
    assert (plan.processes_per_node, plan.world_size, plan.resources) == (2, 8, ((GPU, "8"),))


def test_more_processes_than_devices_is_refused() -> None:
    with pytest.raises(PlanError, match=r"need 16 devices; the nodes of p5\.48xlarge \(1\) have 8"):
        planned([node("a")], processes_per_node=16)


def test_neuron_processes_come_from_cores_and_devices_are_requested() -> None:
    trn = {NEURON: "16", CORE: "32"}
    plan = planned([node("a", "trn1", allocatable=trn)], Accelerator.NEURON)
    assert (plan.processes_per_node, plan.resources) == (32, ((NEURON, "16"),))
    some = planned([node("a", "trn1", allocatable=trn)], Accelerator.NEURON, processes_per_node=3)
    assert some.resources == ((NEURON, "2"),)


def test_neuron_without_core_count_wants_to_be_told() -> None:
    nodes = [node("a", "trn1", allocatable={NEURON: "16"})]
    with pytest.raises(ClusterError, match="give --nproc-per-node"):
        planned(nodes, Accelerator.NEURON)
    assert planned(nodes, Accelerator.NEURON, processes_per_node=32).processes_per_node == 32


def test_efa_is_requested_with_huge_pages_and_memory() -> None:
    efa = {GPU: "8", "vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "10Gi"}
    assert planned([node("a", allocatable=efa)]).resources == (
        (GPU, "8"),
        ("vpc.amazonaws.com/efa", "32"),
        ("hugepages-2Mi", "5120Mi"),
        ("memory", "8Gi"),
    )


def test_part_of_a_node_does_not_take_its_efa() -> None:
    efa = {GPU: "8", "vpc.amazonaws.com/efa": "32"}
    assert planned([node("a", allocatable=efa)], processes_per_node=4).resources == ((GPU, "4"),)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cordoned": True}, "cordoned"),
        ({"ready": False}, "NotReady \\(KubeletNotReady\\)"),
        ({"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}, "tainted team=x:NoSchedule"),
    ],
)
def test_unusable_node_is_left_out_by_name_and_reason(changes: dict[str, Any], reason: str) -> None:
    nodes = [node("bad", **changes), node("good")]
    assert planned(nodes).node_names == ("good",)
    with pytest.raises(NoSuchPool, match=f"left out: bad: {reason}"):
        planned(nodes[:1])


@pytest.mark.parametrize(
    "taint", [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}, {"key": "x", "effect": "PreferNoSchedule"}]
)
def test_tolerated_taint_does_not_matter(taint: dict[str, str]) -> None:
    assert planned([node("a", taints=[taint])]).node_names == ("a",)


def test_node_with_7_of_8_devices_is_named() -> None:
    nodes = [node("odd", allocatable={GPU: "7"}, capacity={GPU: "8"}), node("even")]
    pool = choose_pool(read(nodes, Accelerator.NVIDIA), Settings(Accelerator.NVIDIA))
    assert pool.odd() == ["node odd: 7 of 8 nvidia.com/gpu allocatable"]
    assert [each.name for each in pool.even] == ["even"]
    with pytest.raises(ClusterError, match=r"2 nvidia nodes asked for, .* has 1 usable: node odd: 7 of 8"):
        planned(nodes, nodes=2)


def test_node_whose_plugin_has_not_registered_is_odd_not_absent() -> None:
    """Its peers of the same instance type show what it should have; a label shows it where it has no peers."""
    pool = choose_pool(
        read([node("new", allocatable={}), node("old")], Accelerator.NVIDIA), Settings(Accelerator.NVIDIA)
    )
    assert pool.odd() == ["node new: 0 of 8 nvidia.com/gpu allocatable"]
    alone = read([node("new", allocatable={}, labels={"nvidia.com/gpu.present": "true"})], Accelerator.NVIDIA)
    assert alone.pools[0].odd() == ["node new: 0 of ? nvidia.com/gpu allocatable"]


def test_several_instance_types_must_be_told_apart() -> None:
    nodes = [node("a"), node("b", "g5.xlarge", allocatable={GPU: "1"})]
    with pytest.raises(ClusterError, match=r"2 instance types: g5.xlarge \(1\), p5.48xlarge \(1\); choose with"):
        planned(nodes)
    assert planned(nodes, instance_type="g5.xlarge").node_names == ("b",)
    assert planned(nodes, node_selector=(("node.kubernetes.io/instance-type", "p5.48xlarge"),)).node_names == ("a",)


def test_no_such_accelerator() -> None:
    with pytest.raises(NoSuchPool, match="no usable neuron nodes"):
        planned([node("a")], Accelerator.NEURON)


def test_cpu_pool_is_of_nodes_without_accelerators_of_any_type() -> None:
    nodes = [node("gpu"), node("a", "m5", allocatable={}), node("b", "c5", allocatable={})]
    plan = planned(nodes, Accelerator.CPU)
    assert (plan.node_names, plan.processes_per_node, plan.resources) == (("a", "b"), 2, ())


@pytest.mark.parametrize(("text", "value"), [("8", 8), ("5Gi", 5 * 2**30), ("2k", 2000), ("", 0), ("100m", 0)])
def test_quantities(text: str, value: int) -> None:
    assert parse_quantity(text) == value


def test_details_come_from_labels_and_from_the_kubelet() -> None:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/cuda.driver.major": "570",
        "nvidia.com/cuda.driver.minor": "133",
        "nvidia.com/cuda.driver.rev": "20",
        "topology.kubernetes.io/zone": "us-west-2b",
    }
    plain = node("a", labels=labels)
    plain["status"]["nodeInfo"] = {"kernelVersion": "6.1.132", "containerRuntimeVersion": "containerd://2.0.5"}
    (pool,) = read([plain], Accelerator.NVIDIA).pools
    details = dict(pool.nodes[0].details)
    assert details["driver"] == "570.133.20"
    assert (details["zone"], details["kernel"], details["runtime"]) == ("us-west-2b", "6.1.132", "containerd://2.0.5")
    assert pool.nodes[0].product == "NVIDIA-H100-80GB-HBM3"


def trn2(name: str, cores: int = 64) -> dict[str, Any]:
    return node(name, "trn2.48xlarge", allocatable={NEURON: "16", CORE: str(cores)})


def test_logical_cores_are_counted_as_the_node_is_set_unless_overridden() -> None:
    assert planned([trn2("a")], Accelerator.NEURON).processes_per_node == 64
    plan = planned([trn2("a")], Accelerator.NEURON, neuron_logical_cores=1)
    assert plan.processes_per_node == 128
    assert plan.resources == ((NEURON, "16"),)
    half = planned([trn2("a")], Accelerator.NEURON, neuron_logical_cores=1, processes_per_node=64)
    assert half.resources == ((NEURON, "8"),)


def test_logical_cores_of_an_unknown_family_need_a_number_of_processes() -> None:
    unknown = node("a", "trn9.48xlarge", allocatable={NEURON: "4", CORE: "8"})
    with pytest.raises(PlanError, match="--nproc-per-node"):
        planned([unknown], Accelerator.NEURON, neuron_logical_cores=1)
    plan = planned([unknown], Accelerator.NEURON, neuron_logical_cores=1, processes_per_node=16)
    assert plan.processes_per_node == 16


def test_number_of_efa_interfaces_can_be_given() -> None:
    efa = {GPU: "8", "vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "10Gi"}
    asked = dict(planned([node("a", allocatable=efa)], efa=4).resources)
    assert (asked["vpc.amazonaws.com/efa"], asked["hugepages-2Mi"], asked["memory"]) == ("4", "5120Mi", "8Gi")


def test_provisioned_plan_needs_what_no_node_tells() -> None:
    asked = Settings(Accelerator.NVIDIA, provision=True, instance_type="p5.48xlarge", nodes=2, processes_per_node=8)
    plan = provisioned_plan(asked, BERT, "bert-x-1")
    assert (plan.world_size, plan.node_names, plan.instance_type) == (16, (), "p5.48xlarge")
    assert plan.resources == ((GPU, "8"),)
    with pytest.raises(PlanError, match="--provision needs --instance-type, --nodes and --nproc-per-node"):
        provisioned_plan(Settings(Accelerator.NVIDIA, provision=True, nodes=2), BERT, "bert-x-1")


@pytest.mark.parametrize(("kind", "processes", "devices"), [("trn1.32xlarge", 32, "16"), ("trn2.48xlarge", 64, "16")])
def test_provisioned_neuron_nodes_are_asked_for_by_device(kind: str, processes: int, devices: str) -> None:
    asked = Settings(Accelerator.NEURON, provision=True, instance_type=kind, nodes=1, processes_per_node=processes)
    assert provisioned_plan(asked, BERT, "bert-x-1").resources == ((NEURON, devices),)
