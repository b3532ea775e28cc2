"""Plan + template → Kubernetes objects. Pure: the same plan and settings give the same objects."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from allranks.names import MANAGED_BY, RUN_LABEL
from allranks.plan import EFA, INSTANCE_TYPE, Accelerator, Plan
from allranks.settings import Settings, Workload

Object = dict[str, Any]

CODE_MOUNT = "/opt/allranks"
SHARED_MOUNT = "/shared"
GRACE_PERIOD = 30
"""Seconds between SIGTERM and SIGKILL: time for every rank to print its stack."""

DEFAULT_IMAGES = {
    Accelerator.NVIDIA: "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime",
    Accelerator.NEURON: "public.ecr.aws/neuron/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.27.1-ubuntu24.04",
    # PyTorch publishes no CPU-only image: the same one, which runs without a GPU.
    Accelerator.CPU: "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime",
}
DEVICES = {Accelerator.NVIDIA: "cuda", Accelerator.NEURON: "xla", Accelerator.CPU: "cpu"}

# A ConfigMap is an etcd value; the API server refuses more than 1 MiB, metadata included.
_CONFIG_MAP_LIMIT = 1024 * 1024 - 32 * 1024
_MARGIN = 60
_ROOT = Path(__file__).resolve().parent.parent
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
# Resources that a container asks for without a limit: a limit on memory would be a new way to be killed.
_REQUEST_ONLY = ("cpu", "memory")


class RenderError(ValueError):
    """What was asked for cannot be put into manifests; the message says why and what to change."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """A run's objects, ready to be created in this order. The Job is suspended and not yet an owner."""

    job: Object
    service: Object
    config_map: Object
    namespace: Object | None = None
    """None where the namespace was given."""

    def objects(self) -> list[Object]:
        return [*([self.namespace] if self.namespace else []), self.job, self.service, self.config_map]

    def to_yaml(self) -> str:
        import yaml

        class Dumper(yaml.SafeDumper):
            def ignore_aliases(self, data: Any) -> bool:
                return True

        def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
            return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

        Dumper.add_representer(str, text)
        return yaml.dump_all(self.objects(), Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and until when the objects live: what a plan does not say."""

    namespace: str
    create_namespace: bool
    port: int
    """Of the rendezvous, on pod 0."""
    now: datetime = field(default_factory=lambda: datetime.now(timezone.utc))


def render(plan: Plan, workload: Workload, settings: Settings, placement: Placement) -> Manifests:
    """Raises RenderError when the workload's files do not fit into a ConfigMap or a path is not usable in one."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_ROOT / "manifests"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # this is YAML, and every value goes through tojson
    )
    environment.filters["tojson"] = to_yaml_scalar
    text = environment.get_template("training.yaml.j2").render(_values(plan, workload, settings, placement))
    objects = {document["kind"]: document for document in _load_all(text) if document}
    return Manifests(objects["Job"], objects["Service"], objects["ConfigMap"], objects.get("Namespace"))


def to_yaml_scalar(value: Any) -> str:
    """JSON that is YAML too: characters that YAML refuses in the open are escaped, everything else stays readable."""
    if isinstance(value, str) and any(0xD800 <= ord(character) <= 0xDFFF for character in value):
        raise RenderError(f"not valid Unicode text: {value!r}")
    plain = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", plain)


def _load_all(text: str) -> list[Any]:
    import yaml

    return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def _values(plan: Plan, workload: Workload, settings: Settings, placement: Placement) -> dict[str, Any]:
    if plan.run_id is None or plan.accelerator is None:
        raise RenderError("a plan without run id or accelerator cannot be rendered")
    name = plan.run_id
    data, binary_data, items = _config_map(code_files(workload))
    requests = dict(plan.resources)
    ttl = 900 if settings.keep == "never" else 24 * 3600
    volume = _shared_volume(settings)
    active_deadline = math.ceil(settings.deadline) + _MARGIN
    lifetime = timedelta(seconds=active_deadline + _longest_wait(settings) + ttl)
    return {
        "plan": plan,
        "job": name,
        "service": name,
        "config_map": name,
        "namespace": placement.namespace,
        "create_namespace": placement.create_namespace,
        "labels": {**MANAGED_BY, RUN_LABEL: name},
        "queue": _queue(settings),
        # The baseline standard refuses directories of the node.
        "pod_security": "privileged" if volume and "hostPath" in volume else "baseline",
        "shared": volume,
        "shared_mount": SHARED_MOUNT,
        "pull_secrets": _pull_secrets(settings),
        "logical_cores": settings.neuron_logical_cores,
        "expires": (placement.now + lifetime).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "active_deadline": active_deadline,
        "ttl": ttl,
        "grace_period": GRACE_PERIOD,
        "node_selector": _node_selector(settings),
        "image": settings.image or DEFAULT_IMAGES[plan.accelerator],
        "command": command(plan, workload, settings, placement.port),
        "efa": EFA in requests,
        "requests": requests,
        "limits": {name: value for name, value in requests.items() if name not in _REQUEST_ONLY},
        "port": placement.port,
        "data": data,
        "binary_data": binary_data,
        "items": items,
    }


