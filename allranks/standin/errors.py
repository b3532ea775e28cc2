"""Refusals, as the Kubernetes API words them: an HTTP code and a `Status` object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allranks.standin.resources import Resource


NOT_ALLOWED = "the server does not allow this method on the requested resource"


class StatusError(Exception):
    """A request that is refused; `status()` is the body of the answer."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.headers = headers or {}

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        return body | ({"details": self.details} if self.details else {}) | {"code": self.code}


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing wrong with one field: the entries of `details.causes`."""

    field: str
    reason: str
    """`Required value`, `Invalid value`, `Unsupported value`, `Duplicate value`, `Forbidden`, `Not found`."""
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}" + (f": {self.message}" if self.message else "")


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def not_found(resource: Resource, name: str) -> StatusError:
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    return StatusError(404, "NotFound", f'{resource.qualified} "{name}" not found', details)


def already_exists(resource: Resource, name: str) -> StatusError:
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    return StatusError(409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', details)


def conflict(resource: Resource, name: str, why: str) -> StatusError:
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return StatusError(409, "Conflict", message, details)


def stale(resource: Resource, name: str) -> StatusError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, why)


def expired(message: str) -> StatusError:
    return StatusError(410, "Expired", message)


def invalid(resource: Resource, name: str, causes: Sequence[Cause]) -> StatusError:
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    listed = str(causes[0]) if len(causes) == 1 else f"[{', '.join(map(str, causes))}]"
    details = {
        "name": name,
        "group": resource.group,
        "kind": resource.kind,
        "causes": [
            {
                "reason": f"FieldValue{c.reason.split()[0]}",
                "message": str(c).removeprefix(f"{c.field}: "),
                "field": c.field,
            }
            for c in causes
        ],
    }
    return StatusError(422, "Invalid", f'{kind} "{name}" is invalid: {listed}', details)
