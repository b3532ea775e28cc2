"""What a container process is given: environment, command line, working directory, with paths and names made local."""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.standin.objects import Object, labels_of, name_of, namespace_of, quantity
from allranks.standin.resources import CONFIG_MAPS, SECRETS
from allranks.standin.store import Store

_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_INHERITED = ("HOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "USER")
_MAPPED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ConfigError(Exception):
    """A container that cannot be created as configured (CreateContainerConfigError); the message is the kubelet's."""


def expand(text: str, env: Mapping[str, str]) -> str:
    """Kubernetes's `$(NAME)`: replaced when the name is known, `$$` is a plain `$`."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[1] is None else env.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)


class Rewriter:
    """Replaces paths inside the container by the local ones, wherever they stand as a path's beginning."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = {path.rstrip("/"): str(local) for path, local in paths.items() if path.strip("/")}
        ordered = sorted(self._paths, key=len, reverse=True)
        alternatives = "|".join(re.escape(path) for path in ordered)
        self._pattern = re.compile(rf"(?<![\w./-])({alternatives})(?![\w.-])") if ordered else None

    def __call__(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._paths[match[1]], text)


def field_value(pod: Object, path: str) -> str:
    """The value of a downward API fieldRef. Raises ConfigError for a field that is not offered."""
    if match := _MAPPED.fullmatch(path):
        return str((pod["metadata"].get(match[1]) or {}).get(match[2], ""))
    spec, status = pod["spec"], pod.get("status", {})
    fields: dict[str, Callable[[], Any]] = {
        "metadata.name": lambda: name_of(pod),
        "metadata.namespace": lambda: namespace_of(pod),
        "metadata.uid": lambda: pod["metadata"]["uid"],
        "metadata.labels": lambda: _pairs(labels_of(pod)),
        "metadata.annotations": lambda: _pairs(pod["metadata"].get("annotations") or {}),
        "spec.nodeName": lambda: spec.get("nodeName", ""),
        "spec.serviceAccountName": lambda: spec.get("serviceAccountName", "default"),
        "status.podIP": lambda: status.get("podIP", ""),
        "status.podIPs": lambda: ",".join(entry["ip"] for entry in status.get("podIPs") or ()),
        "status.hostIP": lambda: status.get("hostIP", ""),
        "status.hostIPs": lambda: status.get("hostIP", ""),
    }
    if path not in fields:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return str(fields[path]())


def _pairs(values: Mapping[str, str]) -> str:
    return "\n".join(f'{name}="{value}"' for name, value in sorted(values.items()))


def resource_value(pod: Object, container: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """The value of a downward API resourceFieldRef, rounded up in units of its divisor."""
    named = reference.get("containerName")
    if named:
        container = next((c for c in pod["spec"]["containers"] if c["name"] == named), container)
    kind, _, resource = reference["resource"].partition(".")
    held = (container.get("resources") or {}).get(kind) or {}
    divisor = quantity(reference.get("divisor") or "1") or quantity("1")
    return str(-int(-quantity(held.get(resource, "0")) // divisor))


def data_of(store: Store, namespace: str, source: str, name: str) -> dict[str, bytes] | None:
    """The entries of a ConfigMap (`configmap`) or Secret (`secret`), or None when there is none."""
    obj = store.find(CONFIG_MAPS if source == "configmap" else SECRETS, namespace, name)
    if obj is None:
        return None
    if source == "secret":
        return {key: base64.b64decode(value) for key, value in (obj.get("data") or {}).items()}
    entries = {key: value.encode() for key, value in (obj.get("data") or {}).items()}
    return entries | {key: base64.b64decode(value) for key, value in (obj.get("binaryData") or {}).items()}


def _reference(store: Store, pod: Object, source: str, selector: Mapping[str, Any]) -> str | None:
    """The value of a configMapKeyRef or secretKeyRef; None when it is optional and absent."""
    name, key = selector.get("name", ""), selector["key"]
    data = data_of(store, namespace_of(pod), source, name)
    if data is not None and key in data:
        return data[key].decode(errors="replace")
    if selector.get("optional"):
        return None
    if data is None:
        raise ConfigError(f'{source} "{name}" not found')
    label = "ConfigMap" if source == "configmap" else "Secret"
    raise ConfigError(f"couldn't find key {key} in {label} {namespace_of(pod)}/{name}")


def declared(store: Store, pod: Object, container: Mapping[str, Any]) -> dict[str, str]:
    """The environment that the manifest declares, in order, `$(NAME)` expanded. Raises ConfigError."""
    env: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        kind, selector = (
            ("configmap", source.get("configMapRef")) if "configMapRef" in source else ("secret", source["secretRef"])
        )
        data = data_of(store, namespace_of(pod), kind, selector["name"])
        if data is None and not selector.get("optional"):
            raise ConfigError(f'{kind} "{selector["name"]}" not found')
        prefix = source.get("prefix", "")
        env |= {prefix + key: value.decode(errors="replace") for key, value in (data or {}).items()}
    for entry in container.get("env") or ():
        value = _value(store, pod, container, entry, env)
        if value is not None:
            env[entry["name"]] = value
    return env


def _value(
    store: Store, pod: Object, container: Mapping[str, Any], entry: Mapping[str, Any], env: Mapping[str, str]
) -> str | None:
    source = entry.get("valueFrom")
    if not source:
        return expand(entry.get("value", ""), env)
    if "fieldRef" in source:
        return field_value(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return resource_value(pod, container, source["resourceFieldRef"])
    if "configMapKeyRef" in source:
        return _reference(store, pod, "configmap", source["configMapKeyRef"])
    if "secretKeyRef" in source:
        return _reference(store, pod, "secret", source["secretKeyRef"])
    raise ConfigError(f"env {entry['name']}: unsupported source: {', '.join(source)}")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a container process is started with."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path


def surroundings(
    store: Store,
    pod: Object,
    container: Mapping[str, Any],
    *,
    base: Mapping[str, str],
    local: Rewriter,
    resolve: Callable[[str], str],
    scratch: Path,
) -> Surroundings:
    """Puts it together. `base` is what the kubelet adds; `scratch` is the pod's own directory. Raises ConfigError."""
    given = declared(store, pod, container)
    argv = [expand(part, given) for part in (*(container.get("command") or ()), *(container.get("args") or ()))]
    if not container.get("command"):
        raise ConfigError(
            f'container "{container["name"]}" has no command: the stand-in pulls no images and knows no entrypoint'
        )

    def here(text: str) -> str:
        return resolve(local(text))

    env = inherited() | {"TMPDIR": str(scratch / "tmp"), "HOSTNAME": pod["spec"].get("hostname", name_of(pod))}
    env |= dict(base) | {name: here(value) for name, value in given.items()}
    cwd = Path(here(container.get("workingDir") or str(scratch / "tmp")))
    return Surroundings(tuple(here(part) for part in argv), env, cwd)


def inherited() -> dict[str, str]:
    """What of the stand-in's own environment a container sees: no more than what programs need to start."""
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    interpreter = str(Path(sys.executable).parent)
    env["PATH"] = os.pathsep.join([interpreter, os.environ.get("PATH", os.defpath)])
    loopback = "lo" if sys.platform == "linux" else "lo0"
    # Gloo and the tensor pipe look up the host's name for an interface, which need not resolve here.
    return env | dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), loopback)
