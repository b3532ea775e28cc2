"""Pod addresses and DNS names.

Every pod gets a loopback address of its own (Linux) or shares 127.0.0.1 (elsewhere). No resolver can be configured
without root, so the kubelet replaces pod names in the environment and the arguments of containers by the addresses.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator

from allranks.standin import selectors
from allranks.standin.objects import Object, labels_of, name_of, namespace_of
from allranks.standin.resources import JOBS, PODS, SERVICES
from allranks.standin.store import Store

_NAME = re.compile(
    r"(?<![\w.-])([a-z0-9](?:[a-z0-9-]*[a-z0-9])?)\.([a-z0-9](?:[a-z0-9-]*[a-z0-9])?)"
    r"(?:\.([a-z0-9](?:[a-z0-9-]*[a-z0-9])?)(?:\.svc(?:\.cluster\.local)?)?)?(?![\w-]|\.\w)"
)


class Addresses:
    """Gives out loopback addresses; one for (namespace, hostname, subdomain) is known before its pod exists."""

    def __init__(self, instance: str) -> None:
        # Stand-ins on one machine start in different /16 networks, so that fixed ports seldom meet.
        self._second = hashlib.sha256(instance.encode()).digest()[0] % 254 + 1
        self._count = itertools.count(1)
        self._named: dict[tuple[str, str, str], str] = {}

    def fresh(self) -> str:
        if sys.platform != "linux":
            return "127.0.0.1"
        high, low = divmod(next(self._count), 254)
        return f"127.{self._second}.{high % 256}.{low + 1}"

    def of_pod(self, pod: Object) -> str:
        spec = pod["spec"]
        if not spec.get("subdomain"):
            return self.fresh()
        return self.named(namespace_of(pod), spec.get("hostname", name_of(pod)), spec["subdomain"])

    def named(self, namespace: str, hostname: str, subdomain: str) -> str:
        key = (namespace, hostname, subdomain)
        if key not in self._named:
            self._named[key] = self.fresh()
        return self._named[key]


def resolver(store: Store, addresses: Addresses, namespace: str) -> Callable[[str], str]:
    """A function that replaces the pod names in a text, as seen from a pod in `namespace`.

    A name counts when a headless Service of that name selects a pod, or a Job's pods to be, of that host name. Anything
    else (`workloads.bert`, a name whose Service is missing) stays as it is, and resolves or fails as written.
    """

    def replace(match: re.Match[str]) -> str:
        host, subdomain, where = match[1], match[2], match[3] or namespace
        service = store.find(SERVICES, where, subdomain)
        if service is None or service["spec"].get("clusterIP") != "None":
            return match[0]
        if not any(
            host == name and _selects(service, labels) for name, labels in _hosts(store, where, subdomain, host)
        ):
            return match[0]
        return addresses.named(where, host, subdomain)

    return lambda text: _NAME.sub(replace, text)


def _selects(service: Object, labels: dict[str, str]) -> bool:
    wanted = service["spec"].get("selector")
    return bool(wanted) and selectors.matches_labels({"matchLabels": wanted}, labels)


def _hosts(store: Store, namespace: str, subdomain: str, host: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Host names below a subdomain, with the labels of their pods, for pods that Jobs (will) make and pods that are."""
    prefix, _, index = host.rpartition("-")
    job = store.find(JOBS, namespace, prefix)
    if job is not None and index.isdigit() and int(index) < (job["spec"].get("completions") or 0):
        template = job["spec"]["template"]
        if template["spec"].get("subdomain") == subdomain and job["spec"]["completionMode"] == "Indexed":
            yield host, template["metadata"]["labels"]
    for pod in store.list(PODS, namespace):
        if pod["spec"].get("subdomain") == subdomain:
            yield pod["spec"].get("hostname", name_of(pod)), labels_of(pod)
