"""Watches and log streams against a server that ends, cuts, expires and refuses them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from allranks.cluster import ClusterError
from allranks.cluster.choose import Choice, Kind
from allranks.cluster.client import Api, ApiError
from allranks.cluster.logs import LogFollower
from allranks.cluster.pace import Pace
from allranks.cluster.watch import Type, watch

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PODS = "/api/v1/namespaces/ns/pods"


@asynccontextmanager
async def served(directory: Path, handlers: dict[str, Handler]) -> AsyncIterator[Api]:
    """A client of a server with these GET handlers."""

    async def version(request: web.Request) -> web.Response:
        return web.json_response({"gitVersion": "v1.36.0"})

    app = web.Application()
    app.router.add_get("/version", version)
    for path, handler in handlers.items():
        app.router.add_get(path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    config = directory / "kubeconfig"
    entry = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": "t"}}
    config.write_text(json.dumps({"clusters": [entry], "contexts": [context], "users": [user], "current-context": "c"}))
    try:
        async with await Api.connect(Choice(Kind.CONTEXT, (config,), "c")) as api:
            yield api
    finally:
        await runner.cleanup()


def item(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}


class Pods:
    """Listings and watches as a script: each GET takes the next of its kind; the last watch stays open."""

    def __init__(self, listings: list[Any], watches: list[Any]) -> None:
        self.listings, self.watches = listings, watches
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            found = self.listings.pop(0)
            if isinstance(found, int):
                return web.json_response({"message": "no"}, status=found)
            version, items = found
            return web.json_response({"metadata": {"resourceVersion": str(version)}, "items": items})
        self.asked.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        events = self.watches.pop(0) if self.watches else None
        if events is None:
            await asyncio.sleep(60)
        for event in events or ():
            if event == "cut":
                assert request.transport is not None
                await response.write(b'{"type": "MODIFIED", "obj')
                request.transport.close()
                break
            await response.write((event if isinstance(event, str) else json.dumps(event)).encode() + b"\n")
        return response


def test_cluster_is_not_taken_for_the_standin_that_was_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path, {}) as api:
            with pytest.raises(ClusterError, match=r"the stand-in was asked for, but .* is a cluster \(v1\.36\.0\)"):
                await Api.connect(Choice(Kind.STANDIN, api.choice.kubeconfig))

    asyncio.run(scenario())


async def changes(api: Api, count: int) -> list[tuple[str, str]]:
    found = []
    async with asyncio.timeout(20), aclosing(watch(api, PODS)) as stream:
        async for change in stream:
            found.append((change.type.value, change.object.get("metadata", {}).get("name", "")))
            if len(found) == count:
                break
    return found


def test_clean_end_of_a_watch_continues_from_its_last_word(tmp_path: Path) -> None:
    pods = Pods(
        [(5, [item("a", 5)])],
        [[{"type": "MODIFIED", "object": item("a", 6)}], [{"type": "ADDED", "object": item("b", 7)}]],
    )

    async def scenario() -> None:
        async with served(tmp_path, {PODS: pods.answer}) as api:
            assert await changes(api, 4) == [("ADDED", "a"), ("SYNCED", ""), ("MODIFIED", "a"), ("ADDED", "b")]

    asyncio.run(scenario())
    assert pods.asked[:2] == ["5", "6"]


def test_watch_cut_in_the_middle_of_an_event_loses_nothing(tmp_path: Path) -> None:
    pods = Pods([(5, [])], [["cut"], [{"type": "ADDED", "object": item("b", 7)}]])

    async def scenario() -> None:
        async with served(tmp_path, {PODS: pods.answer}) as api:
            assert await changes(api, 2) == [("SYNCED", ""), ("ADDED", "b")]

    asyncio.run(scenario())
    assert pods.asked[:2] == ["5", "5"]


def test_expired_history_is_bridged_by_a_listing_that_shows_what_went_meanwhile(tmp_path: Path) -> None:
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
    pods = Pods([(5, [item("a", 4), item("b", 5)]), (9, [item("b", 5), item("c", 9)])], [[gone]])

    async def scenario() -> None:
        async with served(tmp_path, {PODS: pods.answer}) as api:
            assert (await changes(api, 6))[3:] == [("DELETED", "a"), ("ADDED", "c"), ("SYNCED", "")]

    asyncio.run(scenario())


def test_bookmarks_move_the_position_without_being_changes(tmp_path: Path) -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "50"}}}
    pods = Pods([(5, [])], [[bookmark], [{"type": "ADDED", "object": item("b", 51)}]])

    async def scenario() -> None:
        async with served(tmp_path, {PODS: pods.answer}) as api:
            assert await changes(api, 2) == [("SYNCED", ""), ("ADDED", "b")]

    asyncio.run(scenario())
    assert pods.asked[1] == "50"


def test_what_is_no_event_is_bridged_by_a_listing(tmp_path: Path) -> None:
    """A proxy that speaks in place of the server."""
    pods = Pods([(5, []), (9, [item("b", 9)])], [["<html>"]])

    async def scenario() -> None:
        async with served(tmp_path, {PODS: pods.answer}) as api:
            assert await changes(api, 3) == [("SYNCED", ""), ("ADDED", "b"), ("SYNCED", "")]

    asyncio.run(scenario())


def test_answer_that_is_not_the_servers_is_named(tmp_path: Path) -> None:
    async def portal(request: web.Request) -> web.Response:
        return web.Response(text="<html>please log in", content_type="text/html")

    async def scenario() -> None:
        async with served(tmp_path, {PODS: portal}) as api:
            with pytest.raises(ClusterError, match=r"does not answer like an API server .*please log in"):
                await api.call("GET", PODS)

    asyncio.run(scenario())


def test_server_errors_during_the_listing_are_waited_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path, {PODS: Pods([500, 429, 503, (5, [])], []).answer}) as api:
            assert await changes(api, 1) == [(Type.SYNCED.value, "")]

    asyncio.run(scenario())


def test_missing_permission_is_an_error_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path, {PODS: Pods([403], []).answer}) as api:
            await changes(api, 1)

    with pytest.raises(ApiError, match="403 no"):
        asyncio.run(scenario())


def test_unreachable_server_is_named(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    entry = {"name": "c", "cluster": {"server": "http://127.0.0.1:9/secret"}}
    context = {"name": "c", "context": {"cluster": "c"}}
    config.write_text(json.dumps({"clusters": [entry], "contexts": [context], "current-context": "c"}))

    async def scenario() -> None:
        await Api.connect(Choice(Kind.CONTEXT, (config,), "c"), patience=0.2)

    with pytest.raises(ClusterError, match=r"http://127\.0\.0\.1:9 cannot be reached") as caught:
        asyncio.run(scenario())
    assert "secret" not in str(caught.value)


LINES = [f"2026-01-01T00:00:0{n // 4}.{n % 4}00000000Z line {n}\n".encode() for n in range(24)]
CONTENT = b"".join(b"line %d\n" % n for n in range(24))
"""Four lines a second, for six seconds."""


class Log:
    """A container's log; each follow request takes the next step of the script.

    A step is (bytes to serve, how it ends): `eof`, `cut`, `hang`, or an HTTP status in place of an answer.
    """

    def __init__(self, follows: list[tuple[int, str | int]], served: bytes | int = b"".join(LINES)) -> None:
        self.follows, self.served = follows, served
        self.since: list[str | None] = []
        self.over: Callable[[], None] = lambda: None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        since = request.query.get("sinceTime")
        self.since.append(since)
        whole = self.served if isinstance(self.served, bytes) else b"".join(LINES)
        lines = [line for line in whole.splitlines(keepends=True) if not since or line.decode()[:19] >= since[:19]]
        if "follow" not in request.query:
            if isinstance(self.served, int):
                return web.json_response({"message": "gone"}, status=self.served)
            return web.Response(body=b"".join(lines))
        size, end = self.follows.pop(0) if self.follows else (0, "hang")
        if not self.follows:
            self.over()
        if isinstance(end, int):
            return web.json_response({"message": "waiting to start"}, status=end)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"".join(lines)[:size])
        if end == "cut":
            assert request.transport is not None
            request.transport.close()
        if end == "hang":
            await asyncio.sleep(60)
        return response


def followed(tmp_path: Path, log: Log, *, silence: float = 30.0, pace: Pace | None = None) -> tuple[bytes, LogFollower]:
    """The log as the follower gives it; the container has ended when the last follow request arrives."""
    got: list[bytes] = []

    async def scenario() -> LogFollower:
        async with served(tmp_path, {f"{PODS}/p/log": log.answer}) as api:
            follower = LogFollower(api, "ns", "p", "training", got.append, silence=silence, pace=pace)
            log.over = follower.ended
            async with asyncio.timeout(30):
                await follower.run()
            return follower

    follower = asyncio.run(scenario())
    return b"".join(got), follower


def test_clean_end_while_the_container_runs_is_not_the_end(tmp_path: Path) -> None:
    content, follower = followed(tmp_path, Log([(300, "eof"), (500, "eof"), (0, "eof"), (10_000, "hang")]))
    assert content == CONTENT
    assert follower.whole


def test_every_cut_is_resumed_without_loss_or_repetition(tmp_path: Path) -> None:
    log = Log([(size, "cut") for size in (77, 130, 201, 333, 40, 5)] + [(100, "hang")])
    content, _ = followed(tmp_path, log)
    assert content == CONTENT
    assert log.since[0] is None
    assert all(since and since.endswith("Z") for since in log.since[2:])


def test_stream_that_rests_between_readings_loses_and_repeats_nothing(tmp_path: Path) -> None:
    log = Log([(size, "cut") for size in (77, 333)] + [(400, "eof"), (500, "hang")])
    content, _ = followed(tmp_path, log, pace=Pace(0.01))
    assert content == CONTENT


def lines_one_by_one(sent: asyncio.Event, then: float) -> Handler:
    """A server that sends each line by itself, as a kubelet does, and ends some seconds after the last."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in LINES:
            await response.write(line)
            await asyncio.sleep(0.001)
        sent.set()
        if "follow" in request.query:
            await asyncio.sleep(then)
        return response

    return answer


