"""Events, as the components of a cluster record them: repeated ones are counted, not multiplied."""

from __future__ import annotations

import time

from allranks.standin.objects import Object, name_of, namespace_of, timestamp
from allranks.standin.resources import EVENTS
from allranks.standin.store import Store


class Recorder:
    """Records events under one component's name."""

    def __init__(self, store: Store, component: str, host: str = "") -> None:
        self._store = store
        self._component = component
        self._host = host
        self._recorded: dict[tuple[str, str, str, str], str] = {}

    def normal(self, about: Object, reason: str, message: str, field: str = "") -> None:
        self._record(about, "Normal", reason, message, field)

    def warning(self, about: Object, reason: str, message: str, field: str = "") -> None:
        self._record(about, "Warning", reason, message, field)

    def _record(self, about: Object, kind: str, reason: str, message: str, field: str) -> None:
        namespace = namespace_of(about) or "default"
        involved = {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": name_of(about),
            "namespace": namespace_of(about),
            "uid": about["metadata"]["uid"],
        } | ({"fieldPath": field} if field else {})
        key = (about["metadata"]["uid"], field, reason, message)
        if key in self._recorded and self._count(namespace, self._recorded[key]):
            return
        now = timestamp()
        event: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name_of(about)}.{time.time_ns():x}", "namespace": namespace},
            "involvedObject": involved | {"resourceVersion": about["metadata"].get("resourceVersion", "")},
            "reason": reason,
            "message": message,
            "type": kind,
            "source": {"component": self._component} | ({"host": self._host} if self._host else {}),
            "reportingComponent": self._component,
            "reportingInstance": self._host,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "eventTime": None,
            "count": 1,
        }
        self._recorded[key] = name_of(self._store.create(EVENTS, event))

    def _count(self, namespace: str, name: str) -> bool:
        """One more of an event that is recorded already. False when it is gone."""

        def again(event: Object) -> None:
            event["count"] = event.get("count", 1) + 1
            event["lastTimestamp"] = timestamp()

        return self._store.mutate(EVENTS, namespace, name, again) is not None
