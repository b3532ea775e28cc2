"""Plan → Kubernetes objects: what the manifests promise, and that no input becomes structure."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from allranks.plan import Accelerator, Plan
from allranks.render import DEFAULT_IMAGES, Manifests, Placement, RenderError, render
from allranks.settings import Settings, Workload

BERT = Workload("bert", "workloads.bert", args=("--size", "tiny"))


def plan_of(accelerator: Accelerator = Accelerator.NVIDIA, **changes: Any) -> Plan:
    values: dict[str, Any] = {
        "nodes": 2,
        "processes_per_node": 8,
        "run_id": "bert-nvidia-3f9a1c",
        "accelerator": accelerator,
        "node_names": ("node-a", "node-b", "node-c"),
        "resources": (("nvidia.com/gpu", "8"),),
    }
    return Plan(**{**values, **changes})


def rendered(plan: Plan | None = None, workload: Workload = BERT, **settings: Any) -> Manifests:
    plan = plan or plan_of()
    assert plan.accelerator is not None
    return render(plan, workload, Settings(plan.accelerator, **settings), Placement("ns", True, 29500))


def pod_spec(manifests: Manifests) -> Any:
    return manifests.job["spec"]["template"]["spec"]


def container(manifests: Manifests) -> Any:
    (only,) = pod_spec(manifests)["containers"]
    return only


def test_job_is_indexed_suspended_bounded_and_never_retries() -> None:
    spec = rendered(deadline=100.5).job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert spec["suspend"] is True
    assert spec["backoffLimit"] == 0
    assert spec["activeDeadlineSeconds"] > 100.5
    assert spec["ttlSecondsAfterFinished"] > 0
    assert spec["podFailurePolicy"]["rules"] == [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}
    ]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_service_is_headless_named_as_the_job_and_publishes_before_ready() -> None:
    manifests = rendered()
    assert (
        manifests.service["metadata"]["name"] == manifests.job["metadata"]["name"] == pod_spec(manifests)["subdomain"]
    )
    assert manifests.service["spec"]["clusterIP"] == "None"
    assert manifests.service["spec"]["publishNotReadyAddresses"] is True
    selector = manifests.service["spec"]["selector"]
    assert selector.items() <= manifests.job["spec"]["template"]["metadata"]["labels"].items()


def test_every_object_carries_the_labels_of_the_run() -> None:
    for thing in rendered().objects():
        labels = thing["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "allranks"
        assert labels["allranks.dev/run"] == "bert-nvidia-3f9a1c"


def test_own_namespace_enforces_pod_security_and_expires() -> None:
    namespace = rendered().namespace
    assert namespace is not None
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "baseline"
    assert namespace["metadata"]["annotations"]["allranks.dev/expires"].endswith("Z")


def test_given_namespace_is_not_created() -> None:
    manifests = render(plan_of(), BERT, Settings(Accelerator.NVIDIA), Placement("given", False, 29500))
    assert manifests.namespace is None
    assert {thing["metadata"]["namespace"] for thing in manifests.objects()} == {"given"}


def test_each_planned_node_is_a_term_of_its_own() -> None:
    affinity = pod_spec(rendered())["affinity"]
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [["node-a"], ["node-b"], ["node-c"]]
    (spread,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"


def test_unknown_nodes_are_selected_by_label() -> None:
    spec = pod_spec(rendered(plan_of(node_names=()), instance_type="p5.48xlarge", node_selector=(("team", "yes"),)))
    assert "nodeAffinity" not in spec["affinity"]
    assert spec["nodeSelector"] == {"team": "yes", "node.kubernetes.io/instance-type": "p5.48xlarge"}


@pytest.mark.parametrize(
    ("accelerator", "taint", "device"),
    [
        (Accelerator.NVIDIA, "nvidia.com/gpu", "cuda"),
        (Accelerator.NEURON, "aws.amazon.com/neuron", "xla"),
        (Accelerator.CPU, None, "cpu"),
    ],
)
def test_accelerator_decides_tolerations_device_and_image(
    accelerator: Accelerator, taint: str | None, device: str
) -> None:
    manifests = rendered(plan_of(accelerator, resources=()))
    tolerated = [(each["key"], each["operator"]) for each in pod_spec(manifests)["tolerations"]]
    assert tolerated == ([(taint, "Exists")] if taint else [])
    command = container(manifests)["command"]
    assert command[command.index("--device") + 1] == device
    assert container(manifests)["image"] == DEFAULT_IMAGES[accelerator]


def test_devices_and_huge_pages_are_limits_too_and_memory_is_not() -> None:
    devices = (("aws.amazon.com/neuron", "16"), ("vpc.amazonaws.com/efa", "8"), ("hugepages-2Mi", "5Gi"))
    asked = (*devices, ("memory", "8Gi"))
    only = container(rendered(plan_of(Accelerator.NEURON, resources=asked)))
    assert only["resources"]["requests"] == dict(asked)
    assert only["resources"]["limits"] == dict(devices)
    assert {"name": "FI_PROVIDER", "value": "efa"} in only["env"]


def test_allranks_launcher_gets_the_topology() -> None:
    command = " ".join(container(rendered())["command"])
    assert command == (
        "python3 -m workloads.launch --rdzv-endpoint bert-nvidia-3f9a1c-0.bert-nvidia-3f9a1c:29500 --nnodes 2 "
        "--nproc-per-node 8 --rdzv-id bert-nvidia-3f9a1c -m workloads.bert --device cuda --size tiny"
    )


def test_torchrun_gets_the_pods_index_as_node_rank() -> None:
    command = container(rendered(launcher="torchrun"))["command"]
    assert command[:3] == ["python3", "-m", "torch.distributed.run"]
    assert command[command.index("--node-rank") + 1] == "$(JOB_COMPLETION_INDEX)"
    assert command[command.index("--master-addr") + 1] == "bert-nvidia-3f9a1c-0.bert-nvidia-3f9a1c"


def test_unknown_launcher_is_refused_by_name() -> None:
    with pytest.raises(RenderError, match="mpirun"):
        rendered(launcher="mpirun")


def test_files_keep_their_paths_through_the_flat_config_map(tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_bytes(b"\xff\x00")
    workload = Workload("x", "x", extra_files=(("data/a b.json", tmp_path / "cases.json"),))
    manifests = rendered(workload=workload)
    items = {item["path"]: item["key"] for item in pod_spec(manifests)["volumes"][0]["configMap"]["items"]}
    source = Path(__file__).parents[2] / "workloads" / "launch" / "__init__.py"
    assert manifests.config_map["data"][items["workloads/launch/__init__.py"]] == source.read_text()
    assert items["data/a b.json"] in manifests.config_map["binaryData"]
    assert all(key.replace(".", "").replace("-", "").replace("_", "").isalnum() for key in items.values())


def test_paths_that_flatten_alike_do_not_overwrite_each_other(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    (tmp_path / "two").write_text("2")
    manifests = rendered(
        workload=Workload("x", "x", extra_files=(("a/b", tmp_path / "one"), ("a.b", tmp_path / "two")))
    )
    items = {item["path"]: item["key"] for item in pod_spec(manifests)["volumes"][0]["configMap"]["items"]}
    data = manifests.config_map["data"]
    assert (data[items["a/b"]], data[items["a.b"]]) == ("1", "2")


def test_files_too_large_for_a_config_map_are_named(tmp_path: Path) -> None:
    (tmp_path / "big.bin").write_bytes(b"x" * 1024 * 1024)
    with pytest.raises(RenderError, match=r"the largest is big\.bin"):
        rendered(workload=Workload("x", "x", extra_files=(("big.bin", tmp_path / "big.bin"),)))


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", ""])
def test_file_outside_the_mount_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="below it"):
        rendered(workload=Workload("x", "x", extra_files=((path, tmp_path),)))


HOSTILE = [
    'image: "x"\nspec: {}',
    "yes",
    "{{ 7 * 7 }}",
    "# no comment",
    "\x7f\x85\u2028\ufeff",
    "😀 – ü",
    "\t*anchor &x !!python/object",
    "1e3",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_user_types_stays_a_value(text: str) -> None:
    manifests = rendered(workload=Workload("x", "x", args=(text,)), image=text)
    assert container(manifests)["image"] == text
    assert container(manifests)["command"][-1] == text
    assert list(yaml.safe_load_all(manifests.to_yaml())) == manifests.objects()


def test_dollar_parentheses_in_arguments_are_not_expanded_by_the_kubelet() -> None:
    manifests = rendered(workload=Workload("x", "x", args=("$(POD_NAME)",)))
    assert container(manifests)["command"][-1] == "$$(POD_NAME)"


@pytest.mark.parametrize("accelerator", list(Accelerator))
def test_kubectl_reads_what_is_printed(accelerator: Accelerator, tmp_path: Path) -> None:
    """`kubectl label --local` decodes the objects by their types without a server."""
    path = tmp_path / "run.yaml"
    path.write_text(rendered(plan_of(accelerator)).to_yaml())
    try:
        done = subprocess.run(
            ["kubectl", "label", "--local", "--overwrite", "-f", str(path), "-o", "name", "a=b"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("kubectl is not installed")
    assert done.returncode == 0, done.stderr
    name = "bert-nvidia-3f9a1c"
    assert done.stdout.split() == ["namespace/ns", f"job.batch/{name}", f"service/{name}", f"configmap/{name}"]


def test_threads_are_the_programs_own_argument() -> None:
    plan = plan_of(processes_per_node=2, threads_per_process=4)
    command = container(rendered(plan))["command"]
    program = command[command.index("workloads.bert") :]
    assert program[program.index("--nthread-per-process") + 1] == "4"
    assert command[command.index("--nproc-per-node") + 1] == "2"
    assert "--nthread-per-process" not in container(rendered())["command"]


def test_nccl_tells_which_network_it_uses() -> None:
    env = {each["name"]: each.get("value") for each in container(rendered())["env"]}
    assert (env["NCCL_DEBUG"], env["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,NET")
    neuron = {each["name"] for each in container(rendered(plan_of(Accelerator.NEURON)))["env"]}
    assert "NCCL_DEBUG" not in neuron


def test_queue_is_a_label_of_the_job_alone() -> None:
    manifests = rendered(queue="gpus", namespace="ns")
    assert manifests.job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert "kueue.x-k8s.io/queue-name" not in manifests.job["spec"]["template"]["metadata"]["labels"]
    assert manifests.job["spec"]["suspend"] is True
    assert "kueue.x-k8s.io/queue-name" not in rendered().job["metadata"]["labels"]
    with pytest.raises(RenderError, match="--queue gpus: a LocalQueue belongs to a namespace"):
        rendered(queue="gpus")


def test_claim_is_mounted_at_shared() -> None:
    manifests = rendered(shared_volume="checkpoints:team/a", namespace="ns")
    mount = next(each for each in container(manifests)["volumeMounts"] if each["name"] == "shared")
    assert mount == {"name": "shared", "mountPath": "/shared", "subPath": "team/a"}
    volume = next(each for each in pod_spec(manifests)["volumes"] if each["name"] == "shared")
    assert volume["persistentVolumeClaim"] == {"claimName": "checkpoints"}


def test_directory_of_the_node_is_mounted_and_allowed_by_the_namespace() -> None:
    manifests = rendered(plan_of(Accelerator.NEURON), shared_volume="hostPath:/mnt/fsx")
    volume = next(each for each in pod_spec(manifests)["volumes"] if each["name"] == "shared")
    assert volume["hostPath"]["path"] == "/mnt/fsx"
    assert manifests.namespace is not None
    assert manifests.namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert rendered().namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "baseline"  # type: ignore[index]
    env = {each["name"]: each.get("value") for each in container(manifests)["env"]}
    assert env["NEURON_COMPILE_CACHE_URL"] == "/shared/neuron-compile-cache"


@pytest.mark.parametrize("volume", ["claim", "hostPath:relative", "hostPath:/a/../b", "claim:/absolute", ":path"])
def test_shared_volume_that_cannot_be_meant_is_refused(volume: str) -> None:
    with pytest.raises(RenderError, match="--shared-volume"):
        rendered(shared_volume=volume)


def test_pull_secrets_are_named_where_they_are() -> None:
    own = pod_spec(rendered(image_pull_secrets=("registry/pull", "registry/other")))
    assert own["imagePullSecrets"] == [{"name": "pull"}, {"name": "other"}]
    assert pod_spec(rendered(image_pull_secrets=("pull",), namespace="ns"))["imagePullSecrets"] == [{"name": "pull"}]
    assert "imagePullSecrets" not in pod_spec(rendered())
    for secrets, namespace in ((("pull",), None), (("registry/pull",), "ns")):
        with pytest.raises(RenderError, match="--image-pull-secret"):
            rendered(image_pull_secrets=secrets, namespace=namespace)


def test_logical_cores_are_told_to_the_runtime() -> None:
    env = {each["name"]: each.get("value") for each in container(rendered(neuron_logical_cores=1))["env"]}
    assert env["NEURON_LOGICAL_NC_CONFIG"] == "1"
