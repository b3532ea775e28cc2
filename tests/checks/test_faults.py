"""It must turn red: a fault each, and exactly that fault reported."""

from dataclasses import replace
from typing import Any

import pytest

from allranks.checks import PodEvidence, judge
from allranks.ledger import Ledger
from allranks.ledger.status import FirstFailure, LauncherStatus, RankFigures
from allranks.plan import Accelerator, Plan
from allranks.result import Finding, Judgement, Phase, Stage, Verdict
from tests.ledger.speech import RUN, ledger_of, log, plan_of, rank_lines, record, world_lines


def pod(index: int, *codes: int | None, figures: bool = True, **changes: Any) -> PodEvidence:
    """A pod of two processes that ended well, but for what is given."""
    codes = codes or (0, 0)
    status = LauncherStatus(
        run=RUN,
        attempt=0,
        node=index,
        nnodes=2,
        nproc=len(codes),
        state="failed" if any(codes) else "succeeded",
        codes=codes,
        first=changes.pop("first", None),
        figures={2 * index + local: RankFigures(49.97, 0.31) for local in range(2)} if figures else None,
    )
    code = next((code if code > 0 else 128 - code for code in codes if code), 0)
    phase = "Failed" if code else "Succeeded"
    reason = "Error" if code else "Completed"
    evidence = PodEvidence(index, f"bert-{index}", f"node-{index}", status, phase, code, reason, None)
    return replace(evidence, **changes)


def judged(*logs: bytes, plan: Plan | None = None, **evidence: Any) -> Judgement:
    plan = plan or plan_of()
    return judge(plan, ledger_of(*logs, plan=plan), **evidence)


def codes(judgement: Judgement) -> list[str]:
    """Findings that count, notes left out."""
    return [finding.code for finding in judgement.findings if finding.verdict is not Verdict.PASSED]


def cause(judgement: Judgement) -> Finding:
    assert judgement.cause is not None
    return judgement.cause


def test_a_good_run_passes_with_every_figure():
    judgement = judged(log(*world_lines()), pods=[pod(0), pod(1)])
    assert judgement.verdict is Verdict.PASSED
    assert judgement.findings == ()
    assert judgement.cause is None
    third = judgement.ranks[3]
    assert (third.stage, third.pod, third.node, third.local_rank) == (Stage.MEASURED, "bert-1", "node-1", 1)
    assert (third.throughput, third.epoch_time, third.exit_code, third.world) == (49.97, 0.31, 0, 4)
    assert (third.source, third.where) == ("log", "log-0:24")


# Absent evidence: INCOMPLETE ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"noise\n" * 100, log(*world_lines(run="another"))])
def test_zero_records_never_pass(content: bytes):
    judgement = judged(content)
    assert judgement.verdict is Verdict.INCOMPLETE
    assert codes(judgement) == ["missing-rank"]
    assert cause(judgement).ranks == (0, 1, 2, 3)
    assert judgement.missing == (0, 1, 2, 3)


def test_zero_records_do_not_pass_though_every_process_exited_0():
    judgement = judged(b"", pods=[pod(0), pod(1)])
    assert judgement.verdict is Verdict.INCOMPLETE


def test_a_rank_that_never_reports_is_named_with_its_pod_and_node():
    judgement = judged(log(*world_lines()[:3]))
    assert judgement.verdict is Verdict.INCOMPLETE
    assert codes(judgement) == ["missing-rank"]
    assert cause(judgement).message == "rank 3 (pod bert-1 on node node-1) never reported: no record in the log"
    assert judgement.missing == (3,)
    assert judgement.ranks[3].stage is Stage.PLANNED


def test_missing_ranks_are_named_in_ranges():
    plan = Plan.of_world(32)
    lines = [rank_lines(rank, world=32) for rank in range(32) if rank != 3 and not 17 <= rank <= 24]
    judgement = judged(log(*lines), plan=plan)
    assert cause(judgement).message.startswith("ranks 3, 17-24 ")


def test_a_rank_that_exits_0_unheard_though_its_launcher_listened_never_reported():
    peer = pod(1)
    assert peer.status is not None
    status = replace(peer.status, figures={2: RankFigures(1.0, 1.0)})
    judgement = judged(log(*world_lines()[:3]), pods=[pod(0), replace(peer, status=status)])
    assert codes(judgement) == ["missing-rank"]
    assert "nor to its launcher" in cause(judgement).message
    assert judgement.ranks[3].stage is Stage.LAUNCHED


def test_a_rank_that_is_heard_without_its_end_is_missing():
    lines = world_lines()
    judgement = judged(log(*lines[:3], lines[3][:-1]))
    assert codes(judgement) == ["missing-rank"]
    assert cause(judgement).evidence == ("rank 3: 5 records from log-0:19 on, last step 4",)
    assert judgement.ranks[3].stage is Stage.HEARD


def test_log_loss_is_told_from_a_rank_that_never_reported_and_its_figures_are_shown():
    judgement = judged(log(*world_lines()[:3]), pods=[pod(0), pod(1)])
    assert judgement.verdict is Verdict.INCOMPLETE
    assert codes(judgement) == ["log-loss"]
    lost = judgement.ranks[3]
    assert (lost.throughput, lost.epoch_time, lost.source) == (49.97, 0.31, "status")
    assert lost.stage is Stage.LAUNCHED
    assert judgement.missing == (3,)


