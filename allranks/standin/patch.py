"""The three kinds of patches: JSON patch (RFC 6902), merge patch (RFC 7386), strategic merge patch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from allranks.standin.errors import StatusError, bad_request
from allranks.standin.objects import Object, clone

MERGE_KEYS: dict[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "secrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "ownerReferences": "uid",
    "conditions": "type",
    "addresses": "type",
    "podIPs": "ip",
    "resourceClaims": "name",
}
"""Lists that strategic merge merges by a key (`ports`: see `_list_key`); other lists of objects are replaced."""

_PRIMITIVE_MERGED = {"finalizers"}


def check(content_type: str) -> None:
    """Raises StatusError 415 for what is not one of the three."""
    if content_type in _KINDS:
        return
    accepted = ", ".join(_KINDS)
    message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    if content_type.startswith("application/apply-patch"):
        message = f"server-side apply is not implemented by the stand-in; use client-side apply or one of: {accepted}"
    raise StatusError(415, "UnsupportedMediaType", message)


def apply(content_type: str, obj: Object, patch: Any) -> Object:
    """The patched copy of `obj`. Raises StatusError 400, 415 or 422."""
    check(content_type)
    return _as_object(_KINDS[content_type](obj, patch))


def merge(held: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return clone(patch)
    made = dict(held) if isinstance(held, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merge(made.get(name), value)
    return made


def strategic(held: Any, patch: Any) -> Any:
    """Kubernetes's strategic merge: lists of known kinds merge by key, with the `$patch`-style directives."""
    if not isinstance(patch, dict):
        return clone(patch)
    if patch.get("$patch") == "replace":
        return {name: clone(value) for name, value in patch.items() if name != "$patch"}
    if patch.get("$patch") == "delete":
        return {}
    made = dict(held) if isinstance(held, dict) else {}
    if "$retainKeys" in patch:
        made = {name: value for name, value in made.items() if name in patch["$retainKeys"]}
    for name, value in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.split("/", 1)[1]
            made[field] = [item for item in made.get(field) or () if item not in value]
        elif name.startswith("$"):
            continue
        elif value is None:
            made.pop(name, None)
        elif isinstance(value, list):
            made[name] = _merge_list(name, made.get(name) or [], value, patch.get(f"$setElementOrder/{name}"))
        else:
            made[name] = strategic(made.get(name), value)
    return made


def _list_key(name: str, items: Sequence[Any]) -> str | None:
    if name != "ports":
        return MERGE_KEYS.get(name)
    first = next((item for item in items if isinstance(item, dict)), {})
    return "containerPort" if "containerPort" in first else "port"


def _merge_list(name: str, held: list[Any], patch: list[Any], order: list[Any] | None) -> list[Any]:
    if name in _PRIMITIVE_MERGED:
        return held + [item for item in patch if item not in held]
    key = _list_key(name, [*held, *patch])
    if key is None or any(not isinstance(item, dict) for item in patch):
        return [clone(item) for item in patch]
    if {"$patch": "replace"} in patch:
        return [clone(item) for item in patch if item != {"$patch": "replace"}]
    made = {item.get(key): item for item in held}
    for item in patch:
        if key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        if item.get("$patch") == "delete":
            made.pop(item[key], None)
        else:
            made[item[key]] = strategic(made.get(item[key]), item)
    if order:
        wanted = {entry[key]: place for place, entry in enumerate(order)}
        return sorted(made.values(), key=lambda item: wanted.get(item.get(key), len(wanted)))
    return list(made.values())


def json_patch(obj: Object, operations: Any) -> Object:
    """RFC 6902, all six operations."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch must be a list of operations")
    made: Any = clone(obj)
    for operation in operations:
        try:
            made = _operate(made, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            why = f"the server rejected our request due to an error in our request: cannot {operation}: {error!r}"
            raise StatusError(422, "Invalid", why) from error
    return _as_object(made)


def _operate(doc: Any, operation: dict[str, Any]) -> Any:
    path = _pointer(operation["path"])
    match operation["op"]:
        case "add":
            return _set(doc, path, clone(operation["value"]), insert=True)
        case "replace":
            if path:
                _get(doc, path)
            return _set(doc, path, clone(operation["value"]), insert=False)
        case "remove":
            return _drop(doc, path)
        case "move":
            source = _pointer(operation["from"])
            value = _get(doc, source)
            return _set(_drop(doc, source), path, value, insert=True)
        case "copy":
            return _set(doc, path, clone(_get(doc, _pointer(operation["from"]))), insert=True)
        case "test":
            if _get(doc, path) != operation["value"]:
                raise ValueError(f"test failed at {operation['path']}")
            return doc
        case other:
            raise ValueError(f"unknown operation {other!r}")


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise ValueError(f"not a JSON pointer: {text!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _get(doc: Any, path: list[str]) -> Any:
    for part in path:
        doc = doc[int(part)] if isinstance(doc, list) else doc[part]
    return doc


def _set(doc: Any, path: list[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    parent, last = _get(doc, path[:-1]), path[-1]
    if isinstance(parent, list):
        index = len(parent) if last == "-" else int(last)
        if not 0 <= index <= len(parent):
            raise IndexError(index)
        if insert:
            parent.insert(index, value)
        else:
            parent[index] = value
    else:
        parent[last] = value
    return doc


def _drop(doc: Any, path: list[str]) -> Any:
    parent, last = _get(doc, path[:-1]), path[-1]
    del parent[int(last) if isinstance(parent, list) else last]
    return doc


def _as_object(value: Any) -> Object:
    if not isinstance(value, dict):
        raise bad_request("the patched value is not an object")
    return value


_KINDS = {
    "application/json-patch+json": json_patch,
    "application/merge-patch+json": merge,
    "application/strategic-merge-patch+json": strategic,
}
