"""Device plugins: applied where they are missing, and waited for on every node that needs them – never 0 of 0."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from allranks.cluster import ClusterError, paths
from allranks.cluster.client import Api, ApiError, Object
from allranks.cluster.inventory import amount, has_device
from allranks.cluster.watch import Type, watch
from allranks.plan import DEVICE, EFA, INSTANCE_TYPE, Accelerator
from allranks.settings import Settings

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests" / "device-plugins"
# Instance types whose hardware is known although nothing on the node tells of it before there is a plugin.
_FAMILIES = {
    Accelerator.NVIDIA: re.compile(r"p[3-6]\w*\.|p6-\w+\.|g[4-6]\w*\.|gr6\w*\.|a[234]-|g2-|Standard_N[CDV]"),
    Accelerator.NEURON: re.compile(r"(?:trn|inf)\d\w*\."),
}
_WITH_EFA = re.compile(r"p4d|p4de|p5|p5e|p5en|p6|trn1|trn1n|trn2|trn2u|trn3")


async def install(api: Api, settings: Settings) -> list[str]:
    """Applies the plugins that the selected nodes lack, and waits up to `settings.ready_timeout` for their pods.

    Returns the names of the daemon sets that were waited for; those that exist already are left as they are. Raises
    ClusterError when no node is known to need one, and when a pod does not come up: on which node, and why.
    """
    nodes = [node for node in (await api.call("GET", paths.NODES)).get("items") or () if _selected(node, settings)]
    if not nodes:
        raise ClusterError(
            f"--install-device-plugins: no node is known to have {settings.accelerator} devices: name them with "
            "--instance-type or --node-selector"
        )
    installed = []
    for plugin, resource, wanting in _needed(nodes, settings.accelerator):
        if all(amount(node, "allocatable", resource) for node in wanting):
            continue  # by whatever way, it is there
        daemon_set = await _apply(api, plugin, wanting)
        await _every_pod(api, daemon_set, {str(node["metadata"]["name"]) for node in wanting}, settings.ready_timeout)
        installed.append(str(daemon_set["metadata"]["name"]))
    return installed


def _needed(nodes: list[Object], accelerator: Accelerator) -> Iterable[tuple[str, str, list[Object]]]:
    if accelerator in DEVICE:
        yield str(accelerator), DEVICE[accelerator], nodes
    with_efa = [node for node in nodes if _WITH_EFA.match(_kind(node))]
    if with_efa:
        yield "efa", EFA, with_efa


def _selected(node: Object, settings: Settings) -> bool:
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    if not dict(settings.node_selector).items() <= labels.items():
        return False
    if settings.instance_type is not None:
        return _kind(node) == settings.instance_type
    family = _FAMILIES.get(settings.accelerator)
    known = has_device(node, settings.accelerator) or (family is not None and family.match(_kind(node)) is not None)
    return known or bool(settings.node_selector)


def _kind(node: Object) -> str:
    return str((node["metadata"].get("labels") or {}).get(INSTANCE_TYPE, ""))


async def _apply(api: Api, plugin: str, nodes: list[Object]) -> Object:
    """Creates what is not there; the daemon set runs on nodes of these instance types, the ones to come included."""
    import yaml

    daemon_set: Object = {}
    for thing in yaml.safe_load_all((MANIFESTS / f"{plugin}.yaml").read_text(encoding="utf-8")):
        if thing["kind"] == "DaemonSet":
            thing["spec"]["template"]["spec"]["affinity"] = _affinity(nodes)
        collection, path = paths.of(thing)
        try:
            made = await api.call("POST", collection, body=thing)
        except ApiError as error:
            if error.status != 409:
                raise
            made = await api.call("GET", path)
        if thing["kind"] == "DaemonSet":
            daemon_set = made
    return daemon_set


def _affinity(nodes: list[Object]) -> Object:
    kinds = sorted({_kind(node) for node in nodes} - {""})
    typed = {"matchExpressions": [{"key": INSTANCE_TYPE, "operator": "In", "values": kinds}]}
    names = sorted(str(node["metadata"]["name"]) for node in nodes if not _kind(node))
    # A field takes one value; terms are alternatives.
    named = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in names]
    terms = [*([typed] if kinds else []), *named]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


async def _every_pod(api: Api, daemon_set: Object, nodes: set[str], patience: float) -> None:
    """Returns when each of the nodes has a pod of the daemon set that is ready."""
    metadata = daemon_set["metadata"]
    labels: Mapping[str, str] = daemon_set["spec"]["selector"].get("matchLabels") or {}
    query = {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())}
    pods: dict[str, Object] = {}
    synced = False
    try:
        async with asyncio.timeout(patience):
            changes = watch(api, paths.namespaced("pods", str(metadata["namespace"])), query)
            async with aclosing(changes):
                async for change in changes:
                    synced = synced or change.type is Type.SYNCED
                    if change.type is Type.DELETED:
                        pods.pop(change.object["metadata"]["uid"], None)
                    elif change.object:
                        pods[change.object["metadata"]["uid"]] = change.object
                    ready = {pod["spec"].get("nodeName") for pod in pods.values() if _ready(pod)}
                    if synced and nodes <= ready:
                        return
    except TimeoutError:
        ready = {pod["spec"].get("nodeName") for pod in pods.values() if _ready(pod)}
        lacking = "; ".join(f"{name}: {_state(name, pods.values())}" for name in sorted(nodes - ready))
        raise ClusterError(
            f"{metadata['name']}: {len(nodes & ready)} of {len(nodes)} pods are ready after {patience:g} s "
            f"(--ready-timeout); {lacking}"
        ) from None


def _ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _state(node: str, pods: Iterable[Object]) -> str:
    for pod in pods:
        if pod["spec"].get("nodeName") != node:
            continue
        waiting: list[Any] = [
            (status.get("state") or {}).get("waiting")
            for status in (pod.get("status") or {}).get("containerStatuses") or ()
        ]
        why = next((f"{each.get('reason')} {each.get('message', '')}".strip() for each in waiting if each), "")
        return f"pod {pod['metadata']['name']} is {(pod.get('status') or {}).get('phase')} {why}".rstrip()
    return "no pod"
