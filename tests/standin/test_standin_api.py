"""The API's semantics: versions, conflicts, watches, pages, selectors, patches, deletion."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from tests.standin.kit import Client, Start, pod

MAPS = "/api/v1/namespaces/{}/configmaps"


def make(standin: Client, path: str, name: str, labels: dict[str, str] | None = None, **parts: Any) -> dict[str, Any]:
    made: dict[str, Any] = standin.create(path, {"metadata": {"name": name, "labels": labels or {}}, **parts})
    return made


def names(listing: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in listing["items"]]


def test_without_the_token_nothing_is_said(standin: Client) -> None:
    connection = http.client.HTTPConnection(*standin.address)
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        connection.request("GET", "/api/v1/nodes", headers=headers)
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())["reason"]) == (401, "Unauthorized")
    connection.close()


def test_a_stale_version_is_a_conflict(standin: Client) -> None:
    path = MAPS.format(standin.namespace())
    first = make(standin, path, "a", data={"x": "1"})
    code, second = standin.ask("PUT", f"{path}/a", first | {"data": {"x": "2"}})
    assert code == 200
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    code, status = standin.ask("PUT", f"{path}/a", first | {"data": {"x": "3"}})
    assert (code, status["reason"]) == (409, "Conflict")
    assert standin.ask("POST", path, first)[1]["reason"] == "AlreadyExists"
    wrong = {"preconditions": {"uid": "another"}}
    assert standin.ask("DELETE", f"{path}/a", wrong)[1]["reason"] == "Conflict"


def test_an_update_that_changes_nothing_has_no_new_version(standin: Client) -> None:
    path = MAPS.format(standin.namespace())
    first = make(standin, path, "a", data={"x": "1"})
    same = standin.patch(f"{path}/a", {"data": {"x": "1"}})
    assert same["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_generated_names_and_server_fields(standin: Client) -> None:
    path = MAPS.format(standin.namespace())
    made = standin.create(path, {"metadata": {"generateName": "run-"}})
    assert made["metadata"]["name"].startswith("run-")
    assert len(made["metadata"]["name"]) == 9
    assert made["metadata"]["uid"]
    assert standin.ask("POST", path, {"metadata": {}})[0] == 422


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("a=1", ["one"]),
        ("a!=1", ["none", "two"]),
        ("a in (1, 2)", ["one", "two"]),
        ("a notin (1),a", ["two"]),
        ("!a", ["none"]),
        ("a=2,b==x", ["two"]),
    ],
)
def test_label_selectors(standin: Client, selector: str, expected: list[str]) -> None:
    path = MAPS.format(standin.namespace())
    make(standin, path, "one", {"a": "1"})
    make(standin, path, "two", {"a": "2", "b": "x"})
    make(standin, path, "none")
    held = [name for name in names(standin.get(path, labelSelector=selector)) if name != "kube-root-ca.crt"]
    assert held == expected


def test_field_selectors(standin: Client) -> None:
    path = MAPS.format(standin.namespace())
    make(standin, path, "one")
    assert names(standin.get(path, fieldSelector="metadata.name=one")) == ["one"]
    assert "one" not in names(standin.get(path, fieldSelector="metadata.name!=one"))
    assert standin.ask("GET", path, fieldSelector="data.x=1")[1]["message"] == "field label not supported: data.x"
    assert standin.ask("GET", path, labelSelector="a in")[0] == 400


def test_pages_show_the_list_as_it_was(standin: Client) -> None:
    path = MAPS.format(standin.namespace())
    for index in range(5):
        make(standin, path, f"m{index}", {"page": "yes"})
    page = standin.get(path, labelSelector="page=yes", limit=2)
    assert names(page) == ["m0", "m1"]
    assert page["metadata"]["remainingItemCount"] == 3
    standin.ask("DELETE", f"{path}/m3")
    following = {"labelSelector": "page=yes", "limit": 2, "continue": page["metadata"]["continue"]}
    rest = standin.get(path, **following)
    assert names(rest) == ["m2", "m3"]
    assert rest["metadata"]["resourceVersion"] == page["metadata"]["resourceVersion"]
    assert standin.ask("GET", path, **{"continue": "nonsense"})[0] == 410


def test_a_watch_continues_where_a_list_ended(standin: Client) -> None:
    path = MAPS.format(standin.namespace())
    make(standin, path, "before")
    version = standin.get(path)["metadata"]["resourceVersion"]
    make(standin, path, "a", {"on": "1"})
    standin.patch(f"{path}/a", {"metadata": {"labels": {"on": "0"}}})
    standin.ask("DELETE", f"{path}/a")
    seen = standin.watch(path, resourceVersion=version)
    assert [next(seen)["type"] for _ in range(3)] == ["ADDED", "MODIFIED", "DELETED"]
    selected = standin.watch(path, resourceVersion=version, labelSelector="on=1")
    events = [next(selected) for _ in range(2)]
    assert [event["type"] for event in events] == ["ADDED", "DELETED"], "leaving the selection is DELETED"
    assert events[1]["object"]["metadata"]["labels"] == {"on": "1"}


def test_a_watch_ends_in_time_and_says_how_far_it_got(standin: Client) -> None:
    path = MAPS.format(standin.namespace())
    assert [e["type"] for e in standin.watch(path, resourceVersion="0", timeoutSeconds=1)].count("ADDED") <= 1
    listing = {"sendInitialEvents": "true", "allowWatchBookmarks": "true", "resourceVersionMatch": "NotOlderThan"}
    make(standin, path, "a")
    for event in standin.watch(path, timeoutSeconds=1, **listing):
        if event["type"] == "BOOKMARK":
            break
    assert event["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_a_version_beyond_the_history_is_gone(start: Start) -> None:
    client = start("--nodes", "cpu:1", "--history", "10")
    path = MAPS.format("default")
    version = client.get(path)["metadata"]["resourceVersion"]
    for index in range(20):
        make(client, path, f"m{index}")
    (event,) = client.watch(path, resourceVersion=version)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_a_compaction_makes_earlier_versions_and_pages_gone(start: Start) -> None:
    client = start("--nodes", "cpu:2")
    page = client.get("/api/v1/nodes", limit=1)["metadata"]
    make(client, MAPS.format("default"), "later")
    assert client.ask("POST", "/standin/compact")[0] == 200
    (event,) = client.watch("/api/v1/nodes", resourceVersion=page["resourceVersion"])
    assert event["object"]["code"] == 410
    assert client.ask("GET", "/api/v1/nodes", **{"continue": page["continue"]})[0] == 410


def test_patches(standin: Client) -> None:
    space = standin.namespace()
    path = f"/apis/batch/v1/namespaces/{space}/jobs"
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    from tests.standin.kit import job

    standin.create(path, job("pass", suspend=True, container={"env": env}))
    operations = [
        {"op": "test", "path": "/spec/suspend", "value": True},
        {"op": "add", "path": "/metadata/labels/x~1y", "value": "z"},
        {"op": "replace", "path": "/spec/parallelism", "value": 1},
    ]
    patched = standin.patch(f"{path}/j", operations, "json-patch")
    assert (patched["metadata"]["labels"]["x/y"], patched["spec"]["parallelism"]) == ("z", 1)
    wrong = [{"op": "test", "path": "/spec/parallelism", "value": 7}]
    assert standin.ask("PATCH", f"{path}/j", wrong, {"Content-Type": "application/json-patch+json"})[0] == 422
    pods = f"/api/v1/namespaces/{space}/pods"
    standin.create(pods, pod("pass", nodeSelector={"no": "where"}))
    container = {"name": "main", "image": "other"}
    merged = standin.patch(f"{pods}/p", {"spec": {"containers": [container]}}, "strategic-merge-patch")
    (held,) = merged["spec"]["containers"]
    assert (held["image"], held["command"][0]) == ("other", "python3"), "containers merge by name"


def test_status_is_written_apart_from_the_rest(standin: Client) -> None:
    node = standin.get("/api/v1/nodes/standin-cpu-0")
    kind = {"Content-Type": "application/merge-patch+json"}
    body = {"status": {"allocatable": {"example.com/thing": "3"}}}
    assert standin.ask("PATCH", "/api/v1/nodes/standin-cpu-0", body, kind)[1]["status"] == node["status"]
    code, patched = standin.ask("PATCH", "/api/v1/nodes/standin-cpu-0/status", body | {"spec": {"x": 1}}, kind)
    assert code == 200
    assert patched["status"]["allocatable"]["example.com/thing"] == "3"
    assert patched["spec"] == node["spec"]


def test_unknown_fields_are_refused_reported_or_dropped_as_asked(standin: Client) -> None:
    path = MAPS.format(standin.namespace())
    body = {"metadata": {"name": "a"}, "dta": {}}
    code, status = standin.ask("POST", path, body, fieldValidation="Strict")
    assert code == 400
    assert 'strict decoding error: unknown field "dta"' in status["message"]
    with standin.open("POST", path, body) as response:
        assert "dta" not in json.loads(response.read())
    assert response.headers["Warning"] == '299 - "unknown field \\"dta\\""'
    code, status = standin.ask("POST", path, {"metadata": {"name": "b"}, "data": {"x": 1}})
    assert code == 400
    assert "cannot unmarshal number into Go struct field ConfigMap.data.x of type string" in status["message"]


def test_a_deleted_namespace_ends_with_all_that_is_in_it(standin: Client) -> None:
    space = standin.namespace()
    pods = f"/api/v1/namespaces/{space}/pods"
    standin.create(pods, pod("import time; time.sleep(60)", terminationGracePeriodSeconds=1))
    make(standin, MAPS.format(space), "a")
    code, held = standin.ask("DELETE", f"/api/v1/namespaces/{space}")
    assert (code, held["status"]["phase"]) == (200, "Terminating")
    code, status = standin.ask("POST", MAPS.format(space), {"metadata": {"name": "late"}})
    assert (code, status["reason"]) == (403, "Forbidden")
    standin.until_gone(f"/api/v1/namespaces/{space}")
    assert standin.get(pods)["items"] == []
    assert standin.ask("POST", MAPS.format(space), {"metadata": {"name": "late"}})[0] == 404


def test_finalizers_hold_an_object_and_owners_take_dependents(standin: Client) -> None:
    path = MAPS.format(standin.namespace())
    owner = standin.create(path, {"metadata": {"name": "owner", "finalizers": ["example.com/hold"]}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    standin.create(path, {"metadata": {"name": "child", "ownerReferences": [reference]}})
    standin.ask("DELETE", f"{path}/owner")
    assert "deletionTimestamp" in standin.get(f"{path}/owner")["metadata"]
    standin.patch(f"{path}/owner", {"metadata": {"finalizers": None}})
    standin.until_gone(f"{path}/child")
    assert standin.ask("GET", f"{path}/owner")[0] == 404


def test_leases_are_taken_with_optimistic_concurrency(standin: Client) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{standin.namespace()}/leases"
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2026-11-30T10:00:00.000001Z"}
    lease = standin.create(path, {"metadata": {"name": "node-0"}, "spec": spec})
    standin.ask("PUT", f"{path}/node-0", lease | {"spec": spec | {"holderIdentity": "you"}})
    assert standin.ask("PUT", f"{path}/node-0", lease)[0] == 409


def test_tables(standin: Client) -> None:
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
    code, table = standin.ask("GET", "/api/v1/nodes", headers=accept)
    assert (code, table["kind"]) == (200, "Table")
    assert [column["name"] for column in table["columnDefinitions"]][:2] == ["Name", "Status"]
    assert table["rows"][0]["cells"][:2] == ["standin-cpu-0", "Ready"]


@pytest.mark.parametrize("path", ["/api/v1/gadgets", "/apis/none/v1/things", "/api/v1/namespaces/x/pods/p/exec"])
def test_what_is_not_served_is_not_found(standin: Client, path: str) -> None:
    code, status = standin.ask("GET", path)
    assert (code, status["kind"], status["reason"]) == (404, "Status", "NotFound")
