"""What we may do, asked before anything is done: a SelfSubjectAccessReview for each permission that a run needs.

manifests/rbac.yaml grants exactly these; a test holds the two against each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from allranks.cluster import ClusterError
from allranks.cluster.client import Api, ApiError

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Permission:
    """Some verbs on one resource."""

    resource: str
    """`pods`, `pods/log`, `jobs`."""
    verbs: tuple[str, ...]
    group: str = ""


ON_CLUSTER = (Permission("nodes", ("list", "watch")),)
"""Without a namespace."""
OWN_NAMESPACE = (Permission("namespaces", ("create", "get", "list", "watch", "delete")),)
"""For runs in a namespace of their own."""
IN_NAMESPACE = (
    Permission("jobs", ("create", "get", "list", "watch", "patch", "delete"), "batch"),
    Permission("services", ("create", "get", "delete")),
    Permission("configmaps", ("create", "get", "delete")),
    Permission("pods", ("get", "list", "watch", "delete")),
    Permission("pods/log", ("get",)),
    Permission("events", ("list", "watch")),
)
"""In the namespace of a run."""
LEASES = (Permission("leases", ("get", "list", "watch", "create", "update", "delete"), "coordination.k8s.io"),)
"""In the namespace of the leases."""


async def check(api: Api, permissions: Sequence[Permission], namespace: str | None = None) -> None:
    """Raises ClusterError that names every permission that is missing. A server that answers no reviews is believed."""
    asked = [(permission, verb) for permission in permissions for verb in permission.verbs]
    allowed = await asyncio.gather(*(_allowed(api, each, verb, namespace) for each, verb in asked))
    missing: dict[str, list[str]] = {}
    for (permission, verb), may in zip(asked, allowed, strict=True):
        if not may:
            name = f"{permission.resource}.{permission.group}" if permission.group else permission.resource
            missing.setdefault(name, []).append(verb)
    if missing:
        what = "; ".join(f"{', '.join(verbs)} {resource}" for resource, verbs in missing.items())
        where = f"in namespace {namespace}" if namespace else "on the cluster"
        raise ClusterError(
            f"permission is missing on {api.where} {where}: {what}. manifests/rbac.yaml has all that is needed"
        )


async def _allowed(api: Api, permission: Permission, verb: str, namespace: str | None) -> bool:
    resource, _, subresource = permission.resource.partition("/")
    attributes = {"group": permission.group, "resource": resource, "verb": verb}
    attributes |= {"subresource": subresource} if subresource else {}
    attributes |= {"namespace": namespace} if namespace else {}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    try:
        answer = await api.call("POST", _REVIEWS, body=review)
    except ApiError as error:
        if error.status in (403, 404):
            return True  # it does not answer this question: the request itself will tell
        raise
    return bool((answer.get("status") or {}).get("allowed"))