def test_lines_sent_one_by_one_are_read_by_the_handful(tmp_path: Path) -> None:
    async def scenario() -> list[bytes]:
        got: list[bytes] = []
        complete = asyncio.Event()

        def sink(content: bytes) -> None:
            got.append(content)
            if b"".join(got) == CONTENT:
                complete.set()

        async with served(tmp_path, {f"{PODS}/p/log": lines_one_by_one(asyncio.Event(), 60.0)}) as api:
            follower = LogFollower(api, "ns", "p", "training", sink, pace=Pace(3.0))
            following = asyncio.create_task(follower.run())
            await complete.wait()
            follower.ended()
            await following
        return got

    got = asyncio.run(scenario())
    assert b"".join(got) == CONTENT
    assert len(got) < len(LINES) / 2


def test_end_of_the_container_wakes_a_stream_that_rests(tmp_path: Path) -> None:
    async def scenario() -> bytes:
        got: list[bytes] = []
        sent = asyncio.Event()
        async with served(tmp_path, {f"{PODS}/p/log": lines_one_by_one(sent, 60.0)}) as api:
            follower = LogFollower(api, "ns", "p", "training", got.append, pace=Pace(600.0))
            following = asyncio.create_task(follower.run())
            await sent.wait()
            follower.ended()
            async with asyncio.timeout(30):
                await following
        return b"".join(got)

    assert asyncio.run(scenario()) == CONTENT


