"""Which failures are tried again, and what becomes of a run that passes later."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allranks.artefacts import replay, rewrite
from allranks.attempts import after, without_another, worth_another
from allranks.checks import judge
from allranks.ledger import Ledger
from allranks.plan import Plan
from allranks.result import Finding, Phase, TrainingRun, Verdict
from tests.engine.test_commands import ROOT

PLAN = Plan(nodes=1, processes_per_node=1, run_id="bert-x-1")


def failed(code: str, phase: Phase, message: str = "why") -> TrainingRun:
    finding = Finding(code, message, phase=phase, at=1.0)
    return TrainingRun(PLAN, judge(PLAN, Ledger(PLAN), failures=[finding]))


@pytest.mark.parametrize(
    ("code", "phase", "message", "again"),
    [
        ("unschedulable", Phase.SCHEDULE, "Insufficient nvidia.com/gpu", True),
        ("pods-refused", Phase.CAPACITY, "exceeded quota", True),
        ("image-pull", Phase.PULL, "ImagePullBackOff: i/o timeout", True),
        ("image-pull", Phase.PULL, "ErrImagePull: manifest unknown", False),
        ("image-pull", Phase.PULL, "InvalidImageName", False),
        ("evicted", Phase.TRAIN, "node is drained", True),
        ("preempted", Phase.TRAIN, "higher priority", True),
        ("node-lost", Phase.TRAIN, "kubelet stopped posting", True),
        ("stall", Phase.TRAIN, "no record", False),
        ("rendezvous", Phase.RENDEZVOUS, "absent", False),
        ("transport", Phase.RENDEZVOUS, "sockets", False),
        ("deadline", Phase.SCHEDULE, "too long", False),
        ("deadline", Phase.PULL, "too long. It got no further than this: i/o timeout", False),
        ("container-config", Phase.START, "secret not found", False),
    ],
)
def test_only_infrastructure_is_tried_again(code: str, phase: Phase, message: str, again: bool) -> None:
    assert worth_another(failed(code, phase, message)) is again


def test_attempt_that_could_not_be_made_is_told_of(tmp_path: Path) -> None:
    """The first failure stands, and the reader learns why nothing was tried after it."""
    run = replace(failed("node-lost", Phase.TRAIN), artefacts=str(tmp_path))
    told = without_another(run, "1 of 2 nodes usable")
    rewrite(told)
    kept = TrainingRun.from_dict(json.loads((tmp_path / "result.json").read_text()))
    assert kept.verdict is Verdict.FAILED
    assert kept.judgement.cause == run.judgement.cause
    assert kept.findings[-1].message == "there was no further attempt: 1 of 2 nodes usable"


def test_later_failure_tells_of_the_earlier_one_and_stays_failed() -> None:
    earlier, last = failed("evicted", Phase.TRAIN, "first"), failed("stall", Phase.TRAIN, "second")
    judgement = after(last.judgement, [earlier])
    assert judgement.verdict is Verdict.FAILED
    assert judgement.cause is not None
    assert judgement.cause.code == "stall"
    assert "first" in judgement.findings[-1].evidence[0]


def evict_once(cluster: Any) -> threading.Thread:
    """As `kubectl drain` does, as soon as a pod of a run is running."""

    def evict() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            pods = cluster.get("/api/v1/pods?labelSelector=app.kubernetes.io/managed-by%3Dallranks")["items"]
            running = [pod for pod in pods if pod["status"].get("phase") == "Running"]
            if len(running) == 2:
                meta = {key: running[1]["metadata"][key] for key in ("name", "namespace")}
                path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/eviction"
                cluster.create(path, {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta})
                return
            time.sleep(0.02)

    thread = threading.Thread(target=evict)
    thread.start()
    return thread


def test_eviction_and_then_a_pass_is_flaky_with_both_attempts_kept(cluster: Any, tmp_path: Path) -> None:
    thread = evict_once(cluster)
    run = cluster.run("--step-time", "0.4", artefacts=tmp_path)
    thread.join()
    assert run.verdict is Verdict.FLAKY, run.findings
    assert run.sentence() == "FLAKY: all 4 ranks accounted for at attempt 2"
    (first,) = run.attempts
    assert first.cause is not None
    assert first.cause.code == "evicted"
    directories = sorted(path.name for path in tmp_path.iterdir())
    assert len(directories) == 2
    told = next(finding for finding in run.findings if finding.code == "flaky")
    other = next(name for name in directories if name != run.plan.run_id)
    assert other in told.evidence[0]
    again = replay(tmp_path / str(run.plan.run_id))
    assert again.to_dict() == json.loads((tmp_path / str(run.plan.run_id) / "result.json").read_text())
    assert replay(tmp_path / other).verdict is Verdict.FAILED
    assert cluster.left() == []


def test_one_attempt_is_one_attempt(cluster: Any) -> None:
    thread = evict_once(cluster)
    run = cluster.run("--step-time", "0.4", attempts=1)
    thread.join()
    assert (run.verdict, run.attempts) == (Verdict.FAILED, ())


def test_training_failure_is_never_tried_again(cluster: Any, tmp_path: Path) -> None:
    run = cluster.run("--fault", "exit", "--rank", "1", artefacts=tmp_path)
    assert (run.verdict, run.attempts) == (Verdict.FAILED, ())
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.thorough
def test_session_that_allows_a_flaky_run_says_so_and_is_green(cluster: Any, tmp_path: Path) -> None:
    options = ["--cluster", "standin", "--kubeconfig", str(cluster.kubeconfig), "--artefacts", str(tmp_path)]
    selected = ["-k", "bert and verdict", "--accelerator", "nvidia", "--max-flaky", "1"]
    thread = evict_once(cluster)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "e2e", *selected, *options],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    thread.join()
    assert ran.returncode == 0, ran.stdout
    last = ran.stdout.rstrip().splitlines()[-1]
    assert last.startswith("FLAKY: 1 of 1 runs"), ran.stdout
    assert "FLAKY: all 4 ranks accounted for at attempt 2" in last
