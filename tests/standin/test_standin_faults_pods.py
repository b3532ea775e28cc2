"""Faults that befall pods and nodes."""

from __future__ import annotations

from typing import Any

from tests.standin.kit import Client, condition, ended, finished, job, pod, running, wait_until

SLEEP = "import time; print('here', flush=True); time.sleep(60)"
SPEAK = "import time\nfor n in range(1000): print(n, flush=True); time.sleep(0.02)"
NODE = "standin-nvidia-0"


def placed(code: str, name: str = "p", **more: Any) -> Any:
    """A pod on the node that faults befall."""
    return pod(code, name, nodeSelector={"kubernetes.io/hostname": NODE}, **more)


def node(standin: Client) -> Any:
    return standin.get(f"/api/v1/nodes/{NODE}")


def ready(standin: Client) -> str:
    conditions = node(standin)["status"]["conditions"]
    return str(next(c["status"] for c in conditions if c["type"] == "Ready"))


def taints(standin: Client) -> set[tuple[str, str]]:
    return {(t["key"].rpartition("/")[2], t["effect"]) for t in node(standin)["spec"].get("taints") or ()}


def test_a_lost_node_says_nothing_and_its_pods_are_marked_but_stay(start: Any) -> None:
    standin = start("--nodes", "nvidia:1x2")
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.create(path, placed(SPEAK))
    standin.until(f"{path}/p", running)
    fault = standin.fault(kind="node-lost", path=NODE, tolerance=0.3)
    marked = standin.until(f"{path}/p", lambda p: "deletionTimestamp" in p["metadata"])
    assert condition(marked, "DisruptionTarget")["reason"] == "DeletionByTaintManager"  # type: ignore[index]
    assert ready(standin) == "Unknown"
    assert taints(standin) == {("unreachable", "NoSchedule"), ("unreachable", "NoExecute")}
    code, status = standin.ask("GET", f"{path}/p/log")
    assert code == 500
    assert "i/o timeout" in status["message"]
    standin.ask("DELETE", "/standin/faults", id=fault["id"])
    standin.until_gone(f"{path}/p")  # the node is back, and hears what was asked of it
    assert ready(standin) == "True"
    wait_until(lambda: not taints(standin), "the taints are gone")


def test_a_pod_goes_on_when_its_node_is_back_in_time(start: Any) -> None:
    standin = start("--nodes", "nvidia:1x2")
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.create(path, placed("import time\nfor n in range(20): print(n, flush=True); time.sleep(0.05)"))
    standin.until(f"{path}/p", running)
    standin.fault(kind="node-lost", path=NODE, lasts=0.5)
    assert standin.until(f"{path}/p", finished)["status"]["phase"] == "Succeeded"
    assert standin.ask("GET", f"{path}/p/log")[1].split() == [str(n).encode() for n in range(20)]


def test_pods_leave_a_node_with_a_taint_that_they_do_not_tolerate(start: Any) -> None:
    standin = start("--nodes", "nvidia:1x2")
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.create(path, placed(SLEEP, "goes", terminationGracePeriodSeconds=0))
    standin.create(path, placed(SLEEP, "stays", tolerations=[{"key": "mine", "operator": "Exists"}]))
    standin.until(f"{path}/goes", running)
    standin.until(f"{path}/stays", running)
    standin.patch(f"/api/v1/nodes/{NODE}", {"spec": {"taints": [{"key": "mine", "effect": "NoExecute"}]}})
    standin.until_gone(f"{path}/goes")
    assert running(standin.get(f"{path}/stays"))


def test_a_node_that_is_not_ready_takes_no_pods(start: Any) -> None:
    standin = start("--nodes", "nvidia:1x2")
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    fault = standin.fault(kind="node-not-ready", path=NODE)
    wait_until(lambda: ("not-ready", "NoExecute") in taints(standin), "the node is tainted")
    standin.create(path, placed("pass"))
    standin.until(f"{path}/p", lambda p: bool(p["status"].get("conditions")))
    assert "node.kubernetes.io/not-ready" in standin.get(f"{path}/p")["status"]["conditions"][0]["message"]
    standin.ask("DELETE", "/standin/faults", id=fault["id"])
    standin.until(f"{path}/p", finished)


def test_devices_that_are_missing_for_a_while(start: Any) -> None:
    standin = start("--nodes", "nvidia:1x8")
    standin.fault(kind="device-plugin", path=NODE, count=7, lasts=0.3)
    assert node(standin)["status"]["allocatable"]["nvidia.com/gpu"] == "7"
    wait_until(lambda: node(standin)["status"]["allocatable"]["nvidia.com/gpu"] == "8", "they are back")


