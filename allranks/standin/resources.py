"""Which kinds of objects the stand-in serves: one table that discovery, routing and storage read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and where it is served."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    stored: bool = True
    """False for reviews, which are answered and forgotten."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As error messages name it: `jobs.batch`, `pods`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def verbs(self) -> tuple[str, ...]:
        if not self.stored:
            return ("create",)
        return ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False, ("ns",), ("status",))
NODES = Resource("", "v1", "nodes", "Node", False, ("no",), ("status",))
PODS = Resource("", "v1", "pods", "Pod", True, ("po",), ("status", "log", "eviction"), ("all",))
SERVICES = Resource("", "v1", "services", "Service", True, ("svc",), ("status",), ("all",))
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", True, ("cm",))
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("", "v1", "events", "Event", True, ("ev",))
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", True, ("sa",))
JOBS = Resource("batch", "v1", "jobs", "Job", True, (), ("status",), ("all",))
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet", True, ("ds",), ("status",), ("all",))
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False, stored=False
)

RESOURCES: tuple[Resource, ...] = (
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
    CONFIG_MAPS,
    SECRETS,
    EVENTS,
    SERVICE_ACCOUNTS,
    JOBS,
    LEASES,
    DAEMON_SETS,
    ACCESS_REVIEWS,
)
STORED = tuple(resource for resource in RESOURCES if resource.stored)
NAMESPACED = tuple(resource for resource in STORED if resource.namespaced)
BY_PATH = {(r.group, r.version, r.plural): r for r in RESOURCES}