def test_streams_take_turns_and_one_that_gives_up_keeps_nobody_waiting() -> None:
    async def scenario() -> None:
        pace = Pace(0.0)
        streams = [asyncio.create_task(pace.rest()) for _ in range(500)]
        await asyncio.sleep(0)
        for stream in streams[::7]:
            stream.cancel()
        async with asyncio.timeout(30):
            await asyncio.gather(*streams, return_exceptions=True)
            await pace.rest()  # and later ones get theirs

    asyncio.run(scenario())


def test_pod_that_waits_to_start_and_server_errors_are_tried_again(tmp_path: Path) -> None:
    content, _ = followed(tmp_path, Log([(0, 400), (0, 503), (0, 500), (10_000, "eof")]))
    assert content == CONTENT


def test_silent_stream_is_opened_again(tmp_path: Path) -> None:
    """As after a rotation in older kubelets: the stream stays open, but nothing comes any more."""
    content, follower = followed(tmp_path, Log([(200, "hang"), (10_000, "eof")]), silence=0.2)
    assert content == CONTENT
    assert follower.reconnects >= 1


def test_deleted_pod_leaves_what_its_open_stream_carried(tmp_path: Path) -> None:
    content, follower = followed(tmp_path, Log([(10_000, "eof")], served=404))
    assert content == CONTENT
    assert follower.whole


def test_stream_that_breaks_when_the_pod_is_deleted_is_known_to_be_cut(tmp_path: Path) -> None:
    content, follower = followed(tmp_path, Log([(200, "cut")], served=404))
    assert CONTENT.startswith(content)
    assert not follower.whole


def test_last_line_without_newline(tmp_path: Path) -> None:
    content, _ = followed(tmp_path, Log([(90, "cut"), (10, "hang")], served=b"".join(LINES) + LINES[-1][:31] + b"end"))
    assert content == CONTENT + b"end"
