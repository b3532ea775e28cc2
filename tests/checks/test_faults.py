"""It must turn red: evidence that is absent or wrong, each reported as exactly that."""

from dataclasses import replace
from typing import Any

import pytest

from allranks.checks import PodEvidence, judge
from allranks.ledger import Ledger
from allranks.ledger.status import LauncherStatus, RankFigures
from allranks.plan import Plan
from allranks.result import Phase, Stage, Verdict
from tests.checks.kit import cause, codes, judged, pod
from tests.ledger.speech import RUN, log, plan_of, rank_lines, record, world_lines


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
