"""A thin layer over `kubernetes.aio`: its connection and authentication, our paths, plain dicts and one retry policy.

Objects stay plain dicts because everything that reads them (diagnosis, artefacts) must accept what newer and older
servers send; the generated models validate, and refuse.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
from kubernetes.aio import config as kubeconfig
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config.exec_provider import ExecProvider

from allranks.cluster import ClusterError
from allranks.cluster.backoff import Backoff
from allranks.cluster.choose import Choice, Kind

Object = dict[str, Any]
Query = Mapping[str, str | int | bool]

TRANSIENT = (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError)
MERGE_PATCH = "application/merge-patch+json"


class ApiError(ClusterError):
    """The API server's refusal."""

    def __init__(self, status: int, what: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{what}: {status} {message}")
        self.status = status
        self.message = message
        self.retry_after = retry_after

    @property
    def transient(self) -> bool:
        return self.status in (408, 429) or self.status >= 500


class Api:
    """One API server. Use as an async context manager."""

    def __init__(self, choice: Choice, client: ApiClient, renew: Any = None) -> None:
        self.choice = choice
        self._client = client
        self._renew = renew
        self.version = ""

    @classmethod
    async def connect(cls, choice: Choice, *, patience: float = 15.0) -> Self:
        """Raises ClusterError when the server cannot be reached or refuses us."""
        configuration = Configuration()
        # One stream per pod and one watch per kind stay open: no limit on connections.
        configuration.connection_pool_maxsize = 0
        renew = await _configure(choice, configuration)
        loopback = urlsplit(configuration.host).hostname in ("127.0.0.1", "localhost", "::1")
        configuration.client_session_kwargs = {"trust_env": not loopback, "read_bufsize": 2**18}
        api = cls(choice, ApiClient(configuration), renew)
        try:
            version = await api.call("GET", "/version", patience=patience)
        except BaseException as error:
            await api.close()
            if isinstance(error, ApiError) and error.status == 401:
                whose = f"of context {choice.context} " if choice.context else ""
                raise ClusterError(f"{api.server} does not accept the credentials {whose}({error})") from error
            raise
        api.version = str(version.get("gitVersion", ""))
        if choice.kind is Kind.STANDIN and not api.is_standin:
            await api.close()
            raise ClusterError(
                f"the stand-in was asked for, but {api.server} is a cluster ({api.version}): name its context with "
                "--cluster, or leave out --kubeconfig"
            )
        return api

    @property
    def is_standin(self) -> bool:
        """Whether this is a stand-in for a cluster, whichever way it was chosen: it says so itself."""
        return "standin" in self.version

    @property
    def server(self) -> str:
        """Scheme, host and port. A path may hold a secret (the stand-in's does, some proxies' do)."""
        parts = urlsplit(self._client.configuration.host)
        return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")

    @property
    def where(self) -> str:
        """The cluster as header and summary name it."""
        if self.is_standin:
            return f"stand-in ({self.server})"
        name = f"context {self.choice.context}" if self.choice.kind is Kind.CONTEXT else "in-cluster"
        return f"{name} ({self.version})"

    @property
    def kubectl_options(self) -> list[str]:
        """What tells kubectl to use this cluster."""
        files = os.pathsep.join(str(path) for path in self.choice.kubeconfig)
        known = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        options = ["--kubeconfig", files] if files and files != known else []
        return options + (["--context", self.choice.context] if self.choice.context else [])

    async def close(self) -> None:
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
        patience: float = 30.0,
    ) -> Object:
        """One request, repeated for up to `patience` seconds while the server is away or overloaded.

        Raises ApiError for a refusal and ClusterError for a server that stays away.
        """
        backoff, until = Backoff(), time.monotonic() + patience
        while True:
            wait: float | None = None
            try:
                timeout = aiohttp.ClientTimeout(total=30)
                response = await self._send(method, path, query, body, content_type, timeout)
                async with response:
                    return _decoded(self.server, await response.read())
            except ApiError as error:
                if not error.transient or time.monotonic() > until:
                    raise
                wait = error.retry_after
            except aiohttp.ClientSSLError as error:
                raise ClusterError(f"{self.server} cannot be trusted: {error}") from error
            except TRANSIENT as error:
                if time.monotonic() > until:
                    raise ClusterError(f"{self.server} cannot be reached: {error or type(error).__name__}") from error
            await asyncio.sleep(backoff.delay(wait))

    @asynccontextmanager
    async def stream(self, path: str, query: Query, *, idle: float) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response whose body is read as it arrives; that raises TimeoutError after `idle` seconds of silence."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=idle)
        response = await self._send("GET", path, query, None, "application/json", timeout)
        try:
            yield response
        finally:
            _abort(response)

    async def _send(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: Object | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        response = await self._send_once(method, path, query, body, content_type, timeout)
        if response.status == 401 and self._renew is not None:
            _abort(response)
            await self._renew()
            response = await self._send_once(method, path, query, body, content_type, timeout)
        if response.status >= 400:
            async with response:
                raise _refusal(f"{method} {path}", response, await response.read())
        return response

    async def _send_once(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: Object | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        parameters = [
            (key, str(value).lower() if isinstance(value, bool) else value) for key, value in (query or {}).items()
        ]
        request = await self._client.param_serialize(
            method,
            path,
            query_params=parameters,
            header_params={"Accept": "application/json, */*", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        response = await self._client.call_api(*request, _request_timeout=timeout)
        plain: aiohttp.ClientResponse = response.response
        return plain


async def _configure(choice: Choice, configuration: Configuration) -> Any:
    """Fills the configuration; returns what renews its credentials after a 401, if anything does."""
    if choice.kind is Kind.IN_CLUSTER:
        try:
            kubeconfig.load_incluster_config(client_configuration=configuration)
        except (kubeconfig.ConfigException, OSError) as error:
            raise ClusterError(f"this pod's service account cannot be used: {error}") from error
        return None
    if not choice.kubeconfig:
        raise ClusterError("the stand-in is not running: start it with allranks standin")
    files = os.pathsep.join(str(path) for path in choice.kubeconfig)
    try:
        loader = await kubeconfig.load_kube_config(
            config_file=files, context=choice.context, client_configuration=configuration, persist_config=False
        )
    except (kubeconfig.ConfigException, OSError, ValueError) as error:
        raise ClusterError(f"kubeconfig {files} cannot be used: {error}") from error
    user = loader._user
    if user is None or "exec" not in user:
        return None
    return await _renewing(loader, user["exec"], configuration)


async def _renewing(loader: Any, plugin: Any, configuration: Configuration) -> Any:
    """Credential plugins (EKS, GKE, AKS): the client library runs them once, but their tokens live for minutes."""
    lock = asyncio.Lock()
    if not any(name in loader.__dict__ for name in ("token", "cert_file")):
        # The library only logs why the plugin failed: run it again for the reason.
        try:
            await ExecProvider(plugin).run()
        except (kubeconfig.ConfigException, OSError) as error:
            raise ClusterError(f"the kubeconfig's credential plugin {plugin['command']!r} failed: {error}") from error
    due = _renewal_due(loader)

    async def renew() -> None:
        """After a 401, or before the token's end. A plugin that fails now leaves the old token, and is asked again."""
        nonlocal due
        before = configuration.api_key.get("BearerToken")
        async with lock:
            if configuration.api_key.get("BearerToken") != before:
                return  # somebody else just did
            loader.__dict__.pop("exec_plugin_expiry", None)
            await loader.load_from_exec_plugin()
            if "token" in loader.__dict__:
                configuration.api_key["BearerToken"] = loader.token
            due = _renewal_due(loader)

    async def before_each_request(configuration: Configuration) -> None:
        if time.monotonic() > due:
            await renew()

    configuration.refresh_api_key_hook = before_each_request
    return renew


def _renewal_due(loader: Any) -> float:
    """When (monotonic) the token should be renewed: a minute before its end, or a fifth of its life.

    Without an expiry only a 401 tells. An expiry that is past already is that of a clock which differs from ours.
    """
    expiry = loader.__dict__.get("exec_plugin_expiry")
    left = (expiry - datetime.now(timezone.utc)).total_seconds() if expiry is not None else 0.0
    return time.monotonic() + max(left - 60.0, 0.8 * left) if left > 0 else math.inf


def _decoded(server: str, body: bytes) -> Object:
    try:
        data = json.loads(body) if body.strip() else {}
    except ValueError:
        start = body[:80].decode("utf-8", "replace")
        raise ClusterError(f"{server} does not answer like an API server (a proxy in between?): {start!r}") from None
    return data if isinstance(data, dict) else {"value": data}


def _abort(response: aiohttp.ClientResponse) -> None:
    """Closes a stream for good: over TLS, a mere close waits for the server's farewell, and may outlive the loop."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


def _refusal(what: str, response: aiohttp.ClientResponse, body: bytes) -> ApiError:
    try:
        status = json.loads(body)
        message = str(status.get("message") or status.get("reason") or response.reason)
    except (ValueError, AttributeError):
        message = body[:500].decode("utf-8", "replace").strip() or str(response.reason)
    after = response.headers.get("Retry-After", "")
    return ApiError(response.status, what, message, float(after) if after.isdigit() else None)
