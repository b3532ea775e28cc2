"""The verbs of the API on the store: what a request means, apart from HTTP."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from allranks.standin import defaults, errors, garbage, patch, validation
from allranks.standin.decode import decode
from allranks.standin.objects import Object, clone, name_of, set_condition
from allranks.standin.resources import NAMESPACES, PODS, Resource
from allranks.standin.store import Store
from allranks.standin.watching import Pages, Selection

_META_KEPT = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")


@dataclass(frozen=True, slots=True)
class Target:
    """What a path addresses."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(slots=True)
class Answer:
    body: Object
    code: int = 200
    warnings: list[str] = field(default_factory=list)


class Api:
    """Create, read, update, patch and delete, with admission, defaults and validation."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.pages = Pages()

    def compact(self) -> None:
        """As a compaction of etcd: versions and continue tokens from before are gone (410)."""
        self.store.forget_history()
        self.pages.forget()

    def get(self, target: Target) -> Object:
        return self.store.get(target.resource, target.namespace, target.name)

    def list(self, target: Target, query: Mapping[str, str]) -> tuple[builtins.list[Object], dict[str, Any]]:
        """The objects and the list's metadata. Raises StatusError 400 or 410."""
        limit = query.get("limit") or "0"
        if not limit.isdigit():
            raise errors.bad_request(f'invalid limit "{limit}"')
        if query.get("continue"):
            return self.pages.next(query["continue"], int(limit))
        selection = Selection(target.resource, target.namespace, query)
        held = [obj for obj in self.store.list(target.resource, target.namespace) if selection.takes(obj)]
        return self.pages.first(held, self.store.version, int(limit))

    def create(self, target: Target, body: Any, query: Mapping[str, str]) -> Answer:
        resource = target.resource
        if target.subresource == "eviction":
            return self._evict(target)
        if target.name:
            raise errors.StatusError(405, "MethodNotAllowed", errors.NOT_ALLOWED)
        if not resource.stored:
            return Answer(decode(resource, body or {}, "Ignore")[0], 201)
        obj, warnings, missing = decode(resource, body, query.get("fieldValidation") or "Warn")
        self._place(target, obj)
        prepared = self.store.prepare(resource, obj)
        defaults.apply_defaults(resource, prepared)
        validation.validate(resource, prepared, missing)
        if query.get("dryRun") == "All":
            if self.store.find(resource, target.namespace, name_of(prepared)) is not None:
                raise errors.already_exists(resource, name_of(prepared))
            return Answer(prepared, 201, warnings)
        return Answer(self.store.add(resource, prepared), 201, warnings)

    def replace(self, target: Target, body: Any, query: Mapping[str, str]) -> Answer:
        obj, warnings, missing = decode(target.resource, body, query.get("fieldValidation") or "Warn")
        if obj.get("metadata", {}).get("name") != target.name:
            raise errors.bad_request("the name of the object does not match the name on the URL")
        self._place(target, obj)
        return Answer(self._update(target, self.get(target), obj, missing, query), 200, warnings)

    def patch(self, target: Target, content_type: str, body: Any, query: Mapping[str, str]) -> Answer:
        patch.check(content_type)
        held = self.get(target)
        patched = patch.apply(content_type, held, body)
        obj, warnings, missing = decode(target.resource, patched, query.get("fieldValidation") or "Warn")
        self._place(target, obj)
        return Answer(self._update(target, held, obj, missing, query), 200, warnings)

    def delete(self, target: Target, body: Any, query: Mapping[str, str]) -> Answer:
        options = _delete_options(body, query)
        held = self.get(target)
        if options.get("dryRun"):
            return Answer(held)
        gone, warnings = garbage.delete(self.store, target.resource, held, options)
        if self.store.find(target.resource, target.namespace, target.name) is not None or target.resource is PODS:
            return Answer(gone, 200, warnings)
        details = {"name": target.name, "group": target.resource.group, "kind": target.resource.plural}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return Answer(status | {"details": details | {"uid": gone["metadata"]["uid"]}}, 200, warnings)

    def delete_all(
        self, target: Target, body: Any, query: Mapping[str, str]
    ) -> tuple[builtins.list[Object], dict[str, Any]]:
        options = _delete_options(body, query)
        held, meta = self.list(target, query)
        if not options.get("dryRun"):
            for obj in held:
                garbage.delete(self.store, target.resource, obj, options)
        return held, meta

    def _place(self, target: Target, obj: Object) -> None:
        """Puts the object where the path says. Raises StatusError when it says something else, or the place is gone."""
        meta = obj.setdefault("metadata", {})
        if not meta.get("name") and not meta.get("generateName"):
            cause = errors.Cause("metadata.name", "Required value", "name or generateName is required")
            raise errors.invalid(target.resource, "", [cause])
        if not target.resource.namespaced:
            meta.pop("namespace", None)
            return
        if meta.setdefault("namespace", target.namespace) != target.namespace:
            what = "the namespace of the provided object does not match the namespace sent on the request"
            raise errors.bad_request(f"{what}: {target.namespace}")
        namespace = self.store.get(NAMESPACES, "", target.namespace)
        if namespace["status"]["phase"] == "Terminating" and not target.name:
            why = f"unable to create new content in namespace {target.namespace} because it is being terminated"
            message = f'{target.resource.qualified} "{meta.get("name", "")}" is forbidden: {why}'
            raise errors.StatusError(403, "Forbidden", message, {"causes": [{"reason": "NamespaceTerminating"}]})

    def _update(
        self, target: Target, held: Object, obj: Object, missing: builtins.list[str], query: Mapping[str, str]
    ) -> Object:
        made: Object = clone(held) if target.subresource == "status" else obj
        if target.subresource == "status":
            made["status"] = obj.get("status") or {}
            made["metadata"]["resourceVersion"] = obj["metadata"].get("resourceVersion")
        else:
            for name in _META_KEPT:
                if name in held["metadata"]:
                    made["metadata"].setdefault(name, held["metadata"][name])
                else:
                    made["metadata"].pop(name, None)
            if "status" in target.resource.subresources and "status" in held:
                made["status"] = held["status"]
            validation.validate(target.resource, made, missing)
            validation.validate_update(target.resource, made, held)
        if query.get("dryRun") == "All":
            return made
        return garbage.finish(self.store, target.resource, self.store.update(target.resource, made))

    def _evict(self, target: Target) -> Answer:
        def disrupted(pod: Object) -> None:
            set_condition(pod, "DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")

        pod = self.get(target)
        if pod.get("status", {}).get("phase") in ("Pending", "Running"):
            pod = self.store.mutate(PODS, target.namespace, target.name, disrupted) or pod
        garbage.delete(self.store, PODS, pod, {})
        return Answer({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201)


def _delete_options(body: Any, query: Mapping[str, str]) -> dict[str, Any]:
    options = dict(body) if isinstance(body, dict) else {}
    if "propagationPolicy" in query:
        options["propagationPolicy"] = query["propagationPolicy"]
    if "orphanDependents" in query:
        options["orphanDependents"] = query["orphanDependents"] == "true"
    if "gracePeriodSeconds" in query:
        if not query["gracePeriodSeconds"].isdigit():
            raise errors.bad_request(f'invalid gracePeriodSeconds "{query["gracePeriodSeconds"]}"')
        options["gracePeriodSeconds"] = int(query["gracePeriodSeconds"])
    if "dryRun" in query:
        options["dryRun"] = [query["dryRun"]]
    return options
