"""It must turn red: failures, their causes, and what merely followed from them."""

from dataclasses import replace
from typing import Any

from allranks.checks import PodEvidence
from allranks.ledger.status import FirstFailure
from allranks.plan import Accelerator, Plan
from allranks.result import Finding, Phase, Stage, Verdict
from tests.checks.kit import cause, codes, judged, pod
from tests.ledger.speech import RUN, log, plan_of, record, world_lines

# A failure and what followed from it ---------------------------------------------------------------------------------


def failed_peer(code: int = 17, at: float = 50.0, **values: Any) -> FirstFailure:
    return FirstFailure(
        3, 1, code, at, f"rank 3 exited with code {code}", ("Traceback", "ValueError: bad shard"), **values
    )


def test_a_rank_that_exits_17_is_the_cause_and_the_others_followed():
    lines = world_lines()
    first = FirstFailure(None, None, -15, 52.0, "the launcher was asked to stop (SIGTERM)", ())
    pods = [pod(0, -15, -15, first=first, exit_code=143), pod(1, -15, 17, first=failed_peer(), exit_code=17)]
    judgement = judged(log(*(rank[:3] for rank in lines)), pods=pods)
    assert (judgement.verdict, judgement.phase) == (Verdict.FAILED, Phase.TRAIN)
    assert cause(judgement).message == "rank 3 (pod bert-1 on node node-1) exited with code 17"
    assert (cause(judgement).ranks, cause(judgement).node, cause(judgement).at) == ((3,), "node-1", 50.0)
    assert cause(judgement).evidence == ("Traceback", "ValueError: bad shard")
    assert all(finding.consequence for finding in judgement.findings[1:])
    assert [rank.exit_code for rank in judgement.ranks] == [-15, -15, -15, 17]


def test_the_earliest_of_two_failures_is_the_cause():
    other = FirstFailure(0, 0, 1, 49.0, "rank 0 exited with code 1", ())
    judgement = judged(b"", pods=[pod(0, 1, -15, first=other), pod(1, -15, 17, first=failed_peer())])
    assert cause(judgement).ranks == (0,)
    assert [finding.consequence for finding in judgement.findings if finding.code == "exit-code"] == [
        False,
        True,
        True,
        True,
    ]


def test_a_rank_that_exits_17_after_its_figures_is_still_failed():
    judgement = judged(log(*world_lines()), pods=[pod(0), pod(1, 0, 17, first=failed_peer())])
    assert (judgement.verdict, judgement.phase) == (Verdict.FAILED, Phase.TRAIN)
    assert codes(judgement) == ["exit-code"]
    assert judgement.ranks[3].stage is Stage.HEARD


def test_a_rank_killed_by_a_signal_is_named_by_it():
    judgement = judged(b"", pods=[pod(0), pod(1, -15, -9, first=failed_peer(-9))])
    assert "was killed by SIGKILL" in cause(judgement).message


def test_a_failure_before_the_process_group_stood_is_in_rendezvous_or_start():
    lines = ("torch.distributed.DistNetworkError: The client socket has timed out",)
    first = FirstFailure(3, 1, 1, 50.0, "rank 3 exited with code 1", lines)
    assert judged(b"", pods=[pod(0), pod(1, -15, 1, first=first)]).phase is Phase.RENDEZVOUS
    first = FirstFailure(3, 1, 1, 50.0, "rank 3 exited with code 1", ("ImportError: no module",))
    assert judged(b"", pods=[pod(0), pod(1, -15, 1, first=first)]).phase is Phase.START


def test_a_launcher_that_waits_in_vain_fails_in_rendezvous():
    first = FirstFailure(None, None, 1, 50.0, "the master 10.0.0.1:29500 was not reached within 300 s", ())
    judgement = judged(b"", pods=[pod(0), pod(1, None, None, first=first, phase="Failed", exit_code=1)])
    assert cause(judgement).code == "launcher"
    assert judgement.phase is Phase.RENDEZVOUS


def test_oom_killed_is_a_failure_also_with_exit_code_0():
    judgement = judged(log(*world_lines()), pods=[pod(0), pod(1, reason="OOMKilled")])
    assert (judgement.verdict, judgement.phase) == (Verdict.FAILED, Phase.TRAIN)
    assert codes(judgement) == ["out-of-memory"]
    assert "container exit code 0" in cause(judgement).message


