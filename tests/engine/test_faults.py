"""Whole runs on a real stand-in cluster, each with one fault, and exactly that fault reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allranks.artefacts import replay
from allranks.result import Finding, Phase, Stage, TrainingRun, Verdict


def cause(run: TrainingRun) -> Finding:
    assert run.judgement.cause is not None, run.sentence()
    return run.judgement.cause


def found(run: TrainingRun, code: str) -> Finding:
    return next(finding for finding in run.findings if finding.code == code)


def logs(run: TrainingRun) -> bytes:
    assert run.artefacts is not None
    return b"".join(path.read_bytes() for path in sorted((Path(run.artefacts) / "logs").iterdir()))


def test_run_without_a_fault_passes_and_leaves_nothing(cluster: Any) -> None:
    run = cluster.run()
    assert run.verdict is Verdict.PASSED, run.findings
    assert run.count(Stage.MEASURED) == run.plan.world_size == 4
    assert run.cluster.startswith("stand-in (http://127.0.0.1:")
    assert cluster.left() == []
    moments = [name for name, _ in run.timeline]
    assert moments[:5] == ["planned", "applied", "scheduled", "pulled", "started"]
    assert set(moments[5:7]) == {"heard", "first step"}  # the last rank's start, and any rank's first step
    assert moments[7:] == ["last record", "ended", "verdict"]
    assert [p.phase for p in cluster.progress][:: len(cluster.progress) - 1] == ["plan", "done"]


def test_verdict_comes_at_once_after_the_last_record(cluster: Any) -> None:
    moments = dict(cluster.run().timeline)
    assert moments["verdict"] - moments["last record"] < 2.0  # about 0.05 on an idle machine


def test_cpus_do_not_stand_in_for_devices_on_a_real_cluster(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an image sets: there is no real cluster here, so this one is taken for one."""
    from allranks.cluster.client import Api

    monkeypatch.setattr(Api, "is_standin", False)
    run = cluster.run("--steps", "2", cluster="auto")
    assert (cause(run).code, cause(run).ranks, run.judgement.phase) == ("wrong-device", (0, 1, 2, 3), Phase.START)
    assert "ALLRANKS_STANDIN_DEVICE" in cause(run).message
    assert replay(Path(run.artefacts)).verdict is run.verdict


def test_torchrun_runs_the_same_job(cluster: Any) -> None:
    """With `--node-rank $(JOB_COMPLETION_INDEX)`, which the kubelet expands; torch's agent writes no status."""
    run = cluster.run("--step-time", "0.05", launcher="torchrun", nodes=1)
    assert run.verdict is Verdict.PASSED, run.findings


def test_silent_rank_is_named(cluster: Any) -> None:
    run = cluster.run("--fault", "silent", "--rank", "2")
    assert run.verdict is Verdict.INCOMPLETE
    assert cause(run).ranks == (2,)
    assert cause(run).node == "standin-nvidia-1"


def test_processes_that_are_each_their_own_group_do_not_pass(cluster: Any) -> None:
    run = cluster.run("--fault", "own-group")
    assert (run.verdict, run.judgement.phase) == (Verdict.FAILED, Phase.CHECK)
    assert cause(run).code == "world-size"
    assert found(run, "duplicate-rank").ranks == (0,)


def test_nan_loss_is_found_at_its_step(cluster: Any) -> None:
    run = cluster.run("--fault", "nan", "--rank", "3")
    assert (cause(run).code, cause(run).ranks) == ("not-finite", (3,))
    assert "step 3" in cause(run).message


def test_first_failing_rank_and_its_code_are_named_and_the_rest_follows(cluster: Any) -> None:
    run = cluster.run("--fault", "exit", "--rank", "1", "--step-time", "0.3")
    assert (run.verdict, run.judgement.phase) == (Verdict.FAILED, Phase.TRAIN)
    assert (cause(run).code, cause(run).ranks) == ("exit-code", (1,))
    assert "exited with code 17" in cause(run).message
    assert "illegal memory access" in " ".join(cause(run).evidence)
    assert run.ranks[1].exit_code == 17
    others = [finding for finding in run.findings if finding is not cause(run) and finding.verdict is Verdict.FAILED]
    assert all(finding.consequence for finding in others), others
    # The healthy pod was deleted with its log by the Job controller: its last lines were read all the same.
    assert logs(run).count(b"stack: hang() waits for its peers") == 3


def test_hanging_rank_is_a_stall_whose_stack_is_kept(cluster: Any) -> None:
    run = cluster.run("--fault", "hang", "--rank", "3", stall_timeout=1.0)
    assert (cause(run).code, cause(run).ranks, run.judgement.phase) == ("stall", (3,), Phase.TRAIN)
    assert b"stack: hang() waits for its peers" in logs(run)
    assert run.count(Stage.MEASURED) == 3
    assert cluster.left() == []


def test_rank_that_never_starts_reporting_is_absent_from_the_rendezvous(cluster: Any) -> None:
    run = cluster.run("--fault", "late", "--rank", "2", start_timeout=1.5)
    assert (cause(run).code, cause(run).ranks, run.judgement.phase) == ("rendezvous", (2,), Phase.RENDEZVOUS)


def test_run_that_takes_too_long_ends_at_its_deadline(cluster: Any) -> None:
    run = cluster.run("--steps", "1000", "--step-time", "0.1", deadline=2.0)
    assert cause(run).code == "deadline"


