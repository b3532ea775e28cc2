"""Every way out removes what a run made; what is kept can be looked at; leftovers are removed if they are ours."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from allranks.artefacts import Artefacts, replay
from allranks.result import Verdict
from allranks.signals import Interrupted
from tests.engine.test_commands import ROOT, allranks


def test_signal_during_teardown_does_not_stop_it(cluster: Any) -> None:
    """Deleting takes a while; the signal comes when the verdict is known and the objects are being removed."""
    sent: list[float] = []
    cluster.fault(kind="delay", method="DELETE", seconds=0.4)

    def deleting() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if not re.search(r'"hits": ?0\b', cluster.text("/standin/faults")):
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(0.02)

    thread = threading.Thread(target=deleting)
    thread.start()
    with pytest.raises(Interrupted):
        cluster.run()
    thread.join()
    assert sent
    cluster.no_faults()
    wait_until_gone(cluster)


def wait_until_gone(cluster: Any) -> None:
    until = time.monotonic() + 10  # a namespace goes when all that is in it has gone
    while cluster.left():
        assert time.monotonic() < until, cluster.left()
        time.sleep(0.05)


def test_object_that_cannot_be_deleted_keeps_none_of_the_others(cluster: Any) -> None:
    cluster.fault(kind="error", method="DELETE", path="/configmaps/", code=403)
    assert cluster.run("--steps", "2").verdict is Verdict.PASSED
    wait_until_gone(cluster)


def test_run_that_may_not_be_stopped_is_judged_all_the_same(cluster: Any) -> None:
    cluster.fault(kind="error", method="DELETE", path="/pods/", code=403)
    run = cluster.run("--fault", "hang", "--rank", "3", stall_timeout=1.0)
    assert run.judgement.cause is not None
    assert run.judgement.cause.code == "stall"
    wait_until_gone(cluster)


def test_artefacts_that_cannot_be_closed_leave_nothing_on_the_cluster(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full says so when the last of the buffers is written."""

    close = Artefacts.close

    def full(artefacts: Artefacts) -> None:
        close(artefacts)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Artefacts, "close", full)
    with pytest.raises(OSError, match="No space left"):
        cluster.run("--steps", "2")
    wait_until_gone(cluster)


def test_kept_run_tells_how_to_look_at_it(cluster: Any) -> None:
    run = cluster.run("--fault", "hang", "--rank", "3", stall_timeout=1.0, keep="failed")
    try:
        assert run.judgement.cause is not None
        assert run.judgement.cause.code == "stall"
        told = next(finding for finding in run.findings if finding.code == "note-kept")
        assert any(f"-n {run.namespace} get job,pods" in line for line in told.evidence)
        assert any(line.endswith(f"delete namespace {run.namespace}") for line in told.evidence)
        job = cluster.get(f"/apis/batch/v1/namespaces/{run.namespace}/jobs/{run.plan.run_id}")
        assert {c["type"]: c["reason"] for c in job["status"]["conditions"]}["Failed"] == "DeadlineExceeded"
        assert b"stack: hang() waits" in b"".join(p.read_bytes() for p in (Path(str(run.artefacts)) / "logs").iterdir())
        again = replay(Path(str(run.artefacts)))
        assert again.to_dict() == json.loads((Path(str(run.artefacts)) / "result.json").read_text())
    finally:
        cluster.delete_namespace(run.namespace)


def test_kept_run_that_did_not_start_stays_as_it_is(cluster: Any) -> None:
    free = cluster.hold("standin-nvidia-1", "nvidia.com/gpu", 2)
    try:
        run = cluster.run("--steps", "900", "--step-time", "0.1", schedule_timeout=1.0, keep="failed", attempts=1)
        assert run.judgement.cause is not None
        assert run.judgement.cause.code == "unschedulable"
        pods = cluster.get(f"/api/v1/namespaces/{run.namespace}/pods")["items"]
        assert "Pending" in [pod["status"]["phase"] for pod in pods]
        cluster.delete_namespace(run.namespace)
    finally:
        free()


def test_attempt_that_is_tried_again_is_not_kept(cluster: Any) -> None:
    free = cluster.hold("standin-nvidia-1", "nvidia.com/gpu", 2)
    try:
        run = cluster.run("--steps", "900", "--step-time", "0.1", schedule_timeout=0.5, keep="failed")
        assert len(run.attempts) == 1
        assert cluster.left().count(run.plan.run_id) == 3  # job, service, config map: of the second attempt only
        assert not any("faulty" in name and str(run.plan.run_id) not in name for name in cluster.left())
        cluster.delete_namespace(run.namespace)
    finally:
        free()


