"""Writes schema.json, the fields and types of the kinds that the stand-in serves, from the Kubernetes client's models.

A tool for this project's developers, run when the client is updated: `python -m allranks.standin.make_schema`.
The server reads the file and never imports the client, which takes seconds.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOTS = {
    "Namespace": "V1Namespace",
    "Node": "V1Node",
    "Pod": "V1Pod",
    "Service": "V1Service",
    "ConfigMap": "V1ConfigMap",
    "Secret": "V1Secret",
    "Event": "CoreV1Event",
    "ServiceAccount": "V1ServiceAccount",
    "Job": "V1Job",
    "Lease": "V1Lease",
    "DaemonSet": "V1DaemonSet",
    "SelfSubjectAccessReview": "V1SelfSubjectAccessReview",
    "Eviction": "V1Eviction",
    "DeleteOptions": "V1DeleteOptions",
}
QUANTITIES = {"limits", "requests", "capacity", "allocatable", "overhead", "sizeLimit", "divisor", "hard"}
INT_OR_STRING = {"targetPort", "port", "maxUnavailable", "maxSurge"}


def _field(owner: str, name: str, declared: str, required: bool) -> str:
    if name in QUANTITIES and declared in ("str", "Dict[str, str]"):
        declared = declared.replace("str", "quantity") if declared == "str" else "Dict[str, quantity]"
    if name in INT_OR_STRING and not (owner == "V1ServicePort" and name == "port") and declared in ("str", "object"):
        declared = "int-or-string"
    return declared + ("!" if required else "")


def build() -> dict[str, Any]:
    """`{"kinds": {kind: type}, "types": {type: {field: declared type, "!" at the end where it is required}}}`."""
    import kubernetes.client.models as models

    types: dict[str, dict[str, str]] = {}
    waiting = list(ROOTS.values())
    while waiting:
        name = waiting.pop()
        if name in types:
            continue
        model = getattr(models, name)
        required = {field for field, info in model.model_fields.items() if info.is_required()}
        types[name] = {
            model.attribute_map[field]: _field(name, model.attribute_map[field], declared, field in required)
            for field, declared in sorted(model.openapi_types.items())
        }
        for declared in types[name].values():
            waiting += [part for part in re.findall(r"\w+", declared) if hasattr(models, part) and part not in types]
    return {"kinds": ROOTS, "types": dict(sorted(types.items()))}


def main() -> None:
    schema = build()
    lines = [f"  {json.dumps(name)}: {json.dumps(fields)}" for name, fields in schema["types"].items()]
    text = f'{{\n"kinds": {json.dumps(schema["kinds"])},\n"types": {{\n' + ",\n".join(lines) + "\n}\n}\n"
    Path(__file__).with_name("schema.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