def test_job_that_never_schedules_quotes_the_scheduler(cluster: Any) -> None:
    """Another job has the devices of one node."""
    blocker = cluster.hold("standin-nvidia-1", "nvidia.com/gpu", 2)
    try:
        run = cluster.run("--steps", "100", "--step-time", "0.1", schedule_timeout=1.0)
    finally:
        blocker()
    assert (cause(run).code, run.judgement.phase) == ("unschedulable", Phase.SCHEDULE)
    assert "nvidia.com/gpu" in cause(run).message
    assert cluster.left() == []


def test_pods_that_ran_one_after_the_other_on_one_node_do_not_pass(cluster: Any) -> None:
    """They finish without meeting, since this program has no rendezvous; half of the nodes was never tried."""
    blocker = cluster.hold("standin-nvidia-1", "nvidia.com/gpu", 2)
    try:
        run = cluster.run()
    finally:
        blocker()
    assert (run.verdict, cause(run).code, cause(run).node) == (Verdict.FAILED, "shared-node", "standin-nvidia-0")


def test_image_that_does_not_exist(cluster: Any) -> None:
    cluster.fault(kind="bad-image", path="no-such-image")
    run = cluster.run(image="no-such-image:1", pull_timeout=1.0)
    assert (cause(run).code, run.judgement.phase) == ("image-pull", Phase.PULL)
    assert "no-such-image:1" in cause(run).message


def test_pods_refused_by_admission(cluster: Any) -> None:
    cluster.fault(kind="forbid-pod", path="faulty-", message="exceeded quota: gpus, requested: nvidia.com/gpu=2")
    run = cluster.run()
    assert (cause(run).code, run.judgement.phase) == ("pods-refused", Phase.CAPACITY)
    assert "exceeded quota: gpus" in cause(run).message


def test_figures_that_rotation_takes_away_are_followed_in_time(cluster: Any) -> None:
    """600 KiB of chatter of each rank after its final record, in logs of 64 KiB: read at the end, no figure is left."""
    run = cluster.run("--chatter", "600", keep="all")
    assert run.verdict is Verdict.PASSED, run.findings
    assert logs(run).count(b"x" * 1000 + b"\n") == 4 * 600
    for rank in run.ranks:
        at_the_end = cluster.text(f"/api/v1/namespaces/{run.namespace}/pods/{rank.pod}/log")
        assert "xxx" in at_the_end
        assert "ALLRANKS" not in at_the_end
    cluster.delete_namespace(run.namespace)


@pytest.mark.parametrize("kind", ["cut-log", "end-log"])
def test_streams_that_break_off_in_the_middle_of_a_line_lose_and_repeat_nothing(cluster: Any, kind: str) -> None:
    for size in (100, 1000, 2500):
        cluster.fault(kind=kind, path="/log$", bytes=size, times=2)
    run = cluster.run("--step-time", "0.2", "--steps", "8")
    assert run.verdict is Verdict.PASSED, run.findings
    assert logs(run).count(b"ALLRANKS ") == 4 * (1 + 8 + 1 + 1)


def test_watches_that_end_and_expire_change_nothing(cluster: Any) -> None:
    cluster.fault(kind="close-watch", events=1, times=6)
    cluster.fault(kind="expire-watch", events=1, times=6)
    assert cluster.run("--step-time", "0.1").verdict is Verdict.PASSED


def test_overloaded_api_server_is_waited_out(cluster: Any) -> None:
    cluster.fault(kind="error", code=503, times=6)
    cluster.fault(kind="error", code=429, retryAfter=1, path="/pods", times=2)
    assert cluster.run().verdict is Verdict.PASSED


def test_given_namespace_is_used_and_kept(cluster: Any) -> None:
    run = cluster.run(namespace="default")
    assert run.verdict is Verdict.PASSED
    assert run.namespace == "default"
    assert cluster.left() == []


def test_kept_run_is_still_there(cluster: Any) -> None:
    run = cluster.run("--fault", "nan", keep="failed")
    assert run.plan.run_id in cluster.left()
    cluster.delete_namespace(run.namespace)


@pytest.mark.parametrize("fault", ["none", "silent", "nan", "exit", "hang"])
def test_replay_reaches_the_same_verdict(cluster: Any, fault: str) -> None:
    run = cluster.run("--fault", fault, "--step-time", "0.1", stall_timeout=1.0)
    assert run.artefacts is not None
    again = replay(Path(run.artefacts))
    assert again.sentence() == run.sentence()
    assert again.to_dict() == json.loads((Path(run.artefacts) / "result.json").read_text())


def test_somebody_elses_pod_with_our_label_is_none_of_the_run(cluster: Any) -> None:
    made: list[str] = []

    def make(progress: Any) -> None:
        if progress.phase == "train" and not made:
            made.append(progress.run_id)
            pods = f"/api/v1/namespaces/allranks-{progress.run_id}/pods"
            spec = {"containers": [{"name": "c", "image": "python", "command": ["python3", "-c", "1"]}]}
            meta = {"name": "stranger", "labels": {"allranks.dev/run": progress.run_id}}
            cluster.create(pods, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    run = cluster.run("--step-time", "0.1", observe=make)
    assert made
    assert run.verdict is Verdict.PASSED, run.findings
