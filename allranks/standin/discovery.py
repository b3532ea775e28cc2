"""What the server says of itself: /version, /api, /apis and as much OpenAPI as clients look for."""

from __future__ import annotations

import platform
from typing import Any

from allranks.standin.decode import schema
from allranks.standin.resources import RESOURCES, Resource

VERSION = {
    "major": "1",
    "minor": "34",
    "gitVersion": "v1.34.0-standin",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "python",
    "platform": f"{platform.system().lower()}/{platform.machine()}",
}
_SUBRESOURCE_KINDS = {"eviction": {"group": "policy", "version": "v1", "kind": "Eviction"}}
_SUBRESOURCE_VERBS = {"status": ["get", "patch", "update"], "log": ["get"], "eviction": ["create"]}


def _groups() -> dict[str, list[Resource]]:
    groups: dict[str, list[Resource]] = {}
    for resource in RESOURCES:
        if resource.group:
            groups.setdefault(resource.group, []).append(resource)
    return groups


def _group(name: str, resources: list[Resource]) -> dict[str, Any]:
    version = {"groupVersion": resources[0].api_version, "version": resources[0].version}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resource_list(api_version: str, resources: list[Resource]) -> dict[str, Any]:
    listed: list[dict[str, Any]] = []
    for resource in resources:
        listed.append(
            {
                "name": resource.plural,
                "singularName": resource.singular,
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": list(resource.verbs),
                "shortNames": list(resource.short_names),
                "categories": list(resource.categories),
            }
        )
        for sub in resource.subresources:
            kind = _SUBRESOURCE_KINDS.get(sub, {"kind": resource.kind})
            names = {"name": f"{resource.plural}/{sub}", "singularName": "", "namespaced": resource.namespaced}
            listed.append(names | kind | {"verbs": _SUBRESOURCE_VERBS[sub]})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": listed}


def document(path: str, host: str) -> dict[str, Any] | None:
    """The discovery document at `path`, or None when there is none."""
    groups = _groups()
    fixed: dict[str, dict[str, Any]] = {
        "/version": VERSION,
        "/api": {
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
        },
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [_group(name, resources) for name, resources in groups.items()],
        },
        "/api/v1": _resource_list("v1", [r for r in RESOURCES if not r.group]),
        "/openapi/v3": {"paths": {p: {"serverRelativeURL": f"/openapi/v3/{p}"} for p in _openapi_paths()}},
    }
    if path in fixed:
        return fixed[path]
    if path.startswith("/openapi/v3/"):
        return _openapi(path.removeprefix("/openapi/v3/"))
    for name, resources in groups.items():
        if path == f"/apis/{name}":
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, resources)}
        if path == f"/apis/{resources[0].api_version}":
            return _resource_list(resources[0].api_version, resources)
    return None


def _prefix(resource: Resource) -> str:
    return f"apis/{resource.api_version}" if resource.group else "api/v1"


def _openapi_paths() -> list[str]:
    return sorted({_prefix(resource) for resource in RESOURCES})


def _openapi(prefix: str) -> dict[str, Any] | None:
    """OpenAPI v3 of one group: its types, and operations with `fieldValidation` (kubectl then leaves that to us)."""
    served = [resource for resource in RESOURCES if _prefix(resource) == prefix]
    if not served:
        return None
    validation = {"name": "fieldValidation", "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    dry_run = {"name": "dryRun", "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    paths: dict[str, Any] = {}
    for resource in served:
        where = f"/{prefix}/" + ("namespaces/{namespace}/" if resource.namespaced else "") + resource.plural
        about = {
            "parameters": [validation, dry_run],
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-group-version-kind": {
                "group": resource.group,
                "version": resource.version,
                "kind": resource.kind,
            },
        }
        paths[where] = {"post": about}
        if resource.stored:
            # Without strategic-merge-patch in the request body kubectl takes the list keys from its own types.
            patch = about | {"requestBody": {"content": {"application/merge-patch+json": {"schema": {}}}}}
            paths[where + "/{name}"] = {"patch": patch, "put": about}
    info = {"title": "allranks stand-in", "version": VERSION["gitVersion"]}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": _schemas(served)}}


def _schemas(served: list[Resource]) -> dict[str, Any]:
    known = schema()
    made: dict[str, Any] = {}
    waiting = [known["kinds"][resource.kind] for resource in served]
    while waiting:
        name = waiting.pop()
        if name in made:
            continue
        fields = known["types"][name]
        made[name] = {"type": "object", "properties": {f: _property(t.rstrip("!"), waiting) for f, t in fields.items()}}
    for resource in served:
        gvk = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        made[known["kinds"][resource.kind]]["x-kubernetes-group-version-kind"] = [gvk]
    return made


def _property(declared: str, waiting: list[str]) -> dict[str, Any]:
    if declared.startswith("List["):
        return {"type": "array", "items": _property(declared[5:-1], waiting)}
    if declared.startswith("Dict["):
        return {"type": "object", "additionalProperties": _property(declared[10:-1], waiting)}
    plain: dict[str, dict[str, Any]] = {
        "str": {"type": "string"},
        "bytes": {"type": "string", "format": "byte"},
        "datetime": {"type": "string", "format": "date-time"},
        "int": {"type": "integer"},
        "bool": {"type": "boolean"},
        "object": {"type": "object"},
        "int-or-string": {"type": "string", "format": "int-or-string"},
        "quantity": {"type": "string"},
    }
    if declared in plain:
        return plain[declared]
    waiting.append(declared)
    return {"$ref": f"#/components/schemas/{declared}"}