def test_a_container_that_fails_without_a_word_of_its_launcher():
    broken = PodEvidence(1, "bert-1", "node-1", None, "Failed", 137, "Error", "python3: can't open file\nx", False)
    judgement = judged(log(*world_lines()[:2]), pods=[pod(0), broken])
    assert codes(judgement)[0] == "pod-failed"
    assert "was killed by SIGKILL (exit code 137)" in cause(judgement).message
    assert cause(judgement).evidence == ("python3: can't open file", "x")


def test_a_container_that_never_ran_failed_at_its_start_and_says_why():
    why = 'runc create failed: exec: "python3": executable file not found in $PATH: unknown'
    broken = [PodEvidence(i, f"bert-{i}", f"node-{i}", None, "Failed", 128, "StartError", why) for i in (0, 1)]
    judgement = judged(b"", pods=broken)
    assert (cause(judgement).code, judgement.phase) == ("container-start", Phase.START)
    assert 'could not start its container (StartError): runc create failed: exec: "python3"' in cause(judgement).message


def test_a_container_that_the_kubelet_lost_was_killed_by_nobody():
    why = "The container could not be located when the pod was terminated"
    lost = PodEvidence(1, "bert-1", "node-1", None, "Failed", 137, "ContainerStatusUnknown", why)
    message = cause(judged(log(*world_lines()[:2]), pods=[pod(0), lost])).message
    assert message == "pod bert-1 on node node-1 ended, and nobody knows how (ContainerStatusUnknown)"


def test_fewer_processes_than_planned_is_a_failure_whatever_the_figures():
    judgement = judged(log(*world_lines()), pods=[pod(0), pod(1, 0)])
    assert (judgement.verdict, judgement.phase) == (Verdict.FAILED, Phase.START)
    assert codes(judgement) == ["process-count"]


def test_a_status_of_another_run_is_not_evidence():
    stale = pod(1, 0, 17)
    assert stale.status is not None
    stale = replace(stale, status=replace(stale.status, run="yesterday"), phase="Succeeded", exit_code=0)
    judgement = judged(log(*world_lines()), pods=[pod(0), stale])
    assert judgement.verdict is Verdict.PASSED
    assert judgement.ranks[3].exit_code is None


def test_an_error_that_a_rank_reports_is_a_failure_without_a_cluster():
    lines = world_lines()
    error = record(3, 3, "error", type="RuntimeError", message="NCCL: unhandled system error")
    judgement = judged(log(*lines[:3], lines[3][:3], error))
    assert (judgement.verdict, judgement.phase) == (Verdict.FAILED, Phase.TRAIN)
    assert cause(judgement).code == "rank-error"
    assert "RuntimeError: NCCL: unhandled system error" in cause(judgement).message


def test_a_launchers_failure_line_after_the_figures_is_a_failure():
    said = b"allranks: FAILED: rank 3 exited with code 17 (local rank 1), node 1, pod bert-1, on node-1"
    judgement = judged(
        log(*world_lines(), said),
        plan=Plan.of_world(
            4,
        ),
    )
    assert judgement.verdict is Verdict.FAILED
    assert codes(judgement) == ["launcher"]


def test_a_hang_that_the_engine_found_explains_the_missing_ranks():
    stall = Finding("stall", "no record from any rank for 300 s", phase=Phase.TRAIN, at=400.0)
    judgement = judged(log(*(rank[:3] for rank in world_lines())), failures=[stall])
    assert (judgement.verdict, judgement.phase) == (Verdict.FAILED, Phase.TRAIN)
    assert cause(judgement) == stall
    assert [finding.consequence for finding in judgement.findings] == [False, True]


def test_a_job_that_never_schedules_is_the_cause_though_others_died_waiting():
    waiting = Finding("unschedulable", "pod bert-1: Insufficient nvidia.com/gpu", phase=Phase.SCHEDULE)
    first = FirstFailure(0, 0, 1, 50.0, "rank 0 exited with code 1", ("DistNetworkError",))
    pods = [
        pod(0, 1, -15, first=first),
        PodEvidence(1, "bert-1", None, None, "Pending", None, None, None),
    ]
    judgement = judged(b"", pods=pods, failures=[waiting])
    assert (judgement.verdict, judgement.phase) == (Verdict.FAILED, Phase.SCHEDULE)
    assert cause(judgement) == waiting


