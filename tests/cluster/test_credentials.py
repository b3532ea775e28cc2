"""Credential plugins, as EKS, GKE and AKS use them: real scripts, whose tokens live for seconds."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from allranks.cluster import ClusterError
from allranks.cluster.choose import Choice, Kind
from allranks.cluster.client import Api

PLUGIN = """#!{python}
import datetime, json, pathlib, sys, time
directory = pathlib.Path({directory!r})
if (directory / "broken").exists():
    sys.exit("your session has expired: log in again")
count = len(list(directory.glob("token-*"))) + 1
now = time.time()
(directory / f"token-{{count}}").write_text(str(now + {life}))
status = {{"token": f"token-{{count}}"}}
if {tells}:
    when = datetime.datetime.fromtimestamp(now + {life}, datetime.timezone.utc)
    status["expirationTimestamp"] = when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}))
"""


class Server:
    """Accepts a token until its end, which the plugin wrote down."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.refused = 0
        self.revoked: set[str] = set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        path = self._directory / token
        if not token or token in self.revoked or not path.exists() or time.time() > float(path.read_text()):
            self.refused += 1
            return web.json_response({"kind": "Status", "message": "Unauthorized", "code": 401}, status=401)
        return web.json_response({"gitVersion": "v1.36.0", "token": token})


@asynccontextmanager
async def serving(directory: Path, *, life: float, tells: bool = True) -> AsyncIterator[tuple[Server, Choice]]:
    plugin = directory / "plugin"
    plugin.write_text(PLUGIN.format(python=sys.executable, directory=str(directory), life=life, tells=tells))
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    server = Server(directory)
    app = web.Application()
    app.router.add_get("/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = directory / "kubeconfig"
    execute = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(plugin),
        "interactiveMode": "Never",
    }
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {"exec": execute}}]
    config.write_text(
        json.dumps({"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"})
    )
    try:
        yield server, Choice(Kind.CONTEXT, (config,), "c")
    finally:
        await runner.cleanup()


def issued(directory: Path) -> int:
    return len(list(directory.glob("token-*")))


def test_token_is_renewed_before_its_end_for_calls_and_for_streams(tmp_path: Path) -> None:
    async def main() -> int:
        async with serving(tmp_path, life=5) as (server, choice), await Api.connect(choice) as api:
            for _ in range(7):
                await api.call("GET", "/api/v1/pods")
                async with api.stream("/api/v1/pods", {"watch": True}, idle=5) as body:
                    assert b"token-" in await body.read()
                await asyncio.sleep(1)
            return server.refused

    assert asyncio.run(main()) == 0
    assert 2 <= issued(tmp_path) <= 3  # not one for each request


def test_revoked_token_is_renewed_on_401_once_for_all_who_ask(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, life=3600) as (server, choice), await Api.connect(choice) as api:
            server.revoked.add("token-1")
            answers = await asyncio.gather(*(api.call("GET", "/api/v1/pods") for _ in range(8)))
            assert {answer["token"] for answer in answers} == {"token-2"}
            server.revoked.add("token-2")
            async with api.stream("/api/v1/pods", {"watch": True}, idle=5) as body:
                assert b"token-3" in await body.read()

    asyncio.run(main())
    assert issued(tmp_path) == 3


def test_token_without_an_expiry_lasts_until_the_server_refuses_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, life=1, tells=False) as (server, choice), await Api.connect(choice) as api:
            await asyncio.sleep(1.1)
            assert (await api.call("GET", "/api/v1/pods"))["token"] == "token-2"
            assert server.refused == 1

    asyncio.run(main())


def test_plugin_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()

    async def main() -> None:
        async with serving(tmp_path, life=5) as (_, choice):
            await Api.connect(choice)

    with pytest.raises(ClusterError, match=r"credential plugin '.*/plugin' failed: .*your session has expired"):
        asyncio.run(main())


def test_plugin_that_fails_later_is_asked_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, life=3600) as (server, choice), await Api.connect(choice) as api:
            server.revoked.add("token-1")
            (tmp_path / "broken").touch()
            with pytest.raises(ClusterError, match="401 Unauthorized"):
                await api.call("GET", "/api/v1/pods")
            (tmp_path / "broken").unlink()
            assert (await api.call("GET", "/api/v1/pods"))["token"] == "token-2"

    asyncio.run(main())


def test_credentials_that_are_not_accepted_are_named_by_their_context(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, life=3600) as (server, choice):
            server.revoked |= {"token-1", "token-2"}
            await Api.connect(choice)

    with pytest.raises(ClusterError, match=r"does not accept the credentials of context c \(GET /version: 401"):
        asyncio.run(main())