def _shared_volume(settings: Settings) -> dict[str, str] | None:
    """`hostPath:/path` or `CLAIM[:path]` → what the template needs of it."""
    if settings.shared_volume is None:
        return None
    name, _, path = settings.shared_volume.partition(":")
    if name == "hostPath":
        if not path.startswith("/") or ".." in path.split("/"):
            raise RenderError(f"--shared-volume {settings.shared_volume}: hostPath:/an/absolute/path is expected")
        return {"hostPath": path}
    if not name or path.startswith("/") or ".." in path.split("/"):
        raise RenderError(f"--shared-volume {settings.shared_volume}: CLAIM, CLAIM:path/in/it or hostPath:/path")
    if settings.namespace is None:
        raise RenderError(f"--shared-volume {name}: a claim belongs to a namespace: name it with --namespace")
    return {"claim": name, "path": path}


def _longest_wait(settings: Settings) -> float:
    """Seconds before the Job's own deadline begins to count, or its pods to run."""
    if settings.queue is not None:
        return settings.lease_timeout + settings.schedule_timeout
    return settings.provision_timeout if settings.provision else settings.schedule_timeout


def _queue(settings: Settings) -> str | None:
    if settings.queue is not None and settings.namespace is None:
        raise RenderError(f"--queue {settings.queue}: a LocalQueue belongs to a namespace: name it with --namespace")
    return settings.queue


def _pull_secrets(settings: Settings) -> list[str]:
    """Names in the run's namespace. NAMESPACE/NAME is copied into a namespace of the run's own, which goes with it."""
    for secret in settings.image_pull_secrets:
        if ("/" in secret) is not (settings.namespace is None):
            raise RenderError(
                f"--image-pull-secret {secret}: NAME of a secret in the --namespace that is given, or, without one, "
                "NAMESPACE/NAME, to copy it from there"
            )
    return [secret.rpartition("/")[2] for secret in settings.image_pull_secrets]


def _node_selector(settings: Settings) -> dict[str, str]:
    selector = dict(settings.node_selector)
    if settings.instance_type:
        selector[INSTANCE_TYPE] = settings.instance_type
    return selector


def command(plan: Plan, workload: Workload, settings: Settings, port: int) -> list[str]:
    """The container's command: launcher, its arguments, program, its arguments."""
    assert plan.run_id is not None
    assert plan.accelerator is not None
    master = f"{plan.run_id}-0.{plan.run_id}"
    if settings.launcher == "allranks":
        launcher = ["workloads.launch", "--rdzv-endpoint", f"{master}:{port}"]
    elif settings.launcher == "torchrun":
        # The Job controller sets the index in each pod's environment; the kubelet expands it.
        rank = ["--node-rank", "$(JOB_COMPLETION_INDEX)", "--master-addr", master, "--master-port", str(port)]
        launcher = ["torch.distributed.run", *rank]
    else:
        raise RenderError(f"launcher {settings.launcher!r} is not one of allranks, torchrun")
    world = ["--nnodes", str(plan.nodes), "--nproc-per-node", str(plan.processes_per_node), "--rdzv-id", plan.run_id]
    program = ["-m", workload.module, "--device", DEVICES[plan.accelerator]]
    if plan.threads_per_process > 1:
        program += ["--nthread-per-process", str(plan.threads_per_process)]
    # The kubelet would expand $(VAR) in what the user typed; $$ is its escape.
    arguments = [argument.replace("$(", "$$(") for argument in workload.args]
    return ["python3", "-m", *launcher, *world, *program, *arguments]


def code_files(workload: Workload) -> dict[str, bytes]:
    """Path below the code mount → content: all of workloads/, and the workload's further files."""
    source = _ROOT / "workloads"
    files = {
        path.relative_to(_ROOT).as_posix(): path.read_bytes()
        for path in sorted(source.rglob("*.py"))
        if "__pycache__" not in path.parts
    }
    for target, local in workload.extra_files:
        if target.startswith("/") or ".." in target.split("/") or not target:
            raise RenderError(f"file {target!r} would lie outside {CODE_MOUNT}: give a path below it")
        try:
            files[target] = Path(local).read_bytes()
        except OSError as error:
            raise RenderError(f"file {local} for the pods cannot be read: {error.strerror}") from error
    return files


def _config_map(files: Mapping[str, bytes]) -> tuple[dict[str, str], dict[str, str], Sequence[Mapping[str, str]]]:
    """ConfigMap keys are flat; `items` restores the paths."""
    total = sum(len(content) for content in files.values())
    if total > _CONFIG_MAP_LIMIT:
        largest = max(files, key=lambda path: len(files[path]))
        raise RenderError(
            f"the workload's files are {total} bytes, a ConfigMap holds {_CONFIG_MAP_LIMIT}; the largest is {largest} "
            f"({len(files[largest])} bytes): bake it into the image or mount a volume"
        )
    data: dict[str, str] = {}
    binary: dict[str, str] = {}
    items: list[dict[str, str]] = []
    for path, content in files.items():
        key = re.sub(r"[^-._a-zA-Z0-9]", "-", path.replace("/", "."))[-200:]
        if key in data or key in binary:
            key = f"{len(items)}.{key}"
        items.append({"key": key, "path": path})
        try:
            data[key] = content.decode()
        except UnicodeDecodeError:
            binary[key] = base64.b64encode(content).decode()
    return data, binary, items