def test_clean_by_age_takes_finished_runs_of_ours_and_nothing_else(cluster: Any) -> None:
    kept = cluster.run(keep="all")
    shared = cluster.run(keep="all", namespace="default")
    theirs = {"name": "theirs", "labels": {"app.kubernetes.io/managed-by": "allranks"}}
    cluster.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": theirs})
    try:
        early = allranks("clean", "--older-than", "1h", "--kubeconfig", cluster.kubeconfig)
        assert early.stdout == "nothing to remove\n", early.stderr
        time.sleep(1.1)  # ages are in whole seconds
        done = allranks("clean", "--older-than", "1s", "--kubeconfig", cluster.kubeconfig)
        assert sorted(done.stdout.splitlines()) == sorted(
            [f"namespace {kept.namespace} removed", f"job {shared.plan.run_id} in namespace default removed"]
        ), done.stderr
        wait_until_only(cluster, ["theirs"])
    finally:
        cluster.delete_namespace("theirs")


def wait_until_only(cluster: Any, names: list[str]) -> None:
    until = time.monotonic() + 10
    while cluster.left() != names:
        assert time.monotonic() < until, cluster.left()
        time.sleep(0.05)


def test_clean_by_age_leaves_what_runs(cluster: Any) -> None:
    runs: list[Any] = []
    thread = threading.Thread(target=lambda: runs.append(cluster.run("--steps", "30", "--step-time", "0.2")))
    thread.start()
    until = time.monotonic() + 30
    while not any(p.phase == "train" for p in cluster.progress):
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(1.1)
    done = allranks("clean", "--older-than", "1s", "--kubeconfig", cluster.kubeconfig)
    assert done.stdout == "nothing to remove\n", done.stderr
    thread.join(60)
    assert runs[0].verdict is Verdict.PASSED


def test_run_given_to_a_queue_waits_for_it_and_is_not_resumed_by_us(cluster: Any) -> None:
    admitted: list[str] = []

    def queued() -> bool:
        return any("queue gpus has not admitted it" in progress.message for progress in cluster.progress)

    def admit() -> None:
        """What Kueue does when it is the job's turn."""
        until = time.monotonic() + 30
        while not queued():
            assert time.monotonic() < until
            time.sleep(0.02)
        (job,) = cluster.get("/apis/batch/v1/jobs?labelSelector=kueue.x-k8s.io/queue-name%3Dgpus")["items"]
        assert job["spec"]["suspend"] is True
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        cluster.patch(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}", {"spec": {"suspend": False}})
        admitted.append(name)

    thread = threading.Thread(target=admit)
    thread.start()
    run = cluster.run(queue="gpus", lease_timeout=30.0, namespace="default")
    thread.join()
    assert run.verdict is Verdict.PASSED, run.findings
    assert admitted == [run.plan.run_id]


def test_run_that_its_queue_never_admits_says_so(cluster: Any) -> None:
    run = cluster.run(queue="gpus", lease_timeout=1.0, attempts=1, namespace="default")
    assert run.judgement.cause is not None
    assert (run.judgement.cause.code, run.judgement.phase) == ("queued", "capacity")
    assert "queue gpus has not admitted it" in run.judgement.cause.message
    assert cluster.left() == []


def test_session_on_several_workers_that_is_told_to_go_leaves_nothing(cluster: Any, tmp_path: Path) -> None:
    """A cancelled CI job: SIGTERM reaches the controller alone, the run is on one of its workers."""
    options = ["--cluster", "standin", "--kubeconfig", str(cluster.kubeconfig), "--artefacts", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", "e2e", "-k", "bert", "-n", "2", "--accelerator", "nvidia", *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until = time.monotonic() + 90
    selected = "?labelSelector=app.kubernetes.io/managed-by%3Dallranks"
    while not any(pod["status"].get("phase") == "Running" for pod in cluster.get(f"/api/v1/pods{selected}")["items"]):
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode not in (0, 1), output
    wait_until_gone(cluster)
    assert cluster.get("/apis/coordination.k8s.io/v1/namespaces/allranks/leases")["items"] == []
