"""Who may do what: everything, but for what `forbid` faults take away. Reviews and refusals agree."""

from __future__ import annotations

from typing import Any

from allranks.standin.api import Target
from allranks.standin.errors import StatusError
from allranks.standin.faults import Faults
from allranks.standin.objects import Object

USER = "standin"


def verb_of(method: str, target: Target, *, watch: bool) -> str:
    """The RBAC verb of a request."""
    if method == "GET":
        return "get" if target.name else "watch" if watch else "list"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, method.lower())


def authorise(faults: Faults, method: str, target: Target, *, watch: bool) -> None:
    """Raises StatusError 403 in the API server's words."""
    if not target.resource.stored:
        return  # Everybody may ask what they may do.
    resource, verb = target.resource, verb_of(method, target, watch=watch)
    name = resource.plural + (f"/{target.subresource}" if target.subresource else "")
    if faults.forbidding(verb, name) is None:
        return
    about = resource.qualified + (f' "{target.name}"' if target.name else "")
    where = f' in the namespace "{target.namespace}"' if target.namespace else " at the cluster scope"
    why = f'User "{USER}" cannot {verb} resource "{name}" in API group "{resource.group}"{where}'
    raise StatusError(403, "Forbidden", f"{about} is forbidden: {why}", {"name": target.name, "kind": resource.plural})


def review(faults: Faults, asked: Object) -> Object:
    """The answer to a SelfSubjectAccessReview."""
    what: dict[str, Any] = (asked.get("spec") or {}).get("resourceAttributes") or {}
    resource = str(what.get("resource", ""))
    name = resource + (f"/{what['subresource']}" if what.get("subresource") else "")
    if faults.forbidding(str(what.get("verb", "")), name, review=True) is not None:
        return asked | {"status": {"allowed": False, "reason": f'no RBAC rule allows user "{USER}" to do that'}}
    return asked | {"status": {"allowed": True, "reason": "the stand-in allows everything else"}}
