"""The Job controller: completion, suspension, failure, deadline, TTL."""

from __future__ import annotations

import pytest

from tests.standin.kit import Client, condition, ended, finished, job, running

SLEEP = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print('up', flush=True)
time.sleep(60)
"""


def make(standin: Client, body: dict) -> tuple[str, str]:
    """Creates a Job in a namespace of its own. Returns the paths of the Job and of the pods."""
    space = standin.namespace()
    standin.create(f"/apis/batch/v1/namespaces/{space}/jobs", body)
    return f"/apis/batch/v1/namespaces/{space}/jobs/{body['metadata']['name']}", f"/api/v1/namespaces/{space}/pods"


def up(standin: Client, pods: str, count: int) -> list[dict]:
    """The pods once `count` of them run and have their signal handlers: a PID 1 without one ignores SIGTERM."""
    standin.until(
        pods.replace("/api/v1/", "/apis/batch/v1/").replace("/pods", "/jobs/j"),
        lambda j: j["status"].get("ready") == count,
    )
    made = [pod for pod in standin.get(pods)["items"] if running(pod)]
    for pod in made:
        with standin.open("GET", f"{pods}/{pod['metadata']['name']}/log", follow="true") as response:
            assert response.readline() == b"up\n"
    return made


def reasons(standin: Client, pods: str, kind: str = "Job") -> set[str]:
    events = standin.get(pods.replace("/pods", "/events"))["items"]
    return {event["reason"] for event in events if event["involvedObject"]["kind"] == kind}


def test_an_indexed_job_completes_with_one_pod_per_index(standin: Client) -> None:
    path, pods = make(standin, job("import os; print(os.environ['JOB_COMPLETION_INDEX'])", completions=3))
    done = standin.until(path, lambda j: condition(j, "Complete") is not None)
    assert done["status"]["completedIndexes"] == "0-2"
    assert done["status"]["succeeded"] == 3
    assert condition(done, "SuccessCriteriaMet")
    assert "completionTime" in done["status"]
    made = standin.get(pods)["items"]
    for pod in made:
        index = pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
        assert pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] == index
        assert pod["spec"]["hostname"] == f"j-{index}"
        assert len(pod["metadata"]["name"]) == len(f"j-{index}-xxxxx")
        assert standin.get(f"{pods}/{pod['metadata']['name']}/log") == f"{index}\n".encode()
    assert reasons(standin, pods) == {"SuccessfulCreate", "Completed"}


def test_a_suspended_job_starts_when_it_is_resumed_and_stops_when_it_is_suspended(standin: Client) -> None:
    path, pods = make(standin, job(SLEEP, suspend=True))
    held = standin.until(path, lambda j: condition(j, "Suspended") is not None)
    assert "startTime" not in held["status"]
    assert standin.get(pods)["items"] == []
    standin.patch(path, {"spec": {"suspend": False}})
    up(standin, pods, 2)
    standin.patch(path, {"spec": {"suspend": True}})
    standin.until(path, lambda j: condition(j, "Suspended") is not None and not j["status"]["terminating"])
    assert standin.get(pods)["items"] == []
    assert not standin.get(path)["status"].get("failed")
    assert {"Suspended", "Resumed"} <= reasons(standin, pods)


def test_a_failed_pod_fails_the_job_and_its_peer_is_stopped_first(standin: Client) -> None:
    code = f"import os\nif os.environ['JOB_COMPLETION_INDEX'] == '1':\n    raise SystemExit(17)\n{SLEEP}"
    path, pods = make(standin, job(code, name="f"))
    seen = []
    for event in standin.watch(path.rpartition("/")[0], resourceVersion="0"):
        status = event["object"]["status"]
        seen.append(
            (condition(event["object"], "FailureTarget") is not None, condition(event["object"], "Failed") is not None)
        )
        if seen[-1][1]:
            break
    assert (True, False) in seen, "FailureTarget comes before Failed"
    assert condition(event["object"], "Failed")["reason"] == "BackoffLimitExceeded"  # type: ignore[index]
    assert status["failed"] == 2
    left = standin.get(pods)["items"]
    assert [ended(pod)["exitCode"] for pod in left] == [17], "the peer's object is gone, the failed pod's stays"
    assert {"SuccessfulDelete", "BackoffLimitExceeded"} <= reasons(standin, pods)


def test_the_watch_of_a_deleted_peer_carries_its_exit_code(standin: Client) -> None:
    code = f"import os\nif os.environ['JOB_COMPLETION_INDEX'] == '1':\n    raise SystemExit(1)\n{SLEEP}"
    _, pods = make(standin, job(code))
    for event in standin.watch(pods, resourceVersion="0", labelSelector="batch.kubernetes.io/job-completion-index=0"):
        if event["type"] == "DELETED":
            break
    assert event["object"]["status"]["phase"] == "Failed"
    assert ended(event["object"])["exitCode"] in (143, 137)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}, "PodFailurePolicy"),
        ({"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}}, "PodFailurePolicy"),
        ({"action": "Count", "onExitCodes": {"operator": "In", "values": [42]}}, "BackoffLimitExceeded"),
    ],
    ids=["fail-job", "not-in", "count"],
)
def test_a_failure_policy_rules_on_exit_codes(standin: Client, rule: dict, reason: str) -> None:
    path, _ = make(standin, job("raise SystemExit(42)", completions=1, podFailurePolicy={"rules": [rule]}))
    failed = standin.until(path, lambda j: condition(j, "Failed") is not None)
    held = condition(failed, "Failed")
    assert held is not None
    assert held["reason"] == reason
    if reason == "PodFailurePolicy":
        assert "failed with exit code 42 matching FailJob rule at index 0" in held["message"]


def test_an_eviction_fails_the_job_where_the_policy_says_so(standin: Client) -> None:
    rule = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}
    path, pods = make(standin, job(SLEEP, completions=1, podFailurePolicy={"rules": [rule]}))
    name = up(standin, pods, 1)[0]["metadata"]["name"]
    standin.create(
        f"{pods}/{name}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    )
    failed = standin.until(path, lambda j: condition(j, "Failed") is not None)
    assert "has condition DisruptionTarget matching FailJob rule" in condition(failed, "Failed")["message"]  # type: ignore[index]


def test_an_ignored_disruption_brings_a_replacement_and_no_failure(standin: Client) -> None:
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    path, pods = make(standin, job(SLEEP, completions=1, podFailurePolicy={"rules": [rule]}))
    first = up(standin, pods, 1)[0]["metadata"]
    standin.create(f"{pods}/{first['name']}/eviction", {"metadata": {"name": first["name"]}})
    for event in standin.watch(pods, resourceVersion="0"):
        if event["object"]["metadata"]["uid"] != first["uid"] and running(event["object"]):
            break
    assert not standin.get(path)["status"].get("failed")
    standin.ask("DELETE", path, {"propagationPolicy": "Background"})


def test_a_deadline_ends_the_job(standin: Client) -> None:
    path, pods = make(standin, job(SLEEP, activeDeadlineSeconds=1))
    failed = standin.until(path, lambda j: condition(j, "Failed") is not None)
    assert condition(failed, "Failed")["reason"] == "DeadlineExceeded"  # type: ignore[index]
    assert "DeadlineExceeded" in reasons(standin, pods)


def test_ttl_removes_a_finished_job_and_what_it_owns(standin: Client) -> None:
    space = standin.namespace()
    jobs, maps = f"/apis/batch/v1/namespaces/{space}/jobs", f"/api/v1/namespaces/{space}/configmaps"
    made = standin.create(jobs, job("pass", ttlSecondsAfterFinished=0, suspend=True))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": made["metadata"]["uid"]}
    standin.create(maps, {"metadata": {"name": "owned", "ownerReferences": [owner]}})
    standin.patch(f"{jobs}/j", {"spec": {"suspend": False}})
    standin.until_gone(f"{jobs}/j")
    standin.until_gone(f"{maps}/owned")
    assert standin.get(f"/api/v1/namespaces/{space}/pods")["items"] == []


def test_on_failure_restarts_the_container_and_counts(standin: Client) -> None:
    code = "import os, pathlib, sys\nseen = pathlib.Path(os.environ['TMPDIR'], 'seen')\nif not seen.exists():\n"
    code += "    seen.touch(); print('first', flush=True); sys.exit(3)\nprint('second')"
    body = job(code, completions=1, backoffLimit=3)
    body["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    path, pods = make(standin, body)
    standin.until(path, lambda j: condition(j, "Complete") is not None)
    (pod,) = standin.get(pods)["items"]
    (status,) = pod["status"]["containerStatuses"]
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 3
    log = f"{pods}/{pod['metadata']['name']}/log"
    assert standin.get(log) == b"second\n"
    assert standin.get(log, previous="true") == b"first\n"


def test_a_refused_pod_is_reported_on_the_job(standin: Client) -> None:
    fault = standin.fault(kind="forbid-pod", path="^quota-", times=1, message="exceeded quota: small")
    path, pods = make(standin, job("pass", name="quota", completions=1))
    standin.until(path, lambda j: condition(j, "Complete") is not None)
    events = standin.get(pods.replace("/pods", "/events"), fieldSelector="reason=FailedCreate")["items"]
    assert [event["message"] for event in events] == [
        'Error creating: pods "quota-0-" is forbidden: exceeded quota: small'
    ]
    standin.ask("DELETE", "/standin/faults", id=fault["id"])


def test_deleting_a_job_without_a_policy_orphans_its_pods(standin: Client) -> None:
    path, pods = make(standin, job(SLEEP, completions=1))
    up(standin, pods, 1)
    with standin.open("DELETE", path) as response:
        response.read()
    assert "child pods are preserved by default" in response.headers["Warning"]
    standin.until_gone(path)
    (pod,) = standin.get(pods)["items"]
    assert running(pod)
    assert "ownerReferences" not in pod["metadata"]
    standin.ask("DELETE", f"{pods}/{pod['metadata']['name']}", gracePeriodSeconds=0)


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
def test_deleting_a_job_takes_its_pods_along(standin: Client, policy: str) -> None:
    path, pods = make(standin, job(SLEEP))
    up(standin, pods, 2)
    standin.ask("DELETE", path, {"propagationPolicy": policy})
    standin.until_gone(path)
    left = standin.get(pods)
    if policy == "Foreground":
        assert left["items"] == []
    for _ in left["items"]:
        for event in standin.watch(pods, resourceVersion=left["metadata"]["resourceVersion"]):
            if event["type"] == "DELETED":
                break


def test_a_wrong_job_is_refused_with_every_cause(standin: Client) -> None:
    body = job("pass")
    body["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    del body["spec"]["completions"]
    body["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = [{"name": "none", "mountPath": "/x"}]
    code, status = standin.ask("POST", "/apis/batch/v1/namespaces/default/jobs", body)
    assert (code, status["reason"]) == (422, "Invalid")
    assert {cause["field"] for cause in status["details"]["causes"]} == {
        "spec.completions",
        "spec.template.spec.restartPolicy",
        "spec.template.spec.containers[0].volumeMounts[0].name",
    }


def test_the_template_of_a_job_is_immutable(standin: Client) -> None:
    path, _ = make(standin, job("pass", suspend=True))
    wrong = {"spec": {"template": {"spec": {"subdomain": "other"}}}}
    code, status = standin.ask("PATCH", path, wrong, {"Content-Type": "application/merge-patch+json"})
    assert code == 422
    assert "spec.template: Invalid value: field is immutable" in status["message"]


def test_indexes_that_failed_are_not_finished(standin: Client) -> None:
    path, pods = make(
        standin, job("import os; raise SystemExit(os.environ['JOB_COMPLETION_INDEX'] == '0')", name="half")
    )
    standin.until(path, lambda j: condition(j, "Failed") is not None)
    assert all(finished(pod) for pod in standin.get(pods)["items"])
    assert "0" not in standin.get(path)["status"].get("completedIndexes", "").split(",")
