"""What the API server refuses: the rules that a wrong manifest for these kinds runs into, in its words (422)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from allranks.standin import errors
from allranks.standin.errors import Cause
from allranks.standin.objects import Object, name_of, quantity
from allranks.standin.resources import CONFIG_MAPS, JOBS, NAMESPACES, PODS, SECRETS, SERVICES, Resource

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_QUALIFIED = re.compile(rf"({_SUBDOMAIN.pattern}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_MAX_CONFIG_BYTES = 1 << 20
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute", "", None)


def validate(resource: Resource, obj: Object, missing: Sequence[str] = ()) -> None:
    """Raises StatusError 422 that lists every cause. `missing` are absent required fields found while decoding."""
    causes = [Cause(path, "Required value", "") for path in missing if not path.startswith("status")]
    seen = {cause.field for cause in causes}
    causes += [cause for cause in _causes(resource, obj) if cause.field not in seen]
    if causes:
        raise errors.invalid(resource, name_of(obj), causes)


def validate_update(resource: Resource, new: Object, old: Object) -> None:
    """Raises StatusError 422 when a field changed that must not."""
    if resource is JOBS:
        causes = list(_job_changes(new["spec"], old["spec"]))
    elif resource is PODS:
        causes = list(_pod_changes(new["spec"], old["spec"]))
    elif resource in (CONFIG_MAPS, SECRETS) and old.get("immutable"):
        changed = any(new.get(part) != old.get(part) for part in ("data", "binaryData", "immutable"))
        causes = [Cause("data", "Forbidden", "field is immutable when `immutable` is set")] if changed else []
    else:
        return
    if causes:
        raise errors.invalid(resource, name_of(new), causes)


def _causes(resource: Resource, obj: Object) -> Iterator[Cause]:
    yield from _metadata(resource, obj["metadata"])
    if resource is PODS:
        yield from _required_spec(obj, _pod_spec)
    elif resource is JOBS:
        yield from _required_spec(obj, _job_spec)
    elif resource is SERVICES:
        if obj.get("spec", {}).get("clusterIP") != "None" and not obj.get("spec", {}).get("ports"):
            yield Cause("spec.ports", "Required value", "")
    elif resource in (CONFIG_MAPS, SECRETS):
        yield from _data(obj)


def _required_spec(obj: Object, check: Any) -> Iterator[Cause]:
    if "spec" not in obj:
        yield Cause("spec", "Required value", "")
    else:
        yield from check(obj["spec"], "spec")


def _metadata(resource: Resource, meta: dict[str, Any]) -> Iterator[Cause]:
    name = meta["name"]
    short = resource in (NAMESPACES, SERVICES)
    pattern, limit = (_LABEL, 63) if short else (_SUBDOMAIN, 253)
    if not pattern.fullmatch(name) or len(name) > limit:
        kind = "RFC 1123 label" if short else "RFC 1123 subdomain"
        why = f"a lowercase {kind} must consist of lower case alphanumeric characters or '-'"
        yield Cause("metadata.name", "Invalid value", f'"{name}": {why}, at most {limit} of them')
    for key, value in (meta.get("labels") or {}).items():
        if not _QUALIFIED.fullmatch(key):
            yield Cause(
                "metadata.labels", "Invalid value", f'"{key}": name part must consist of alphanumeric characters'
            )
        if not _LABEL_VALUE.fullmatch(value):
            why = "a valid label must be empty or consist of at most 63 alphanumeric characters, '-', '_' or '.'"
            yield Cause("metadata.labels", "Invalid value", f'"{value}": {why}')
    for index, owner in enumerate(meta.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                yield Cause(f"metadata.ownerReferences[{index}].{field}", "Invalid value", '"": must not be empty')


def _data(obj: Object) -> Iterator[Cause]:
    held = {**(obj.get("data") or {}), **(obj.get("binaryData") or {})}
    for key in held:
        if not _DATA_KEY.fullmatch(key):
            why = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
            yield Cause(f"data[{key}]", "Invalid value", f'"{key}": {why}')
    if sum(map(len, held.values())) > _MAX_CONFIG_BYTES:
        yield Cause("", "Too long", f"may not be more than {_MAX_CONFIG_BYTES} bytes")


def _pod_spec(spec: dict[str, Any], path: str) -> Iterator[Cause]:
    containers = spec.get("containers") or []
    if not containers:
        yield Cause(f"{path}.containers", "Required value", "")
    volumes = [volume.get("name", "") for volume in spec.get("volumes") or ()]
    yield from _unique(volumes, f"{path}.volumes", "name")
    for index, volume in enumerate(spec.get("volumes") or ()):
        if len(volume) != 2:
            what = "must specify a volume type" if len(volume) < 2 else "may not specify more than 1 volume type"
            yield Cause(f"{path}.volumes[{index}]", "Required value" if len(volume) < 2 else "Forbidden", what)
    named = [*(spec.get("initContainers") or ()), *containers]
    yield from _unique([container.get("name", "") for container in named], f"{path}.containers", "name")
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or ()):
            yield from _container(container, f"{path}.{field}[{index}]", volumes)
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        yield _unsupported(f"{path}.restartPolicy", spec.get("restartPolicy"), ("Always", "OnFailure", "Never"))
    for field in ("hostname", "subdomain"):
        if field in spec and (not _LABEL.fullmatch(spec[field]) or len(spec[field]) > 63):
            yield Cause(f"{path}.{field}", "Invalid value", f'"{spec[field]}": must be an RFC 1123 label')
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        yield _at_least(f"{path}.terminationGracePeriodSeconds", spec["terminationGracePeriodSeconds"], 0)
    yield from _tolerations(spec.get("tolerations") or (), f"{path}.tolerations")


def _tolerations(tolerations: Sequence[dict[str, Any]], path: str) -> Iterator[Cause]:
    for index, toleration in enumerate(tolerations):
        if toleration.get("effect") not in _EFFECTS:
            yield _unsupported(f"{path}[{index}].effect", toleration["effect"], _EFFECTS[:3])
        if toleration.get("operator", "Equal") not in ("Equal", "Exists"):
            yield _unsupported(f"{path}[{index}].operator", toleration["operator"], ("Equal", "Exists"))


def _container(container: dict[str, Any], path: str, volumes: Sequence[str]) -> Iterator[Cause]:
    name = container.get("name", "")
    if name and (not _LABEL.fullmatch(name) or len(name) > 63):
        yield Cause(f"{path}.name", "Invalid value", f'"{name}": must be an RFC 1123 label')
    if not container.get("image"):
        yield Cause(f"{path}.image", "Required value", "")
    mounts = container.get("volumeMounts") or ()
    for index, mount in enumerate(mounts):
        if mount.get("name") not in volumes:
            yield Cause(f"{path}.volumeMounts[{index}].name", "Not found", f'"{mount.get("name")}"')
    yield from _unique(
        [mount.get("mountPath", "") for mount in mounts], f"{path}.volumeMounts", "mountPath", "must be unique"
    )
    for index, env in enumerate(container.get("env") or ()):
        if "value" in env and "valueFrom" in env:
            yield Cause(
                f"{path}.env[{index}].valueFrom", "Invalid value", '"": may not be specified when `value` is not empty'
            )
        if not re.fullmatch(r"[^=\x00]+", env.get("name", "")):
            yield Cause(
                f"{path}.env[{index}].name", "Invalid value", f'"{env.get("name", "")}": must not be empty or hold "="'
            )
    yield from _resources(container.get("resources") or {}, f"{path}.resources")


def _resources(resources: dict[str, Any], path: str) -> Iterator[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, held in (("limits", limits), ("requests", requests)):
        for name, value in held.items():
            if (
                "/" not in name
                and name not in ("cpu", "memory", "ephemeral-storage")
                and not name.startswith("hugepages-")
            ):
                yield Cause(
                    f"{path}.{kind}[{name}]",
                    "Invalid value",
                    f'"{name}": must be a standard resource type or fully qualified',
                )
            elif quantity(value) < 0:
                yield _at_least(f"{path}.{kind}[{name}]", value, 0)
            elif "/" in name and quantity(value) % 1:
                yield Cause(f"{path}.{kind}[{name}]", "Invalid value", f'"{value}": must be an integer')
    for name, value in requests.items():
        exact = "/" in name or name.startswith("hugepages-")
        if exact and name not in limits:
            yield Cause(f"{path}.limits", "Required value", "Limit must be set for non overcommitable resources")
        elif exact and quantity(limits[name]) != quantity(value):
            yield Cause(
                f"{path}.requests", "Invalid value", f'"{value}": must be equal to {name} limit of {limits[name]}'
            )
        elif name in limits and quantity(value) > quantity(limits[name]):
            yield Cause(
                f"{path}.requests",
                "Invalid value",
                f'"{value}": must be less than or equal to {name} limit of {limits[name]}',
            )


def _job_spec(spec: dict[str, Any], path: str) -> Iterator[Cause]:
    for field in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        if Decimal(spec.get(field, 0)) < 0:
            yield _at_least(f"{path}.{field}", spec[field], 0)
    template = spec.get("template") or {}
    pod = template.get("spec")
    if pod is None:
        yield Cause(f"{path}.template.spec", "Required value", "")
        return
    yield from (c for c in _pod_spec(pod, f"{path}.template.spec") if c.field != f"{path}.template.spec.restartPolicy")
    if pod.get("restartPolicy") not in ("OnFailure", "Never"):
        given = pod.get("restartPolicy")
        if given == "Always":
            yield Cause(f"{path}.template.spec.restartPolicy", "Required value", 'valid values: "OnFailure", "Never"')
        else:
            yield _unsupported(f"{path}.template.spec.restartPolicy", given, ("OnFailure", "Never"))
    if spec.get("completionMode") not in ("Indexed", "NonIndexed"):
        yield _unsupported(f"{path}.completionMode", spec.get("completionMode"), ("Indexed", "NonIndexed"))
    elif spec["completionMode"] == "Indexed" and "completions" not in spec:
        yield Cause(f"{path}.completions", "Required value", "when completion mode is Indexed")
    policy = spec.get("podFailurePolicy")
    if policy is not None:
        yield from _failure_policy(policy, pod, f"{path}.podFailurePolicy")


def _failure_policy(policy: dict[str, Any], pod: dict[str, Any], path: str) -> Iterator[Cause]:
    if pod.get("restartPolicy") != "Never":
        where = "spec.template.spec.restartPolicy"
        yield Cause(
            where,
            "Invalid value",
            f'"{pod.get("restartPolicy")}": only "Never" is supported when podFailurePolicy is specified',
        )
    for index, rule in enumerate(policy.get("rules") or ()):
        here = f"{path}.rules[{index}]"
        if rule.get("action") not in ("FailJob", "Ignore", "Count", "FailIndex"):
            yield _unsupported(f"{here}.action", rule.get("action"), ("Count", "FailIndex", "FailJob", "Ignore"))
        if bool(rule.get("onExitCodes")) == bool(rule.get("onPodConditions")):
            yield Cause(
                here, "Invalid value", "specifying one of OnExitCodes and OnPodConditions is required, not both"
            )
        codes = rule.get("onExitCodes")
        if codes and codes.get("operator") not in ("In", "NotIn"):
            yield _unsupported(f"{here}.onExitCodes.operator", codes.get("operator"), ("In", "NotIn"))
        if codes and not codes.get("values"):
            yield Cause(f"{here}.onExitCodes.values", "Invalid value", "[]: at least one value is required")
        if codes and codes.get("operator") == "In" and 0 in (codes.get("values") or ()):
            yield Cause(f"{here}.onExitCodes.values", "Invalid value", "0: must not be 0 for the In operator")


def _job_changes(new: dict[str, Any], old: dict[str, Any]) -> Iterator[Cause]:
    fixed = ["selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
    if old.get("completionMode") != "Indexed" or new.get("completions") != new.get("parallelism"):
        fixed.append("completions")
    for field in fixed:
        if new.get(field) != old.get(field):
            yield Cause(f"spec.{field}", "Invalid value", "field is immutable")
    before, after = dict(old["template"]), dict(new["template"])
    if old.get("suspend"):
        # A suspended Job may still be steered to other nodes, as a queueing system does.
        for part in ("metadata", "spec"):
            before[part], after[part] = dict(before.get(part) or {}), dict(after.get(part) or {})
        for field in ("nodeSelector", "tolerations", "affinity", "schedulingGates"):
            before["spec"].pop(field, None)
            after["spec"].pop(field, None)
        for field in ("annotations", "labels"):
            before["metadata"].pop(field, None)
            after["metadata"].pop(field, None)
    if before != after:
        yield Cause("spec.template", "Invalid value", "field is immutable")


def _pod_changes(new: dict[str, Any], old: dict[str, Any]) -> Iterator[Cause]:
    def fixed(spec: dict[str, Any]) -> dict[str, Any]:
        free = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")
        kept = {name: value for name, value in spec.items() if name not in free}
        for field in ("containers", "initContainers"):
            kept[field] = [{**container, "image": None} for container in spec.get(field) or ()]
        return kept

    if fixed(new) != fixed(old):
        why = (
            "pod updates may not change fields other than `spec.containers[*].image`, `spec.initContainers[*].image`, "
        )
        why += "`spec.activeDeadlineSeconds`, `spec.tolerations` (only additions to existing tolerations)"
        yield Cause("spec", "Forbidden", why)


def _unique(names: Iterable[str], path: str, field: str, message: str = "") -> Iterator[Cause]:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield Cause(f"{path}[{index}].{field}", "Duplicate value" if not message else "Invalid value",
                        f'"{name}"' + (f": {message}" if message else ""))  # fmt: skip
        seen.add(name)


def _unsupported(path: str, value: Any, offered: Iterable[Any]) -> Cause:
    listed = ", ".join(f'"{name}"' for name in offered)
    return Cause(path, "Unsupported value", f'"{value if value is not None else ""}": supported values: {listed}')


def _at_least(path: str, value: Any, least: int) -> Cause:
    return Cause(path, "Invalid value", f"{value}: must be greater than or equal to {least}")
