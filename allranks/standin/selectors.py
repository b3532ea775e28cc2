"""Label and field selectors, as the query strings of list and watch carry them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from allranks.standin.errors import bad_request
from allranks.standin.objects import Object, labels_of
from allranks.standin.resources import EVENTS, JOBS, NODES, PODS, SECRETS, Resource

Test = Callable[[Object], bool]

_SET = re.compile(r"\s*([\w./-]+)\s+(in|notin)\s*\(([^)]*)\)\s*")
_EQUAL = re.compile(r"\s*([\w./-]+)\s*(==|!=|=)\s*([\w.-]*)\s*")
_EXISTS = re.compile(r"\s*(!?)\s*([\w./-]+)\s*")
_TERMS = re.compile(r",(?![^(]*\))")

_FIELDS: dict[Resource, tuple[str, ...]] = {
    PODS: (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    EVENTS: (
        "involvedObject.apiVersion",
        "involvedObject.fieldPath",
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.resourceVersion",
        "involvedObject.uid",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    NODES: ("spec.unschedulable",),
    JOBS: ("status.successful",),
    SECRETS: ("type",),
}


def matches_labels(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A LabelSelector object (`matchLabels`, `matchExpressions`) against labels."""
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(name) != value for name, value in wanted.items()):
        return False
    return all(matches_expression(term, labels) for term in selector.get("matchExpressions") or ())


def matches_expression(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """One requirement of a label or node selector against labels."""
    held = labels.get(term["key"])
    values: list[str] = term.get("values") or []
    match term["operator"]:
        case "In":
            return held in values
        case "NotIn":
            return held not in values
        case "Exists":
            return held is not None
        case "DoesNotExist":
            return held is None
        case "Gt":
            return held is not None and held.isdigit() and int(held) > int(values[0])
        case "Lt":
            return held is not None and held.isdigit() and int(held) < int(values[0])
        case other:
            raise bad_request(f"{other!r} is not a valid label selector operator")


def parse_labels(text: str) -> Test:
    """The test behind `a=b,c!=d,e in (f,g),h,!i`. Raises StatusError 400."""
    terms = [_label_term(term) for term in _TERMS.split(text) if term.strip()]
    return lambda obj: all(matches_expression(term, labels_of(obj)) for term in terms)


def _label_term(text: str) -> dict[str, Any]:
    if match := _SET.fullmatch(text):
        values = [value.strip() for value in match[3].split(",")]
        return {"key": match[1], "operator": "In" if match[2] == "in" else "NotIn", "values": values}
    if match := _EQUAL.fullmatch(text):
        return {"key": match[1], "operator": "NotIn" if match[2] == "!=" else "In", "values": [match[3]]}
    if match := _EXISTS.fullmatch(text):
        return {"key": match[2], "operator": "DoesNotExist" if match[1] else "Exists"}
    raise bad_request(f"unable to parse requirement: found {text!r}")


def parse_fields(resource: Resource, text: str) -> Test:
    """The test behind `metadata.name=x,status.phase!=Running`. Raises StatusError 400 for other fields."""
    terms: list[tuple[tuple[str, ...], bool, str]] = []
    for term in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*([\w.]+)\s*(==|!=|=)\s*(.*?)\s*", term)
        if match is None:
            raise bad_request(f"invalid selector: {text!r}; can't understand {term!r}")
        if match[1] not in ("metadata.name", "metadata.namespace", *_FIELDS.get(resource, ())):
            raise bad_request(f"field label not supported: {match[1]}")
        terms.append((tuple(match[1].split(".")), match[2] == "!=", match[3]))
    return lambda obj: all((_field(obj, path) == value) != negated for path, negated, value in terms)


def _field(obj: Object, path: tuple[str, ...]) -> str:
    value: Any = obj
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    if path == ("spec", "unschedulable") and value is None:
        return "false"
    if path == ("source",):
        value = (value or {}).get("component")
    return str(value).lower() if isinstance(value, bool) else str(value or "")