def test_a_cpu_in_place_of_the_planned_accelerator_without_saying_so():
    plan = plan_of(accelerator=Accelerator.NVIDIA)
    judgement = judged(log(*world_lines(device="cpu")), plan=plan)
    assert (judgement.verdict, judgement.phase) == (Verdict.FAILED, Phase.START)
    assert codes(judgement) == ["wrong-device"]
    said = judged(log(*world_lines(device="cpu", standin="nvidia")), plan=plan)
    assert said.verdict is Verdict.PASSED
    assert said.ranks[0].device == "cpu (in place of nvidia)"
    assert judged(log(*world_lines(device="cuda:0")), plan=plan).verdict is Verdict.PASSED


def test_a_restarted_run_that_passes_is_flaky():
    judgement = judged(log(*(rank[:3] for rank in world_lines()), *world_lines(attempt=1)))
    assert judgement.verdict is Verdict.FLAKY
    assert codes(judgement) == ["restarted"]
    assert judgement.attempt == 1


def test_a_rank_that_did_not_come_back_after_a_restart_leaves_the_attempt_unfinished():
    judgement = judged(log(*world_lines(), *world_lines(attempt=1)[:3]))
    assert (judgement.verdict, judgement.attempt, judgement.missing) == (Verdict.INCOMPLETE, 0, ())
    assert "attempt 2 began and did not come to its end (no final record of ranks 3)" in cause(judgement).message
    never = judged(log(*(rank[:3] for rank in world_lines()), *world_lines(attempt=1)[:3]))
    assert (never.verdict, never.attempt, never.missing) == (Verdict.INCOMPLETE, 1, (3,))


def test_an_error_after_the_attempt_that_counts_is_a_failure():
    error = record(2, 2, "error", attempt=1, type="RuntimeError", message="oops")
    judgement = judged(log(*world_lines(), *(rank[:2] for rank in world_lines(attempt=1)), error))
    assert (judgement.verdict, cause(judgement).code, judgement.attempt) == (Verdict.FAILED, "rank-error", 0)


def test_a_later_attempt_is_flaky_though_nothing_of_the_first_was_read():
    judgement = judged(log(*world_lines(attempt=1)))
    assert (judgement.verdict, codes(judgement)) == (Verdict.FLAKY, ["restarted"])


def test_peoples_lines_beside_records_of_another_run_are_no_report():
    lines = [[*rank, b"Process %d - Throughput: 49.97 samples/second" % n] for n, rank in enumerate(world_lines())]
    judgement = judged(log(*lines), plan=plan_of(run_id="another"))
    assert (judgement.verdict, judgement.missing) == (Verdict.INCOMPLETE, (0, 1, 2, 3))
    assert judgement.completeness == "unproven"


def test_other_peoples_formats_pass_with_completeness_unproven():
    lines = [b"Process %d - Throughput: 49.97 samples/second" % rank for rank in range(4)]
    judgement = judged(log(lines), plan=Plan.of_world(4))
    assert judgement.verdict is Verdict.PASSED
    assert judgement.completeness == "unproven"
    assert [finding.code for finding in judgement.findings] == ["completeness-unproven", "loss-unknown"]
    assert judged(log(lines[:3]), plan=Plan.of_world(4)).missing == (3,)


def test_an_average_for_all_is_no_rank():
    judgement = judged(b"Average Throughput: 49.97 samples/second\n", plan=Plan.of_world(1))
    assert judgement.verdict is Verdict.INCOMPLETE
    assert judgement.missing == (0,)


def test_threads_of_a_process_share_its_exit_code():
    plan = Plan(nodes=1, processes_per_node=2, threads_per_process=2, run_id=RUN)
    first = FirstFailure(2, 1, 17, 5.0, "rank 2 exited with code 17", ())
    broken = pod(0, 0, 17, first=first)
    assert broken.status is not None
    broken = replace(broken, status=replace(broken.status, nnodes=1))
    judgement = judged(log(*world_lines()), plan=plan, pods=[broken])
    assert [rank.exit_code for rank in judgement.ranks] == [0, 0, 17, 17]
