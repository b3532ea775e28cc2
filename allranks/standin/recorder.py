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
        for held in reversed(self._store.list(EVENTS, namespace)):
            same = {name: value for name, value in held["involvedObject"].items() if name != "resourceVersion"}
            if same == involved and (held["reason"], held["message"]) == (reason, message):
                self._count(held)
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
        self._store.create(EVENTS, event)

    def _count(self, held: Object) -> None:
        def again(event: Object) -> None:
            event["count"] = event.get("count", 1) + 1
            event["lastTimestamp"] = timestamp()

        self._store.mutate(EVENTS, namespace_of(held), name_of(held), again)