def test_log_loss_where_the_status_had_no_room_for_figures():
    judgement = judged(log(*world_lines()[:3]), pods=[pod(0), pod(1, figures=False)])
    assert codes(judgement) == ["log-loss"]


def test_a_log_rotated_away_is_log_loss_of_its_ranks():
    """64 ranks of two pods; of each log only the end is left, the metrics are gone from most."""
    plan = Plan(nodes=2, processes_per_node=32, run_id=RUN)
    lines = [rank_lines(rank, world=64, per_node=32) for rank in range(64)]
    status = LauncherStatus(RUN, 0, 0, 2, 32, "succeeded", (0,) * 32)
    pods = [
        PodEvidence(index, f"bert-{index}", f"node-{index}", replace(status, node=index), "Succeeded", 0, None, None)
        for index in range(2)
    ]
    rotated = judged(log(*lines[25:32]), log(*lines[57:]), plan=plan, pods=pods)
    assert rotated.verdict is Verdict.INCOMPLETE
    assert codes(rotated) == ["log-loss"]
    assert len(rotated.reported) == 14
    assert "ranks 0-24, 32-56 (0-24: pod bert-0 on node node-0; 32-56: pod bert-1 on node node-1)" in str(rotated.cause)
    followed = judged(log(*lines), plan=plan, pods=pods)
    assert followed.verdict is Verdict.PASSED


def test_records_lost_in_the_middle_are_counted():
    lines = world_lines()
    del lines[2][2:4]
    judgement = judged(log(*lines))
    assert judgement.verdict is Verdict.INCOMPLETE
    assert codes(judgement) == ["records-lost"]
    assert cause(judgement).evidence == ("rank 2: 2 of 6 records are missing (number 2-3)",)


def test_a_lost_start_record_is_a_lost_record():
    lines = world_lines()
    del lines[2][0]
    assert codes(judged(log(*lines))) == ["records-lost"]


def test_an_end_record_that_miscounts_is_found():
    assert codes(judged(log(*world_lines()[:3], rank_lines(3, records=7)))) == ["records-lost"]


def test_an_end_without_throughput_is_not_a_report():
    judgement = judged(log(*world_lines()[:3], rank_lines(3, throughput=None)))
    assert judgement.verdict is Verdict.INCOMPLETE
    assert judgement.missing == (3,)
    assert codes(judgement) == ["missing-rank", "figure-missing"]


def test_an_end_without_epoch_time_is_incomplete():
    assert codes(judged(log(*world_lines()[:3], rank_lines(3, epoch_time=None)))) == ["figure-missing"]


def test_a_rank_reported_twice_by_two_processes():
    judgement = judged(log(*world_lines(), rank_lines(2, pid=999, t=1.0)))
    assert judgement.verdict is Verdict.INCOMPLETE
    assert codes(judgement) == ["duplicate-rank"]
    assert judgement.duplicate == (2,)
    assert cause(judgement).message == "rank 2 (pod bert-1 on node node-1) claimed by 2 processes"
    assert "pid 102" in cause(judgement).evidence[0]


def test_a_rank_reported_twice_with_other_figures():
    again = record(2, 5, "end", records=6, throughput=12.0, epoch_time=0.3)
    judgement = judged(log(*world_lines(), again))
    assert codes(judgement) == ["duplicate-rank"]
    assert judgement.duplicate == (2,)


def test_a_rank_that_speaks_in_two_logs_is_a_duplicate_even_word_for_word():
    judgement = judged(log(*world_lines()), log(rank_lines(2)))
    assert codes(judgement) == ["duplicate-rank"]
    assert cause(judgement).evidence[0] == "rank 2: log-1:1: record 0 also in log-0, byte for byte: the same log twice?"


def test_a_rank_heard_in_two_pods_is_a_duplicate_though_its_records_do_not_overlap():
    ledger = Ledger(plan_of())
    lines = rank_lines(0)
    for name, part in (("bert-0", lines[:3]), ("bert-1", lines[3:])):
        reader = ledger.source(name, pod=name)
        reader.feed(log(part))
        reader.close()
    assert judge(ledger.plan, ledger).duplicate == (0,)


def test_a_rank_whose_log_goes_on_in_another_file_is_one_rank():
    """Rotated files of one stream: nothing overlaps, one process started."""
    lines = [line for rank in world_lines() for line in rank]
    assert judged(log(lines[:9]), log(lines[9:])).verdict is Verdict.PASSED


def test_a_stream_that_repeats_itself_is_not_a_duplicate():
    ledger = Ledger(plan_of())
    for _ in range(2):
        reader = ledger.source("bert")
        reader.feed(log(*world_lines()))
        reader.close()
    judgement = judge(ledger.plan, ledger)
    assert judgement.verdict is Verdict.PASSED
    assert [finding.code for finding in judgement.findings] == ["note-repeated"]


