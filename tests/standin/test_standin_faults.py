"""Faults that are switched on over HTTP."""

from __future__ import annotations

import http.client

import pytest

from tests.standin.kit import Client


def test_an_error_is_answered_so_many_times(standin: Client) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/configmaps"
    standin.fault(kind="error", path=path, code=429, retryAfter=1, times=2)
    for _ in range(2):
        with standin.open("GET", path) as response:
            response.read()
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
    standin.get(path)


def test_only_the_method_that_is_meant(standin: Client) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/configmaps"
    fault = standin.fault(kind="error", path=path, method="POST", code=503)
    standin.get(path)
    assert standin.ask("POST", path, {"metadata": {"name": "a"}})[0] == 503
    listed = standin.get("/standin/faults")["faults"]
    assert [f["hits"] for f in listed if f["id"] == fault["id"]] == [1]
    standin.ask("DELETE", "/standin/faults", id=fault["id"])
    assert standin.ask("POST", path, {"metadata": {"name": "a"}})[0] == 201


def test_a_watch_is_closed_or_expired_after_some_events(standin: Client) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/configmaps"
    for name in "abc":
        standin.create(path, {"metadata": {"name": name}})
    standin.fault(kind="close-watch", path=path, events=2, times=1)
    assert len(list(standin.watch(path, resourceVersion="0"))) == 2
    standin.fault(kind="expire-watch", path=path, events=1, times=1)
    events = list(standin.watch(path, resourceVersion="0"))
    assert [event["type"] for event in events] == ["ADDED", "ERROR"]
    assert events[1]["object"]["code"] == 410
    standin.fault(kind="expire-watch", path=path, times=1)
    assert [event["type"] for event in standin.watch(path, resourceVersion="0")] == ["ERROR"]


def test_a_connection_is_cut_without_an_answer(standin: Client) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/configmaps"
    standin.fault(kind="disconnect", path=path, times=1)
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        standin.get(path)
    standin.get(path)


def test_a_request_is_delayed(standin: Client) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/configmaps"
    standin.fault(kind="delay", path=path, seconds=0.2, times=1)
    import time

    begun = time.monotonic()
    standin.get(path)
    assert time.monotonic() - begun >= 0.2


def test_an_image_is_refused_for_a_while(standin: Client) -> None:
    from tests.standin.kit import finished, pod

    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.fault(kind="bad-image", path="^flaky:", times=1)
    standin.create(path, pod("pass", container={"image": "flaky:1"}))
    states = set()
    for event in standin.watch(path, resourceVersion="0"):
        statuses = event["object"]["status"].get("containerStatuses") or [{"state": {}}]
        states.add((statuses[0]["state"].get("waiting") or {}).get("reason"))
        if finished(event["object"]):
            break
    assert {"ErrImagePull", "ImagePullBackOff"} <= states


def test_what_is_no_fault_is_refused(standin: Client) -> None:
    assert standin.ask("POST", "/standin/faults", {"kind": "earthquake"})[0] == 400
    code, status = standin.ask("POST", "/standin/faults", {"kind": "error", "colour": "red"})
    assert code == 400
    assert "no such parameter of a fault: colour" in status["message"]
    assert standin.ask("POST", "/standin/faults", {"kind": "error", "path": "("})[0] == 400
