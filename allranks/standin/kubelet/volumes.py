"""Volumes as directories of the pod, and where the containers' mounts lie on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allranks.standin.kubelet.environment import data_of, field_value, resource_value
from allranks.standin.objects import Object, namespace_of
from allranks.standin.store import Store


class MountError(Exception):
    """A volume that cannot be set up (yet); the message is the kubelet's FailedMount."""


def set_up(store: Store, pod: Object, root: Path) -> dict[str, Path]:
    """Makes all volumes of a pod below `root`. Returns where each is. Raises MountError."""
    return {volume["name"]: _set_up(store, pod, volume, root) for volume in pod["spec"].get("volumes") or ()}


def _set_up(store: Store, pod: Object, volume: Mapping[str, Any], root: Path) -> Path:
    name: str = volume["name"]
    if "hostPath" in volume:
        return _host_path(name, volume["hostPath"])
    path = root / name
    path.mkdir(parents=True, exist_ok=True)
    if "emptyDir" in volume:
        return path
    if "projected" in volume:
        mode = volume["projected"].get("defaultMode", 0o644)
        for source in volume["projected"].get("sources") or ():
            _write(path, _entries(store, pod, name, source, "name"), mode)
        return path
    if not {"configMap", "secret", "downwardAPI"} & set(volume):
        kind = next((key for key in volume if key != "name"), "none")
        raise MountError(f'MountVolume.SetUp failed for volume "{name}" : the stand-in has no volumes of type {kind}')
    source = next(volume[key] for key in ("configMap", "secret", "downwardAPI") if key in volume)
    _write(path, _entries(store, pod, name, volume, "secretName"), source.get("defaultMode", 0o644))
    return path


def _host_path(name: str, source: Mapping[str, Any]) -> Path:
    path, kind = Path(source["path"]), source.get("type", "")
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "Directory" and not path.is_dir():
        raise MountError(
            f'MountVolume.SetUp failed for volume "{name}" : hostPath type check failed: {path} is not a directory'
        )
    return path


def _entries(
    store: Store, pod: Object, volume: str, source: Mapping[str, Any], secret_key: str
) -> dict[str, tuple[bytes, int | None]]:
    """Relative path → content and mode of one ConfigMap, Secret or downward API source."""
    if "downwardAPI" in source:
        return {
            item["path"]: (_downward(pod, item), item.get("mode")) for item in source["downwardAPI"].get("items") or ()
        }
    for key, kind, label in (("configMap", "configmap", "name"), ("secret", "secret", secret_key)):
        if key in source:
            selector = source[key]
            return _selected(store, pod, volume, kind, selector[label], selector)
    return {}


def _downward(pod: Object, item: Mapping[str, Any]) -> bytes:
    if "fieldRef" in item:
        return field_value(pod, item["fieldRef"]["fieldPath"]).encode()
    return resource_value(pod, pod["spec"]["containers"][0], item["resourceFieldRef"]).encode()


def _selected(
    store: Store, pod: Object, volume: str, kind: str, name: str, selector: Mapping[str, Any]
) -> dict[str, tuple[bytes, int | None]]:
    data = data_of(store, namespace_of(pod), kind, name)
    failed = f'MountVolume.SetUp failed for volume "{volume}" : '
    if data is None:
        if selector.get("optional"):
            return {}
        raise MountError(f'{failed}{kind} "{name}" not found')
    items: Sequence[Mapping[str, Any]] = selector.get("items") or [{"key": key, "path": key} for key in data]
    entries: dict[str, tuple[bytes, int | None]] = {}
    for item in items:
        if item["key"] in data:
            entries[item["path"]] = (data[item["key"]], item.get("mode"))
        elif not selector.get("optional"):
            raise MountError(f"{failed}references non-existent config key: {item['key']}")
    return entries


def _write(root: Path, entries: Mapping[str, tuple[bytes, int | None]], default_mode: int) -> None:
    for relative, (content, mode) in entries.items():
        path = root / relative
        if not path.resolve().is_relative_to(root.resolve()):
            raise MountError(f"invalid path in a volume: {relative}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        os.chmod(path, (mode if mode is not None else default_mode) | 0o400)  # noqa: PTH101


def mounts(container: Mapping[str, Any], volumes: Mapping[str, Path]) -> dict[str, Path]:
    """Where the mount paths of one container lie."""
    placed: dict[str, Path] = {}
    for mount in container.get("volumeMounts") or ():
        path = volumes[mount["name"]]
        if mount.get("subPath"):
            path = path / mount["subPath"]
            if not path.exists():
                path.mkdir(parents=True)
        placed[mount["mountPath"]] = path
    return placed