def test_a_rank_outside_the_plan():
    judgement = judged(log(*world_lines(), rank_lines(7)))
    assert judgement.verdict is Verdict.INCOMPLETE
    assert codes(judgement) == ["foreign-rank"]
    assert judgement.foreign == (7,)


def test_lines_of_several_ranks_merged_are_all_counted():
    judgement = judged(b"".join(line for rank in world_lines() for line in rank))
    assert judgement.verdict is Verdict.PASSED


def test_a_second_pod_for_an_index_is_a_finding():
    extra = replace(pod(1), pod="bert-1-again", extra=True)
    judgement = judged(log(*world_lines()), pods=[pod(0), pod(1), extra])
    assert judgement.verdict is Verdict.INCOMPLETE
    assert codes(judgement) == ["extra-pod"]
    assert "bert-1-again" in cause(judgement).message


def test_a_planned_pod_that_nobody_saw():
    assert codes(judged(log(*world_lines()), pods=[pod(0)])) == ["missing-pod"]


def test_a_pod_that_still_runs_is_no_pass():
    running = pod(1, None, None, phase="Running", exit_code=None, reason=None)
    judgement = judged(log(*world_lines()), pods=[pod(0), running])
    assert judgement.verdict is Verdict.INCOMPLETE
    assert codes(judgement) == ["pod-not-ended"]


def test_logs_of_two_runs_are_not_judged_as_one():
    plan = Plan.of_world(4)
    judgement = judged(log(*world_lines(run="a"), *world_lines(run="b")), plan=plan)
    assert codes(judgement) == ["several-runs"]


# Wrong evidence: FAILED in check --------------------------------------------------------------------------------------


def test_processes_that_all_call_themselves_rank_0_of_world_1():
    lines = [rank_lines(0, world=1, pid=100 + n, t=float(n), pod=f"bert-{n // 2}") for n in range(4)]
    judgement = judged(log(*lines))
    assert (judgement.verdict, judgement.phase) == (Verdict.FAILED, Phase.CHECK)
    assert codes(judgement) == ["world-size", "missing-rank", "duplicate-rank"]
    assert cause(judgement).message == "rank 0 reports world size 1, planned 4: each was its own process group"
    assert judgement.duplicate == (0,)
    assert judgement.missing == (1, 2, 3)


def test_each_rank_alone_in_its_own_process_group():
    judgement = judged(log(*(rank_lines(rank, world=1) for rank in range(4))))
    assert cause(judgement).message == "ranks 0-3 report world size 1, planned 4: each was its own process group"


def test_a_world_size_that_differs_between_ranks():
    judgement = judged(log(*world_lines()[:3], rank_lines(3, world=2)))
    assert cause(judgement).message == "rank 3 reports world size 2, planned 4"


@pytest.mark.parametrize("loss", ["nan", "inf", pytest.param(float("nan"), id="bare NaN")])
def test_a_nan_loss(loss: Any):
    judgement = judged(log(*world_lines()[:3], rank_lines(3, losses=[9.0, loss, 7.0])))
    assert (judgement.verdict, judgement.phase) == (Verdict.FAILED, Phase.CHECK)
    assert codes(judgement) == ["not-finite"]
    assert "at step 2 (log-0:21)" in cause(judgement).message
    assert cause(judgement).ranks == (3,)


@pytest.mark.parametrize("throughput", ["nan", "inf", 0, -3.0])
def test_a_throughput_that_cannot_be(throughput: Any):
    assert codes(judged(log(*world_lines()[:3], rank_lines(3, throughput=throughput)))) == ["not-finite"]


@pytest.mark.parametrize("losses", [[5.0] * 8, [1.0, 2.0, 3.0], [5.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0]])
def test_a_loss_that_does_not_fall(losses: list[float]):
    judgement = judged(log(*world_lines(losses=losses)))
    assert (judgement.verdict, judgement.phase) == (Verdict.FAILED, Phase.CHECK)
    assert codes(judgement) == ["loss-not-falling"]


def test_one_bad_last_step_does_not_hide_that_the_loss_falls():
    losses = [9.0 - step / 10 for step in range(40)] + [9.5]
    assert judged(log(*world_lines(losses=losses))).verdict is Verdict.PASSED


def test_unequal_parameters_name_the_odd_rank():
    judgement = judged(log(*world_lines()[:3], rank_lines(3, fingerprint="bad")))
    assert (judgement.verdict, judgement.phase) == (Verdict.FAILED, Phase.CHECK)
    assert codes(judgement) == ["parameters-differ"]
    assert cause(judgement).ranks == (3,)


def test_unequal_parameters_without_majority_name_all():
    lines = [rank_lines(rank, fingerprint="ab"[rank % 2]) for rank in range(4)]
    assert cause(judged(log(*lines))).ranks == (0, 1, 2, 3)


def test_the_order_within_check_is_that_of_the_contract():
    lines = [rank_lines(rank, world=8, losses=[1.0, "nan", 2.0], fingerprint="ab"[rank % 2]) for rank in range(3)]
    judgement = judged(log(*lines))
    assert codes(judgement) == ["world-size", "not-finite", "loss-not-falling", "parameters-differ", "missing-rank"]


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
