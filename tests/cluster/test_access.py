"""Permissions: what is asked before a run is what manifests/rbac.yaml grants, and what is missing is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from allranks.cluster import access

RBAC = Path(__file__).resolve().parents[2] / "manifests" / "rbac.yaml"


def granted(role: str) -> dict[tuple[str, str], set[str]]:
    for thing in yaml.safe_load_all(RBAC.read_text()):
        if thing["kind"] in ("ClusterRole", "Role") and thing["metadata"]["name"] == role:
            return {
                (group, resource): set(rule["verbs"])
                for rule in thing["rules"]
                for group in rule["apiGroups"]
                for resource in rule["resources"]
            }
    raise AssertionError(role)


def asked(permissions: Any) -> dict[tuple[str, str], set[str]]:
    return {(each.group, each.resource): set(each.verbs) for each in permissions}


def test_what_is_granted_is_what_is_asked_no_more_and_no_less() -> None:
    assert granted("allranks-cluster") == asked(access.ON_CLUSTER)
    assert granted("allranks-own-namespaces") == asked(access.OWN_NAMESPACE)
    assert granted("allranks-run") == asked(access.IN_NAMESPACE)
    assert granted("allranks-leases") == asked(access.LEASES)


def test_every_role_is_bound() -> None:
    things = list(yaml.safe_load_all(RBAC.read_text()))
    roles = {thing["metadata"]["name"] for thing in things if thing["kind"] in ("ClusterRole", "Role")}
    bound = {thing["roleRef"]["name"] for thing in things if thing["kind"].endswith("Binding")}
    assert roles == bound
