"""Bodies against the schema: types must fit, unknown fields are refused, reported or dropped as the client asks."""

from __future__ import annotations

import functools
import json
import re
from importlib import resources
from typing import Any

from allranks.standin.errors import StatusError, bad_request
from allranks.standin.objects import Object, quantity, unix
from allranks.standin.resources import Resource

_LIST = re.compile(r"List\[(.+)\]")
_DICT = re.compile(r"Dict\[str, (.+)\]")


@functools.cache
def schema() -> dict[str, Any]:
    """`{"kinds": {kind: type}, "types": {type: {field: declared type}}}`; a `!` marks a required field."""
    text = resources.files("allranks.standin").joinpath("schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


class _Walk:
    """One pass over one body."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.types: dict[str, dict[str, str]] = schema()["types"]
        self.unknown: list[str] = []
        self.missing: list[str] = []

    def value(self, value: Any, declared: str, path: str) -> Any:
        if value is None:
            return None
        if match := _LIST.fullmatch(declared):
            if not isinstance(value, list):
                raise self._mismatch(value, path, "list")
            return [self.value(item, match[1], f"{path}[{index}]") for index, item in enumerate(value)]
        if match := _DICT.fullmatch(declared):
            if not isinstance(value, dict):
                raise self._mismatch(value, path, "map")
            return {name: self.value(item, match[1], f"{path}.{name}") for name, item in value.items()}
        if declared in self.types:
            if not isinstance(value, dict):
                raise self._mismatch(value, path, declared.removeprefix("V1"))
            return self.object(value, declared, path)
        return self.plain(value, declared, path)

    def plain(self, value: Any, declared: str, path: str) -> Any:
        if declared in ("str", "bytes", "datetime"):
            fits = isinstance(value, str)
            if fits and declared == "datetime":
                self._check(unix, value, path)
        elif declared == "int":
            fits = isinstance(value, int) and not isinstance(value, bool)
        elif declared == "bool":
            fits = isinstance(value, bool)
        elif declared == "int-or-string":
            fits = isinstance(value, (int, str)) and not isinstance(value, bool)
        elif declared == "quantity":
            fits = isinstance(value, (int, float, str)) and not isinstance(value, bool)
            if fits:
                self._check(quantity, value, path)
                return str(value)
        else:
            fits = True
        if not fits:
            raise self._mismatch(value, path, {"str": "string", "int": "int32"}.get(declared, declared))
        return value

    def object(self, value: Object, declared: str, path: str) -> Object:
        fields = self.types[declared]
        made: Object = {}
        for name, item in value.items():
            where = f"{path}.{name}" if path else name
            if name not in fields:
                self.unknown.append(where)
            elif (decoded := self.value(item, fields[name].removesuffix("!"), where)) is not None:
                made[name] = decoded
        self.missing += [
            f"{path}.{name}".lstrip(".") for name, kind in fields.items() if kind.endswith("!") and name not in made
        ]
        return made

    def _check(self, parse: Any, value: Any, path: str) -> None:
        try:
            parse(value)
        except ValueError as error:
            message = f'{self.kind} in version "v1" cannot be handled as a {self.kind}: {path}: {error}'
            raise bad_request(message) from error

    def _mismatch(self, value: Any, path: str, wanted: str) -> StatusError:
        got = {str: "string", bool: "bool", dict: "object", list: "array"}.get(type(value), "number")
        return bad_request(
            f'{self.kind} in version "v1" cannot be handled as a {self.kind}: '
            f"json: cannot unmarshal {got} into Go struct field {self.kind}.{path} of type {wanted}"
        )


def decode(resource: Resource, body: Any, mode: str) -> tuple[Object, list[str], list[str]]:
    """The body as an object of its kind, the warnings for the client, and the paths of absent required fields.

    `mode` is the request's fieldValidation: Strict refuses unknown fields, Warn reports them, Ignore drops them.
    Raises StatusError 400.
    """
    if not isinstance(body, dict):
        raise bad_request("the object provided is unrecognized: couldn't get version/kind; json parse error")
    given = (body.get("apiVersion") or resource.api_version, body.get("kind") or resource.kind)
    if given != (resource.api_version, resource.kind):
        wanted = f"{resource.api_version}, Kind={resource.kind}"
        raise bad_request(f"the API version in the data ({given[0]}, Kind={given[1]}) does not match ({wanted})")
    walk = _Walk(resource.kind)
    made = walk.object(body, schema()["kinds"][resource.kind], "")
    warnings = [f'unknown field "{path}"' for path in walk.unknown]
    if warnings and mode == "Strict":
        what = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        raise bad_request(f"{what}: strict decoding error: {', '.join(warnings)}")
    made |= {"apiVersion": resource.api_version, "kind": resource.kind}
    return made, (warnings if mode != "Ignore" else []), walk.missing
