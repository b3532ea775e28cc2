"""Faults of the API server itself: restarts, credentials, permissions, streams that say nothing more."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from typing import Any

import pytest

from tests.standin.kit import DEADLINE, Client, pod, running, wait_until


def test_a_restart_drops_connections_and_keeps_the_state(start: Any) -> None:
    standin = start("--nodes", "cpu:1")
    namespace = standin.namespace()
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    standin.create(path, {"metadata": {"name": "kept"}})
    events = standin.watch(path, resourceVersion="0")
    next(events)
    begun = time.monotonic()
    standin.fault(kind="restart-api", seconds=0.5)

    def back() -> bool:
        try:
            return bool(standin.get(f"{path}/kept"))
        except OSError:
            return False

    wait_until(lambda: not back(), "nobody answers")
    with contextlib.suppress(ConnectionError):
        list(events)  # open watches end, long before their time
    assert time.monotonic() - begun < DEADLINE / 2
    wait_until(back, "the server is back at its address")
    standin.create(path, {"metadata": {"name": "new"}})


def test_credentials_of_the_plugin_expire_and_can_be_had_again(start: Any) -> None:
    standin = start("--nodes", "cpu:1", "--token-life", "0.5")
    config = json.loads(standin.kubeconfig.with_name("kubeconfig-exec").read_text())
    assert "/t/" not in config["clusters"][0]["cluster"]["server"]
    plugin = config["users"][0]["user"]["exec"]

    def token() -> str:
        said = subprocess.run([plugin["command"], *plugin["args"]], capture_output=True, text=True, check=True)
        credential = json.loads(said.stdout)
        assert credential["kind"] == "ExecCredential"
        return str(credential["status"]["token"])

    def code(with_token: str) -> int:
        return standin.ask("GET", "/api/v1/nodes", headers={"Authorization": f"Bearer {with_token}"})[0]

    first = token()
    assert code(first) == 200
    wait_until(lambda: code(first) == 401, "it expires")
    second = token()
    assert code(second) == 200
    standin.ask("DELETE", "/standin/tokens")
    assert code(second) == 401
    assert standin.get("/standin/tokens")["refused"] >= 2
    assert standin.ask("POST", "/standin/tokens", {"seconds": -1})[0] == 400


def test_a_missing_permission_is_refused_and_told_by_a_review(standin: Client) -> None:
    namespace = standin.namespace()
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    fault = standin.fault(kind="forbid", verbs=["create"], resources=["jobs", "pods/log"])

    def allowed(verb: str, resource: str, subresource: str = "") -> bool:
        what = {"verb": verb, "resource": resource, "subresource": subresource, "namespace": namespace}
        review = {"spec": {"resourceAttributes": what}}
        made = standin.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        return bool(made["status"]["allowed"])

    try:
        code, status = standin.ask("POST", jobs, {"metadata": {"name": "j"}, "spec": {}})
        assert (code, status["reason"]) == (403, "Forbidden")
        assert 'User "standin" cannot create resource "jobs" in API group "batch"' in status["message"]
        standin.get(jobs)
        assert not allowed("create", "jobs")
        assert allowed("list", "jobs")
        assert not allowed("create", "pods", "log")
        assert allowed("create", "pods")
        listed = standin.get("/standin/faults")["faults"]
        assert [f["hits"] for f in listed if f["id"] == fault["id"]] == [1], "a review is no request that was refused"
    finally:
        standin.ask("DELETE", "/standin/faults", id=fault["id"])
    assert allowed("create", "jobs")


@pytest.mark.parametrize("kind", ["hang-watch", "hang-log"])
def test_a_stream_goes_silent_and_stays_open(standin: Client, kind: str) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.create(path, pod("import time; print('0123456789', flush=True); time.sleep(1)"))
    standin.until(f"{path}/p", running)
    where, query = (path, {"watch": "true"}) if kind == "hang-watch" else (f"{path}/p/log", {"follow": "true"})
    standin.fault(kind=kind, path=f"{where}$", events=1, bytes=4, times=1)
    with standin.open("GET", where, **query) as response:
        first = response.readline() if kind == "hang-watch" else response.read(4)
        assert first
        standin.until(f"{path}/p", lambda p: p["status"]["phase"] == "Succeeded")
        response.fp.raw._sock.settimeout(0.3)  # type: ignore[attr-defined]
        with pytest.raises(TimeoutError):
            response.read(1)


def test_a_fault_ends_by_itself_some_time_after_it_struck(standin: Client) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/configmaps"
    standin.fault(kind="error", path=path, code=503, lasts=0.3)
    assert standin.ask("GET", path)[0] == 503
    wait_until(lambda: standin.ask("GET", path)[0] == 200, "it is over")
