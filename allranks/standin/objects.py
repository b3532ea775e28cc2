"""Small things that every part of the stand-in does with Kubernetes objects: copies, times, quantities, owners."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

Object = dict[str, Any]
"""A Kubernetes object as JSON. What the store hands out is shared: clone before changing it."""

_SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(|[numkMGTPE]|[KMGTPE]i)")


_LEAVES = frozenset((str, int, float, bool, type(None)))


def clone(value: Any) -> Any:
    """A deep copy of a JSON value."""
    # Every change of every object is copied more than once: leaves are not worth a call.
    if type(value) is dict:
        return {name: item if type(item) in _LEAVES else clone(item) for name, item in value.items()}
    if type(value) is list:
        return [item if type(item) in _LEAVES else clone(item) for item in value]
    return value


def timestamp(at: float | None = None) -> str:
    """RFC 3339 with whole seconds, as metav1.Time is written. `at` is Unix seconds; None is now."""
    return datetime.fromtimestamp(time.time() if at is None else at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(text: str) -> float:
    """Unix seconds of an RFC 3339 time; raises ValueError for anything else."""
    return datetime.fromisoformat(text).timestamp()


def quantity(value: Any) -> Decimal:
    """The number behind a resource quantity (`500m`, `2Gi`, `4`); raises ValueError for anything else."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"quantities must match the regular expression {_QUANTITY.pattern!r}, not {value!r}")
    try:
        return Decimal(match[1]) * _SUFFIXES[match[2]]
    except InvalidOperation as error:
        raise ValueError(f"not a quantity: {value!r}") from error


def namespace_of(obj: Object) -> str:
    return str(obj["metadata"].get("namespace", ""))


def name_of(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def labels_of(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def controller_of(obj: Object) -> Object | None:
    """The owner reference that controls this object, if any."""
    return next((ref for ref in obj["metadata"].get("ownerReferences") or () if ref.get("controller")), None)


def is_finished(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def condition_of(obj: Object, kind: str) -> Object | None:
    return next((c for c in obj.get("status", {}).get("conditions") or () if c["type"] == kind), None)


def set_condition(obj: Object, kind: str, value: str, reason: str = "", message: str = "") -> bool:
    """Sets a condition in place; its transition time moves only when the value does. True when anything changed."""
    conditions = obj.setdefault("status", {}).setdefault("conditions", [])
    now = timestamp()
    wanted: Object = {"type": kind, "status": value, "lastProbeTime": now, "lastTransitionTime": now}
    wanted |= ({"reason": reason} if reason else {}) | ({"message": message} if message else {})
    if obj.get("kind") != "Job":
        wanted["lastProbeTime"] = None
    for index, held in enumerate(conditions):
        if held["type"] == kind:
            if (held["status"], held.get("reason", ""), held.get("message", "")) == (value, reason, message):
                return False
            if held["status"] == value:
                wanted["lastTransitionTime"] = held["lastTransitionTime"]
            conditions[index] = wanted
            return True
    conditions.append(wanted)
    return True
