"""Paths of the API resources that the harness uses."""

from __future__ import annotations

from typing import Any

NODES = "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_GROUPS = {
    "jobs": "/apis/batch/v1",
    "leases": "/apis/coordination.k8s.io/v1",
    "daemonsets": "/apis/apps/v1",
}
_PLURALS = {
    "Job": "jobs",
    "Service": "services",
    "ConfigMap": "configmaps",
    "Pod": "pods",
    "Event": "events",
    "Secret": "secrets",
    "ServiceAccount": "serviceaccounts",
    "DaemonSet": "daemonsets",
}
_OF_CLUSTER = {
    "Namespace": NAMESPACES,
    "ClusterRole": f"{_RBAC}/clusterroles",
    "ClusterRoleBinding": f"{_RBAC}/clusterrolebindings",
}


def namespaced(plural: str, namespace: str, name: str | None = None) -> str:
    """`namespaced("pods", "ns", "p")` → `/api/v1/namespaces/ns/pods/p`."""
    base = f"{_GROUPS.get(plural, '/api/v1')}/namespaces/{namespace}/{plural}"
    return base if name is None else f"{base}/{name}"


def of(thing: dict[str, Any]) -> tuple[str, str]:
    """The collection an object is created in, and the object's own path."""
    metadata = thing["metadata"]
    if collection := _OF_CLUSTER.get(thing["kind"]):
        return collection, f"{collection}/{metadata['name']}"
    plural = _PLURALS[thing["kind"]]
    return namespaced(plural, metadata["namespace"]), namespaced(plural, metadata["namespace"], metadata["name"])
