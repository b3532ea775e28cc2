"""Server-side tables: what `kubectl get` prints for each kind."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from allranks.standin.objects import Object, condition_of, name_of, unix
from allranks.standin.resources import (
    CONFIG_MAPS,
    DAEMON_SETS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)

Column = tuple[str, Callable[[Object], Any]]
"""A heading, `+` before it when only `-o wide` shows it, and what stands in the cell."""


def age(since: str | None) -> str:
    """As kubectl prints durations: 45s, 3m12s, 5h, 2d."""
    if not since:
        return "<unknown>"
    return duration(time.time() - unix(since))


def duration(seconds: float) -> str:
    whole = max(int(seconds), 0)
    if whole < 120:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 10:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours = minutes // 60
    return f"{hours}h" if hours < 48 else f"{hours // 24}d"


def _age(obj: Object) -> str:
    return age(obj["metadata"].get("creationTimestamp"))


def _pod_status(pod: Object) -> str:
    status = pod.get("status", {})
    shown = str(status.get("reason") or status.get("phase", "Unknown"))
    for prefix, field in (("Init:", "initContainerStatuses"), ("", "containerStatuses")):
        for held in reversed(status.get(field) or ()):
            waiting, ended = held["state"].get("waiting"), held["state"].get("terminated")
            if waiting and waiting.get("reason") not in (None, "PodInitializing"):
                shown = prefix + waiting["reason"]
            elif ended and (prefix == "" or ended["exitCode"]):
                signalled = f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended['exitCode']}"
                shown = prefix + (ended.get("reason") or signalled)
    return "Terminating" if "deletionTimestamp" in pod["metadata"] and status.get("phase") == "Running" else shown


def _pod_ready(pod: Object) -> str:
    held = pod.get("status", {}).get("containerStatuses") or ()
    return f"{sum(bool(c.get('ready')) for c in held)}/{len(pod['spec']['containers'])}"


def _restarts(pod: Object) -> int:
    return sum(c.get("restartCount", 0) for c in pod.get("status", {}).get("containerStatuses") or ())


def _job_status(job: Object) -> str:
    for kind, shown in (("Complete", "Complete"), ("Failed", "Failed"), ("Suspended", "Suspended")):
        held = condition_of(job, kind)
        if held and held["status"] == "True":
            return shown
    failing = condition_of(job, "FailureTarget")
    return "FailureTarget" if failing else "Terminating" if "deletionTimestamp" in job["metadata"] else "Running"


def _job_duration(job: Object) -> str:
    status = job.get("status", {})
    if not status.get("startTime"):
        return ""
    end = unix(status["completionTime"]) if status.get("completionTime") else time.time()
    return duration(end - unix(status["startTime"]))


def _job_completions(job: Object) -> str:
    return f"{job.get('status', {}).get('succeeded', 0)}/{job['spec'].get('completions', 1)}"


def _node_status(node: Object) -> str:
    ready = condition_of(node, "Ready")
    shown = "Ready" if ready and ready["status"] == "True" else "NotReady"
    return shown + (",SchedulingDisabled" if node["spec"].get("unschedulable") else "")


def _devices(node: Object) -> str:
    held = node.get("status", {}).get("allocatable") or {}
    return ",".join(f"{name}={value}" for name, value in held.items() if "/" in name) or "<none>"


def _ports(service: Object) -> str:
    return ",".join(f"{p['port']}/{p['protocol']}" for p in service["spec"].get("ports") or ()) or "<none>"


def _at(path: str, default: Any = "<none>") -> Callable[[Object], Any]:
    def read(obj: Object) -> Any:
        value: Any = obj
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return default if value is None else value

    return read


COLUMNS: dict[Resource, Sequence[Column]] = {
    PODS: (
        ("Ready", _pod_ready),
        ("Status", _pod_status),
        ("Restarts", _restarts),
        ("Age", _age),
        ("+IP", _at("status.podIP")),
        ("+Node", _at("spec.nodeName")),
    ),
    JOBS: (
        ("Status", _job_status),
        ("Completions", _job_completions),
        ("Duration", _job_duration),
        ("Age", _age),
    ),
    NODES: (
        ("Status", _node_status),
        ("Roles", lambda node: "<none>"),
        ("Age", _age),
        ("Version", _at("status.nodeInfo.kubeletVersion")),
        ("+Devices", _devices),
    ),
    SERVICES: (
        ("Type", _at("spec.type")),
        ("Cluster-IP", _at("spec.clusterIP")),
        ("External-IP", lambda service: "<none>"),
        ("Port(s)", _ports),
        ("Age", _age),
    ),
    NAMESPACES: (("Status", _at("status.phase")), ("Age", _age)),
    CONFIG_MAPS: (("Data", lambda o: len(o.get("data") or ()) + len(o.get("binaryData") or ())), ("Age", _age)),
    SECRETS: (("Type", _at("type")), ("Data", lambda o: len(o.get("data") or ())), ("Age", _age)),
    LEASES: (("Holder", _at("spec.holderIdentity", "")), ("Age", _age)),
    DAEMON_SETS: (
        ("Desired", _at("status.desiredNumberScheduled", 0)),
        ("Ready", _at("status.numberReady", 0)),
        ("Age", _age),
    ),
    EVENTS: (
        ("Last Seen", lambda event: age(event.get("lastTimestamp"))),
        ("Type", _at("type")),
        ("Reason", _at("reason")),
        ("Object", lambda e: f"{e['involvedObject'].get('kind', '').lower()}/{e['involvedObject'].get('name', '')}"),
        ("Message", lambda event: (event.get("message") or "").strip()),
    ),
}
_PLAIN: Sequence[Column] = (("Age", _age),)


def table(resource: Resource, objects: Sequence[Object], meta: dict[str, Any], include: str) -> dict[str, Any]:
    """The `Table` for some objects. `include` is the request's includeObject: Metadata, Object or None."""
    columns = COLUMNS.get(resource, _PLAIN)
    named = [] if resource is EVENTS else [("Name", name_of)]
    definitions = [
        {
            "name": heading.lstrip("+"),
            "type": "string",
            "format": "name" if heading == "Name" else "",
            "description": "",
            "priority": int(heading.startswith("+")),
        }
        for heading, _ in (*named, *columns)
    ]
    rows = []
    for obj in objects:
        row: dict[str, Any] = {"cells": [cell(obj) for _, cell in (*named, *columns)]}
        if include == "Object":
            row["object"] = obj
        elif include == "Metadata":
            partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
            row["object"] = {**partial, "metadata": obj["metadata"]}
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": definitions,
        "rows": rows,
    }
