"""The HTTP face of the stand-in: paths to targets, bodies in and out, streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from aiohttp import web

from allranks.standin import access, discovery, errors, tables
from allranks.standin.admin import Admin
from allranks.standin.api import Answer, Api, Target
from allranks.standin.errors import StatusError
from allranks.standin.faults import Fault, Faults
from allranks.standin.kubelet.kubelet import Kubelet
from allranks.standin.objects import Object
from allranks.standin.resources import BY_PATH, NAMESPACES, Resource
from allranks.standin.tokens import OPEN_PATHS, Tokens
from allranks.standin.watching import Event, Selection, watch

_MAX_BODY = 16 << 20
_WRITE_LIMIT = 1 << 20
_PROTOBUF = b"k8s\x00"
_OPENAPI_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
    504: "Timeout",
}
Query = Mapping[str, str]


def parse_path(path: str) -> Target | None:
    """What a path addresses, or None when nothing is served there."""
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] not in NAMESPACES.subresources:
        namespace, rest = rest[1], rest[2:]
    if not rest or len(rest) > 3:
        return None
    resource = BY_PATH.get((group, version, rest[0]))
    if resource is None or (namespace and not resource.namespaced):
        return None
    name, subresource = (*rest[1:], "", "")[:2]
    if (subresource and subresource not in resource.subresources) or (name and resource.namespaced and not namespace):
        return None
    return Target(resource, namespace, name, subresource)


class Server:
    """One aiohttp application."""

    def __init__(self, api: Api, kubelet: Kubelet, faults: Faults, tokens: Tokens) -> None:
        self._api = api
        self._kubelet = kubelet
        self._faults = faults
        self._tokens = tokens
        self._admin = Admin(api, faults, tokens)
        self._closing = asyncio.Event()
        self._streams: set[asyncio.Timeout] = set()
        """Open watches and log streams, by what ends them."""

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._outer], client_max_size=_MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    def close(self) -> None:
        """Ends open watches and log streams."""
        self._closing.set()
        for stream in self._streams:
            stream.reschedule(0.0)

    @web.middleware
    async def _outer(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Authentication, faults, and refusals as Status objects."""
        try:
            request["path"] = self._tokens.authenticate(request.headers.get("Authorization"), request.path)
            if not request["path"].startswith("/standin/"):
                await self._suffer(request)
            response: web.StreamResponse = await handler(request)
            return response
        except StatusError as error:
            return _json(error.status(), error.code, error.headers)
        except json.JSONDecodeError as error:
            return _json(errors.bad_request(f"couldn't get version/kind; json parse error: {error}").status(), 400)

    async def _suffer(self, request: web.Request) -> None:
        watched = request.query.get("watch") in ("true", "1")
        fault = self._faults.hit(
            ("delay", "hang", "error", "disconnect"), request.method, request["path"], watch=watched
        )
        if fault is None:
            return
        if fault.kind == "delay":
            await asyncio.sleep(fault.seconds)
        elif fault.kind == "hang":
            await self._closing.wait()
        elif fault.kind == "disconnect":
            _cut(request)
            raise asyncio.CancelledError
        else:
            headers = {"Retry-After": str(fault.retryAfter)} if fault.retryAfter is not None else None
            what = _REASONS.get(fault.code, "InternalError")
            raise StatusError(fault.code, what, fault.message or f"stand-in fault {fault.id}: {what}", headers=headers)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request["path"] in OPEN_PATHS:
            return web.Response(text="ok")
        if request["path"].startswith("/standin/"):
            return await self._admin.answer(request["path"], request)
        if request["path"] == "/openapi/v2":
            # kubectl falls back to it for kinds that v3 does not know. An empty message is a valid, empty document.
            return web.Response(body=b"", content_type=_OPENAPI_V2)
        if target := parse_path(request["path"]):
            return await self._serve(request, target)
        document = discovery.document(request["path"].rstrip("/"), request.host)
        if document is None or request.method != "GET":
            message = "the server could not find the requested resource"
            raise StatusError(404, "NotFound", message)
        return _json(document)

    async def _serve(self, request: web.Request, target: Target) -> web.StreamResponse:
        query, method = request.query, request.method
        access.authorise(self._faults, method, target, watch=query.get("watch") in ("true", "1"))
        if method == "GET":
            if target.subresource == "log":
                return await self._log(request, target)
            if target.name:
                return self._show(request, target.resource, self._api.get(target))
            if query.get("watch") in ("true", "1"):
                return await self._watch(request, target)
            objects, meta = self._api.list(target, query)
            return self._show_list(request, target.resource, objects, meta)
        body = _body(await request.read(), target)
        if method == "POST" and not target.resource.stored:
            return _json(access.review(self._faults, self._api.create(target, body, query).body), 201)
        if method == "POST":
            return _answer(self._api.create(target, body, query))
        if method == "DELETE" and not target.name:
            objects, meta = self._api.delete_all(target, body, query)
            return self._show_list(request, target.resource, objects, meta)
        if not target.name or method not in ("PUT", "PATCH", "DELETE"):
            raise StatusError(405, "MethodNotAllowed", errors.NOT_ALLOWED)
        if method == "PUT":
            return _answer(self._api.replace(target, body, query))
        if method == "PATCH":
            return _answer(self._api.patch(target, request.content_type, body, query))
        return _answer(self._api.delete(target, body, query))

    def _show(self, request: web.Request, resource: Resource, obj: Object) -> web.Response:
        include = _table_of(request)
        if include:
            meta = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            return _json(tables.table(resource, [obj], meta, include))
        return _json(obj)

    def _show_list(
        self, request: web.Request, resource: Resource, objects: list[Object], meta: dict[str, Any]
    ) -> web.Response:
        include = _table_of(request)
        if include:
            return _json(tables.table(resource, objects, meta, include))
        kind = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        return _json({**kind, "metadata": meta, "items": objects})

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        query = dict(request.query)
        if target.name:
            query["fieldSelector"] = f"metadata.name={target.name}"
        selection = Selection(target.resource, target.namespace, query)
        include = _table_of(request)
        kinds = ("close-watch", "expire-watch", "hang-watch")
        fault = self._faults.hit(kinds, "GET", request["path"], watch=True)
        events = _limited(watch(self._api.store, selection, query), fault)

        def line(event: Event) -> bytes:
            shown = event.object
            if include and event.kind not in ("ERROR", "BOOKMARK"):
                meta = {"resourceVersion": shown["metadata"]["resourceVersion"]}
                shown = tables.table(target.resource, [shown], meta, include)
            return json.dumps({"type": event.kind, "object": shown}).encode() + b"\n"

        async def lines() -> AsyncGenerator[bytes]:
            async with aclosing(events):
                async for together in events:
                    yield b"".join(map(line, together))

        return await self._stream(request, lines(), "application/json")

    async def _log(self, request: web.Request, target: Target) -> web.StreamResponse:
        chunks = self._kubelet.read_log(self._api.get(target), request.query)
        fault = self._faults.hit(("cut-log", "end-log", "hang-log"), "GET", request["path"])
        return await self._stream(request, chunks, "text/plain", fault)

    async def _stream(
        self,
        request: web.Request,
        chunks: AsyncGenerator[bytes],
        content_type: str,
        fault: Fault | None = None,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": content_type})
        response.enable_chunked_encoding()
        await response.prepare(request)
        try:
            try:
                async with aclosing(chunks), asyncio.timeout(0.0 if self._closing.is_set() else None) as stream:
                    self._streams.add(stream)
                    try:
                        if await self._send(response, chunks, fault):
                            _cut(request)
                            return response
                    finally:
                        self._streams.discard(stream)
            except TimeoutError:
                pass  # The server ends.
            await response.write_eof()
        except ConnectionError:
            pass  # The client has gone.
        return response

    async def _send(self, response: web.StreamResponse, chunks: AsyncGenerator[bytes], fault: Fault | None) -> bool:
        """All chunks, or what a fault lets through; whether the connection is to be cut then."""
        left = fault.bytes if fault else None
        async for chunk in chunks:
            if fault is not None and left is not None and len(chunk) >= left:
                await response.write(chunk[:left])
                if fault.kind == "hang-log":
                    await self._closing.wait()
                return fault.kind == "cut-log"
            left = left - len(chunk) if left is not None else None
            for at in range(0, len(chunk), _WRITE_LIMIT):
                await response.write(chunk[at : at + _WRITE_LIMIT])
        return False


async def _limited(events: AsyncGenerator[list[Event]], fault: Fault | None) -> AsyncGenerator[list[Event]]:
    """The events that a fault lets through."""
    left = fault.events if fault is not None else None
    async with aclosing(events):
        async for together in events:
            if left != 0:
                yield together[:left]
            left = max(left - len(together), 0) if left is not None else None
            if left == 0:
                break
    if fault is not None and fault.kind == "hang-watch":
        await asyncio.Event().wait()  # until the client or the server goes: this task is cancelled then
    if fault is not None and fault.kind == "expire-watch":
        yield [Event("ERROR", errors.expired("The resourceVersion for the provided watch is too old.").status())]


def _body(raw: bytes, target: Target) -> Any:
    """The decoded body. Raises StatusError 415 for protobuf where the content matters."""
    if not raw.startswith(_PROTOBUF):
        return json.loads(raw) if raw else None
    if not target.resource.stored or target.subresource == "eviction":
        return None  # kubectl drain and auth can-i send it; the answer does not depend on it.
    raise StatusError(
        415,
        "UnsupportedMediaType",
        "the stand-in reads JSON, not protobuf: give the object as a manifest (kubectl apply -f, create -f)",
    )


def _cut(request: web.Request) -> None:
    """Closes the connection without a word."""
    if request.transport is not None:
        request.transport.abort()


def _table_of(request: web.Request) -> str:
    """The includeObject of a client that wants a Table; empty for one that wants objects."""
    if "as=Table" not in request.headers.get("Accept", "").split(",")[0]:
        return ""
    return request.query.get("includeObject", "Metadata")


def _json(body: Any, code: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=json.dumps(body).encode(), status=code, headers=headers, content_type="application/json")


def _answer(answer: Answer) -> web.Response:
    response = _json(answer.body, answer.code)
    for warning in answer.warnings:
        escaped = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{escaped}"')
    return response
