"""Node leases on a real API: one holder at a time, expiry, takeover, and no two runs that wait for each other."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from allranks.cluster import ClusterError
from allranks.cluster.choose import Choice, Kind
from allranks.cluster.client import Api
from allranks.cluster.leases import NodeLeases
from allranks.result import Verdict

NODES = ("node-a", "node-b", "node-c")


@asynccontextmanager
async def apis(cluster: Any, count: int = 1) -> AsyncIterator[list[Api]]:
    made = [await Api.connect(Choice(Kind.STANDIN, (cluster.kubeconfig,))) for _ in range(count)]
    try:
        yield made
    finally:
        for api in made:
            await api.close()


def wait_until(so: Callable[[], object]) -> None:
    until = time.monotonic() + 10
    while not so():
        assert time.monotonic() < until
        time.sleep(0.01)


def held(cluster: Any, namespace: str) -> dict[str, str]:
    items = cluster.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")["items"]
    return {item["metadata"]["name"]: item["spec"]["holderIdentity"] for item in items}


def test_second_run_waits_says_for_whom_and_goes_on(cluster: Any) -> None:
    said: list[str] = []
    order: list[str] = []

    async def use(api: Api, name: str, started: asyncio.Event, leave: asyncio.Event) -> None:
        leases = NodeLeases(api, "leases-wait", name, said.append)
        async with leases.hold(NODES[:2], 2, patience=20) as names:
            assert names == NODES[:2]
            order.append(name)
            started.set()
            await leave.wait()

    async def main() -> None:
        async with apis(cluster, 2) as (one, two):
            started, leave = asyncio.Event(), asyncio.Event()
            first = asyncio.create_task(use(one, "bert-a", started, leave))
            await started.wait()
            second = asyncio.create_task(use(two, "bert-b", asyncio.Event(), leave))
            await asyncio.to_thread(wait_until, lambda: said)
            leave.set()
            await asyncio.gather(first, second)

    asyncio.run(main())
    assert order == ["bert-a", "bert-b"]
    assert re.match(r"node node-a is held by bert-a \(.+@.+\) since 2\d\d\d-", said[0]), said
    assert held(cluster, "leases-wait") == {}


def test_free_nodes_are_taken_before_those_that_are_held(cluster: Any) -> None:
    async def main() -> None:
        async with apis(cluster, 2) as (one, two):
            first = NodeLeases(one, "leases-free", "bert-a", print)
            second = NodeLeases(two, "leases-free", "bert-b", print)
            async with first.hold(NODES, 1, patience=5) as names, second.hold(NODES, 2, patience=5) as others:
                assert (names, others) == (("node-a",), ("node-b", "node-c"))

    asyncio.run(main())


def test_many_runs_on_overlapping_nodes_all_get_their_turn(cluster: Any) -> None:
    """Each wants two of three: taken in any order, they would wait for each other."""
    most, using = [0], [0]

    async def use(api: Api, number: int) -> None:
        async with NodeLeases(api, "leases-many", f"bert-{number}", lambda why: None).hold(
            NODES, 2, patience=60
        ) as names:
            using[0] += len(names)
            most[0] = max(most[0], using[0])
            await asyncio.sleep(0.05)
            using[0] -= len(names)

    async def main() -> None:
        async with apis(cluster, 5) as clients:
            await asyncio.gather(*(use(api, number) for number, api in enumerate(clients)))

    asyncio.run(main())
    assert most[0] <= len(NODES)
    assert held(cluster, "leases-many") == {}


def test_lease_of_a_run_that_died_expires_and_is_taken_over(cluster: Any) -> None:
    async def main() -> float:
        async with apis(cluster, 2) as (one, two):
            dead = NodeLeases(one, "leases-dead", "bert-dead", print, duration=1)
            await dead._make_namespace()
            assert await dead._write("node-a", None)  # and never renewed
            began = time.monotonic()
            async with NodeLeases(two, "leases-dead", "bert-b", print, duration=1).hold(["node-a"], 1, patience=20):
                return time.monotonic() - began

    assert 0.9 < asyncio.run(main()) < 5
    assert held(cluster, "leases-dead") == {}


def test_lease_is_renewed_as_long_as_it_is_held(cluster: Any) -> None:
    async def main() -> None:
        async with apis(cluster, 2) as (one, two):
            first = NodeLeases(one, "leases-renewed", "bert-a", print, duration=1)
            second = NodeLeases(two, "leases-renewed", "bert-b", print, duration=1)
            async with first.hold(["node-a"], 1, patience=5):
                with pytest.raises(ClusterError, match=r"node node-a is held by bert-a .*: waited 2.5 s"):
                    async with second.hold(["node-a"], 1, patience=2.5):
                        raise AssertionError("two runs hold one node")
            assert first.lost == []

    asyncio.run(main())


def test_lease_that_somebody_took_is_noticed_and_not_deleted(cluster: Any) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/leases-lost/leases/node-a"

    async def main() -> list[str]:
        async with apis(cluster) as (api,):
            leases = NodeLeases(api, "leases-lost", "bert-a", print, duration=1)
            async with leases.hold(["node-a"], 1, patience=5):
                lease = await api.call("GET", path)
                lease["spec"]["holderIdentity"] = "somebody"
                await api.call("PUT", path, body=lease)
                await asyncio.to_thread(wait_until, lambda: leases.lost)
            return leases.lost

    assert asyncio.run(main())[0].startswith("node-a (now held by somebody")
    assert held(cluster, "leases-lost") == {"node-a": "somebody"}


def test_two_runs_at_once_on_the_same_nodes_both_pass(cluster: Any) -> None:
    runs: list[Any] = []
    seen: list[Any] = []
    threads = [
        threading.Thread(target=lambda: runs.append(cluster.run("--step-time", "0.1", observe=seen.append)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [run.verdict for run in runs] == [Verdict.PASSED] * 2
    waits = [progress for progress in seen if progress.phase == "wait"]
    assert waits
    assert "is held by faulty-nvidia-" in waits[0].message
    assert held(cluster, "allranks") == {}
