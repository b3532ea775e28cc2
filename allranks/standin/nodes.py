"""The nodes of the stand-in: what they claim to have, and which real devices are behind it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allranks.standin.discovery import VERSION
from allranks.standin.objects import Object, quantity, timestamp

KINDS = ("nvidia", "neuron", "cpu")
GPU, NEURON, NEURON_CORE = "nvidia.com/gpu", "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
DEVICES = (GPU, NEURON, NEURON_CORE)
_SPEC = re.compile(r"(\w+):(\d+)(?:x(\d+))?")
_NOTE = "standin.allranks.dev/note"
_REAL = "standin.allranks.dev/devices"


class NodesError(ValueError):
    """A --nodes value that cannot be read; the message says what would be right."""


@dataclass(frozen=True, slots=True)
class Pool:
    """`count` nodes of one kind with `devices` each."""

    kind: str
    count: int
    devices: int

    @classmethod
    def parse(cls, text: str) -> Pool:
        """Reads `nvidia:2x8` (kind, nodes, devices a node) or `cpu:2`. Raises NodesError."""
        match = _SPEC.fullmatch(text)
        if match is None or match[1] not in KINDS or (match[1] != "cpu" and match[3] is None):
            raise NodesError(
                f"--nodes {text}: wanted KIND:COUNTxDEVICES, e.g. nvidia:2x8 or cpu:2; kinds: {', '.join(KINDS)}"
            )
        return cls(match[1], int(match[2]), int(match[3] or 0))


def real_gpus() -> list[str]:
    """Product names of the GPUs of this machine, as the driver's tool lists them."""
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return re.findall(r"^GPU \d+: (.+?) \(UUID", listed.stdout, re.MULTILINE)


def default_pools(gpus: Sequence[str]) -> list[Pool]:
    return [Pool("nvidia", 1, len(gpus))] if gpus else [Pool("nvidia", 2, 2), Pool("neuron", 2, 2)]


def make_nodes(pools: Sequence[Pool], gpus: Sequence[str]) -> list[Object]:
    """The Node objects. NVIDIA nodes get real GPUs, in order, when the machine has enough for all of them."""
    wanted = sum(pool.count * pool.devices for pool in pools if pool.kind == "nvidia")
    free = list(range(len(gpus))) if wanted <= len(gpus) else []
    counts = dict.fromkeys(KINDS, 0)
    made = []
    for pool in pools:
        for _ in range(pool.count):
            name = f"standin-{pool.kind}-{counts[pool.kind]}"
            counts[pool.kind] += 1
            mine: list[int] = []
            if pool.kind == "nvidia" and free:
                mine, free = free[: pool.devices], free[pool.devices :]
            made.append(_node(name, pool, mine, gpus[mine[0]] if mine else None))
    return made


def _node(name: str, pool: Pool, real: Sequence[int], product: str | None) -> Object:
    instance = f"standin.{pool.kind}"
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": platform.system().lower(),
        "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "node.kubernetes.io/instance-type": instance,
        "topology.kubernetes.io/zone": "standin",
    }
    annotations = {_NOTE: "a stand-in node: its pods are processes of this machine"}
    if pool.kind == "nvidia":
        labels["nvidia.com/gpu.product"] = (product or "stand-in").replace(" ", "-")
        labels["nvidia.com/gpu.count"] = str(pool.devices)
    if real:
        annotations[_REAL] = ",".join(map(str, real))
    elif pool.kind != "cpu":
        annotations[_NOTE] += (
            f"; its {pool.devices} {pool.kind} devices do not exist, programs use the CPU in their place"
        )
    capacity = _capacity(pool)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {},
        "status": {
            "capacity": capacity,
            "allocatable": dict(capacity),
            "conditions": _conditions(),
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": _node_info(name),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
        },
    }


def _capacity(pool: Pool) -> dict[str, str]:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    # A node of the pretended kind has many cores. Requests are admitted, not enforced.
    capacity = {"cpu": "192", "memory": f"{max(pages * size // 1024, 512 << 20)}Ki", "pods": "110"}
    if pool.kind == "nvidia":
        capacity[GPU] = str(pool.devices)
    if pool.kind == "neuron":
        capacity |= {NEURON: str(pool.devices), NEURON_CORE: str(pool.devices)}
    return capacity


def _conditions() -> list[dict[str, Any]]:
    now = timestamp()
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    pressures = [
        {"type": kind, "status": "False", "reason": f"KubeletHasNo{kind}", "message": f"no {kind}", **times}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")
    ]
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the stand-in is running", **times}
    return [*pressures, ready]


def _node_info(name: str) -> dict[str, str]:
    return {
        "architecture": platform.machine(),
        "operatingSystem": platform.system().lower(),
        "osImage": f"{platform.system()} {platform.release()}",
        "kernelVersion": platform.release(),
        "kubeletVersion": VERSION["gitVersion"],
        "kubeProxyVersion": "",
        "containerRuntimeVersion": "standin://1",
        "machineID": name,
        "systemUUID": name,
        "bootID": name,
    }


class DeviceBindings:
    """Which real devices each pod holds."""

    def __init__(self) -> None:
        self._held: dict[str, list[int]] = {}

    def release(self, uid: str) -> None:
        self._held.pop(uid, None)

    def environment(self, node: Object, uid: str, container: Mapping[str, Any]) -> dict[str, str]:
        """Variables for one container: the devices it is bound to, or that the CPU takes their place."""
        kind = node["metadata"]["labels"]["node.kubernetes.io/instance-type"].removeprefix("standin.")
        real = node["metadata"].get("annotations", {}).get(_REAL)
        limits = (container.get("resources") or {}).get("limits") or {}
        if kind == "cpu":
            return {}
        if real is None:
            return {"ALLRANKS_STANDIN_DEVICE": "cpu"}
        count = int(quantity(limits.get(GPU, 0)))
        taken = {device for devices in self._held.values() for device in devices}
        mine = [device for device in map(int, real.split(",")) if device not in taken][:count]
        self._held.setdefault(uid, []).extend(mine)
        listed = ",".join(map(str, mine))
        return {"CUDA_VISIBLE_DEVICES": listed, "NVIDIA_VISIBLE_DEVICES": listed or "void"}