def test_eviction_by_the_kubelet(standin: Client) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.create(path, pod(SLEEP, "evicted"))
    standin.fault(kind="evict-pod", path="^evicted$", times=1)
    gone = standin.until(f"{path}/evicted", finished)
    assert (gone["status"]["phase"], gone["status"]["reason"]) == ("Failed", "Evicted")
    assert "low on resource: memory" in gone["status"]["message"]
    assert condition(gone, "DisruptionTarget")["reason"] == "TerminationByKubelet"  # type: ignore[index]
    assert ended(gone)["exitCode"] == 137


def test_preemption_marks_the_pod_and_deletes_it(standin: Client) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.create(path, pod(SLEEP, "victim", terminationGracePeriodSeconds=0))
    fault = standin.fault(kind="preempt-pod", path="^victim$", after=0.2, times=1)
    marked = standin.until(f"{path}/victim", lambda p: condition(p, "DisruptionTarget") is not None)
    assert condition(marked, "DisruptionTarget")["reason"] == "PreemptionByScheduler"  # type: ignore[index]
    standin.until_gone(f"{path}/victim")
    met = next(f for f in standin.get("/standin/faults")["faults"] if f["id"] == fault["id"])
    assert (met["hits"], met["firstHit"]) == (1, met["lastHit"])


def test_memory_kills_with_both_kinds_of_exit_code(standin: Client) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}]); sys.exit(1)"
    for name, code in (("all", 137), ("child", 0)):
        standin.create(path, pod(parent, name))
        standin.until(f"{path}/{name}", running)
        wait_until(lambda name=name: b"here" in (standin.ask("GET", f"{path}/{name}/log")[1] or b""), "it runs")
        standin.fault(kind="oom-kill", path=f"^{name}$", code=code, times=1)
        done = ended(standin.until(f"{path}/{name}", finished))
        assert (done["reason"], done["exitCode"]) == ("OOMKilled", code)


def test_a_container_is_started_again_whatever_its_policy(standin: Client) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.create(path, pod(SLEEP, "again"))
    standin.until(f"{path}/again", running)
    standin.fault(kind="restart-container", path="^again$", times=1)
    again = standin.until(f"{path}/again", lambda p: p["status"]["containerStatuses"][0]["restartCount"] == 1)
    assert again["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137


def test_a_container_that_cannot_be_configured_says_why(standin: Client) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.fault(kind="config-error", path="^odd$", message='secret "s" not found', times=1)
    standin.create(path, pod("pass", "odd"))
    seen = set()
    for event in standin.watch(path, resourceVersion="0", fieldSelector="metadata.name=odd"):
        statuses = event["object"]["status"].get("containerStatuses") or [{"state": {}}]
        waiting = statuses[0]["state"].get("waiting") or {}
        seen.add((waiting.get("reason"), waiting.get("message")))
        if finished(event["object"]):
            break
    assert ("CreateContainerConfigError", 'secret "s" not found') in seen


def test_a_pod_that_is_stuck_stays_terminating(standin: Client) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.create(path, pod(SLEEP, "stuck", terminationGracePeriodSeconds=0))
    standin.until(f"{path}/stuck", running)
    fault = standin.fault(kind="stuck-pod", path="^stuck$")
    standin.patch(f"{path}/stuck", {"metadata": {"finalizers": ["example.org/keep"]}})
    standin.ask("DELETE", f"{path}/stuck")
    standin.until(f"{path}/stuck", lambda p: "deletionTimestamp" in p["metadata"])
    wait_until(lambda: standin.get("/standin/faults")["faults"][-1]["hits"] > 0, "it was asked to end")
    assert running(standin.get(f"{path}/stuck"))
    standin.ask("DELETE", "/standin/faults", id=fault["id"])
    standin.until(f"{path}/stuck", finished)
    standin.patch(f"{path}/stuck", {"metadata": {"finalizers": None}})
    standin.until_gone(f"{path}/stuck")


def test_clocks_that_differ_show_in_logs_and_status(start: Any) -> None:
    from datetime import datetime, timezone

    standin = start("--nodes", "nvidia:1x2")
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.fault(kind="clock-skew", path=NODE, seconds=-7200)
    standin.create(path, placed("print('x')"))
    started = ended(standin.until(f"{path}/p", finished))["startedAt"]
    stamp = standin.ask("GET", f"{path}/p/log", timestamps="true")[1].split()[0].decode()
    for said in (started, stamp[:19] + "Z"):
        behind = datetime.now(timezone.utc) - datetime.fromisoformat(said)
        assert 7190 < behind.total_seconds() < 7260


def test_a_preempted_pod_fails_its_job_by_policy(standin: Client) -> None:
    namespace = standin.namespace()
    policy = {"rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    standin.fault(kind="preempt-pod", path="^doomed-1-", times=1)
    made = job(SLEEP, "doomed", podFailurePolicy=policy)
    made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    standin.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", made)
    failed = standin.until(
        f"/apis/batch/v1/namespaces/{namespace}/jobs/doomed", lambda j: condition(j, "Failed") is not None
    )
    assert condition(failed, "Failed")["reason"] == "PodFailurePolicy"  # type: ignore[index]
