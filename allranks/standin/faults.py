"""Faults that a test can switch on over HTTP: POST, GET and DELETE /standin/faults.

A fault is a JSON object: what it meets (`path`, a regular expression searched in a request's path, a pod's or a node's
name; `method`, `watch`), how often (`times`; absent is always), how long (`lasts` seconds from the first hit), and what
happens then (`kind` and its parameters). The answer tells its `id`; `hits`, `firstHit` and `lastHit` (Unix seconds) say
whether and when it happened.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from allranks.standin.errors import bad_request

REQUESTS = {
    "error": "answer with HTTP `code` (429, 500, 503 …; `retryAfter` seconds in the header) in place of the request",
    "delay": "wait `seconds` before the request is handled",
    "hang": "never answer",
    "disconnect": "close the connection in place of an answer",
    "forbid": "RBAC without `verbs` on `resources` (`pods`, `pods/log`, `*`): 403, and access reviews say so",
    "restart-api": "at once: every connection is dropped and none accepted for `seconds`; the state stays",
    "cut-log": "close the connection of a log stream after `bytes` bytes",
    "end-log": "end a log stream cleanly after `bytes` bytes, as an idle gap does",
    "hang-log": "a log stream says nothing more after `bytes` bytes, and stays open",
    "stop-at-rotation": "end followed logs cleanly when the file is rotated, as older kubelets do",
    "close-watch": "end a watch after `events` events",
    "expire-watch": "answer a watch with an ERROR event of code 410 after `events` events",
    "hang-watch": "a watch says nothing more after `events` events, and stays open",
}
PODS = {
    "forbid-pod": "admission refuses Job pods whose generateName `path` matches, with `message`",
    "bad-image": "images whose name `path` matches cannot be pulled; `message` is the registry's answer",
    "config-error": "the container cannot be configured (CreateContainerConfigError), for `message`",
    "evict-pod": "its kubelet evicts the pod for lack of memory: phase Failed, reason Evicted",
    "preempt-pod": "the scheduler deletes the pod for one of higher priority",
    "oom-kill": "`code` 137: all of the container is killed; 0: one of its processes, and the container ends with 0",
    "restart-container": "the container is killed and started again, whatever the restart policy",
    "stuck-pod": "its processes do not die of any signal: the pod stays Terminating",
}
NODES = {
    "node-lost": "no word from its kubelet, its processes stand still; Ready is Unknown after `seconds`",
    "node-not-ready": "its kubelet says that it is not ready; pods go on",
    "device-plugin": "`count` devices are allocatable, whatever the node has",
    "clock-skew": "the node's clock is `seconds` off, in log lines and status",
}
KINDS = REQUESTS | PODS | NODES


@dataclass(slots=True)
class Fault:
    """One row of the table of active faults."""

    kind: str
    path: str = ""
    method: str | None = None
    watch: bool | None = None
    times: int | None = None
    lasts: float | None = None
    after: float = 0.0
    """Seconds that a pod runs before it is met."""
    code: int = 500
    retryAfter: int | None = None
    seconds: float = 0.0
    tolerance: float | None = None
    """The most seconds that pods tolerate what happens to their node; absent: as their tolerations say."""
    count: int = 0
    bytes: int = 0
    events: int = 0
    message: str = ""
    verbs: tuple[str, ...] = ("*",)
    resources: tuple[str, ...] = ("*",)
    id: int = 0
    hits: int = 0
    firstHit: float | None = None
    lastHit: float | None = None
    _pattern: re.Pattern[str] = field(default_factory=lambda: re.compile(""), repr=False, compare=False)

    def meets(self, method: str, path: str, watch: bool) -> bool:
        if self.times is not None and self.hits >= self.times:
            return False
        if self.method not in (None, method) or self.watch not in (None, watch):
            return False
        return self.matches(path)

    def matches(self, name: str) -> bool:
        return self._pattern.search(name) is not None

    def forbids(self, verb: str, resource: str) -> bool:
        """For the kind `forbid`. `resource` is the plural, with its subresource: `pods/log`."""
        return bool({"*", verb}.intersection(self.verbs) and {"*", resource}.intersection(self.resources))

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}


Listener = Callable[[Fault], None]


class Faults:
    """The active faults, oldest first."""

    def __init__(self) -> None:
        self._active: dict[int, Fault] = {}
        self._ids = itertools.count(1)
        self._listeners: list[tuple[Listener, Listener]] = []
        self._over = asyncio.Event()

    def listen(self, begun: Listener, ended: Listener) -> None:
        """Calls `begun` with each new fault, and `ended` with each that is over."""
        self._listeners.append((begun, ended))

    def add(self, body: Any) -> Fault:
        """Raises StatusError 400 for a kind or a parameter that does not exist."""
        if not isinstance(body, dict) or body.get("kind") not in KINDS:
            raise bad_request(f"a fault needs a kind, one of: {', '.join(KINDS)}")
        offered = {f.name for f in fields(Fault)} - {"id", "hits", "firstHit", "lastHit", "_pattern"}
        if unknown := set(body) - offered:
            raise bad_request(
                f"no such parameter of a fault: {', '.join(sorted(unknown))}; there are {sorted(offered)}"
            )
        try:
            fault = Fault(**body, id=next(self._ids))
            fault._pattern = re.compile(fault.path)
        except (TypeError, re.error) as error:
            raise bad_request(f"not a fault: {error}") from error
        self._active[fault.id] = fault
        for begun, _ in self._listeners:
            begun(fault)
        return fault

    def remove(self, fault_id: int | None) -> None:
        """One fault, or all of them."""
        for number in tuple(self._active) if fault_id is None else (fault_id,):
            fault = self._active.pop(number, None)
            if fault is not None:
                for _, ended in self._listeners:
                    ended(fault)
        over, self._over = self._over, asyncio.Event()
        over.set()

    async def ended(self) -> None:
        """Returns when a fault that is active now has ended."""
        await self._over.wait()

    def list(self) -> list[dict[str, Any]]:
        return [fault.to_dict() for fault in self._active.values()]

    def standing(self, kind: str, name: str) -> Fault | None:
        """The first active fault of a kind about `name`; it is not counted."""
        return next((f for f in self._active.values() if f.kind == kind and f.matches(name)), None)

    def hit(self, kinds: tuple[str, ...], method: str, path: str, *, watch: bool = False) -> Fault | None:
        """The first active fault of these kinds that meets the request; it counts as used."""
        for fault in self._active.values():
            if fault.kind in kinds and fault.meets(method, path, watch):
                return self.used(fault)
        return None

    def forbidding(self, verb: str, resource: str, *, review: bool = False) -> Fault | None:
        """The RBAC rule that is missing for this, if any; being asked by a review is no use of it."""
        for fault in self._active.values():
            if fault.kind == "forbid" and fault.forbids(verb, resource):
                return fault if review else self.used(fault)
        return None

    def used(self, fault: Fault) -> Fault:
        fault.hits += 1
        fault.lastHit = time.time()
        fault.firstHit = fault.firstHit or fault.lastHit
        if fault.hits == 1 and fault.lasts is not None:
            asyncio.get_running_loop().call_later(fault.lasts, self.remove, fault.id)
        return fault
