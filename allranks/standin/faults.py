"""Faults that a test can switch on over HTTP: POST, GET and DELETE /standin/faults.

A fault is a JSON object: which requests it meets (`method`, `path` as a regular expression searched in the path,
`watch`), how often (`times`; absent is always), and what happens to them (`kind` and its parameters).
"""

from __future__ import annotations

import itertools
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from allranks.standin.errors import bad_request

KINDS = {
    "error": "answer with HTTP `code` (429, 500, 503 …; `retryAfter` seconds in the header) in place of the request",
    "delay": "wait `seconds` before the request is handled",
    "hang": "never answer",
    "disconnect": "close the connection in place of an answer",
    "forbid-pod": "admission refuses Job pods whose generateName `path` matches, with `message`",
    "bad-image": "refuse to pull images whose name `path` matches",
    "cut-log": "close the connection of a log stream after `bytes` bytes",
    "end-log": "end a log stream cleanly after `bytes` bytes, as an idle gap does",
    "stop-at-rotation": "end followed logs cleanly when the file is rotated, as older kubelets do",
    "close-watch": "end a watch after `events` events",
    "expire-watch": "answer a watch with an ERROR event of code 410 after `events` events",
}


@dataclass(slots=True)
class Fault:
    """One row of the table of active faults."""

    kind: str
    path: str = ""
    method: str | None = None
    watch: bool | None = None
    times: int | None = None
    code: int = 500
    retryAfter: int | None = None
    seconds: float = 0.0
    bytes: int = 0
    events: int = 0
    message: str = ""
    id: int = 0
    hits: int = 0
    _pattern: re.Pattern[str] = field(default_factory=lambda: re.compile(""), repr=False, compare=False)

    def meets(self, method: str, path: str, watch: bool) -> bool:
        if self.times is not None and self.hits >= self.times:
            return False
        if self.method not in (None, method) or self.watch not in (None, watch):
            return False
        return self._pattern.search(path) is not None

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}


class Faults:
    """The active faults, oldest first."""

    def __init__(self) -> None:
        self._active: dict[int, Fault] = {}
        self._ids = itertools.count(1)

    def add(self, body: Any) -> Fault:
        """Raises StatusError 400 for a kind or a parameter that does not exist."""
        if not isinstance(body, dict) or body.get("kind") not in KINDS:
            raise bad_request(f"a fault needs a kind, one of: {', '.join(KINDS)}")
        offered = {f.name for f in fields(Fault)} - {"id", "hits", "_pattern"}
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
        return fault

    def remove(self, fault_id: int | None) -> None:
        """One fault, or all of them."""
        if fault_id is None:
            self._active.clear()
        else:
            self._active.pop(fault_id, None)

    def list(self) -> list[dict[str, Any]]:
        return [fault.to_dict() for fault in self._active.values()]

    def hit(self, kinds: tuple[str, ...], method: str, path: str, *, watch: bool = False) -> Fault | None:
        """The first active fault of these kinds that meets the request; it counts as used."""
        for fault in self._active.values():
            if fault.kind in kinds and fault.meets(method, path, watch):
                fault.hits += 1
                return fault
        return None
