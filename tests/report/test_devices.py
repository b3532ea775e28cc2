"""What the summary says of devices at work."""

import json

from allranks.checks import judge
from allranks.plan import Accelerator
from allranks.report.devices import at_work
from allranks.report.text import render
from allranks.result import TrainingRun
from tests.ledger.speech import ledger_of, log, plan_of, rank_lines

H200 = {
    "mfu": 0.521, "peak_tflops": 989.4, "peak_from": "datasheet", "steady_throughput": 49.9, "steady_spread": 0.0031,
    "sm_clock": 1710, "max_sm_clock": 1980, "power": 692.4, "power_limit": 700.0, "temperature": 64,
    "throttle": "power cap", "peak_memory": 76_450_000_000, "compile_time": 18.2, "time_to_first_step": 35.1,
}  # fmt: skip


def run_of(*of_rank: dict[str, object]) -> TrainingRun:
    """One rank for each; what it says beside the usual figures."""
    world = len(of_rank)
    plan = plan_of(world, 1, workload="bert", accelerator=Accelerator.NVIDIA)
    lines = [
        rank_lines(rank, world=world, per_node=world, device=f"cuda:{rank}", **said)
        for rank, said in enumerate(of_rank)
    ]
    return TrainingRun(plan, judge(plan, ledger_of(log(*lines), plan=plan)))


def test_ranks_that_do_alike_take_three_lines():
    run = run_of(*[H200] * 4)
    assert at_work(run) == [
        "MFU from 4 ranks. Average=52.1 %, Lowest=52.1 % (rank 0) of 989.4 TFLOP/s (datasheet)",
        "at work: 1710 of 1980 MHz, 692 of 700 W, at most 64 °C; throttled by power cap; at most 71.2 GiB in use",
        "first step after 35.1 s, 18.2 s of it compiling; half of the windows within 0.3 %",
    ]
    assert set(at_work(run)) <= set(render(run))
    assert not any("held-back" in line for line in render(run))


def test_the_rank_that_holds_the_others_back_is_named():
    hot = {**H200, "mfu": 0.42, "sm_clock": 1410, "power": 512.0, "temperature": 88, "throttle": "power cap, thermal"}
    run = run_of(H200, H200, hot, H200)
    assert at_work(run)[:2] == [
        "MFU from 4 ranks. Average=49.6 %, Lowest=42.0 % (rank 2) of 989.4 TFLOP/s (datasheet)",
        "at work: 1410–1710 of 1980 MHz, 512–692 of 700 W, at most 88 °C; throttled by power cap, thermal (rank 2); "
        "at most 71.2 GiB in use",
    ]
    text = " ".join(" ".join(render(run)).split())
    assert (
        "note: rank 2 (pod bert-0 on node node-0): the device was held back (MFU 42.0 % where the median is 52.1 %, "
        "1410 MHz where the median is 1710 MHz, thermal)"
    ) in text
    assert render(run)[-1] == "PASSED: all 4 ranks accounted for"


def test_several_that_are_held_back_are_one_finding_with_a_line_each():
    slow = {"sm_clock": 1200, "throttle": "none"}
    run = run_of(H200, H200, H200, slow, {**H200, "throttle": "power brake"})
    (note,) = [finding for finding in run.findings if finding.code == "note-device-held-back"]
    assert note.ranks == (3, 4)
    assert note.evidence == ("rank 3: 1200 MHz where the median is 1710 MHz", "rank 4: power brake")


def test_what_only_some_ranks_say_is_not_taken_for_all():
    assert at_work(run_of({"mfu": 0.5}, {}, {})) == ["MFU from 1 rank. Average=50.0 %"]
    assert at_work(run_of({"sm_clock": 1710, "throttle": "none"}, {})) == ["at work: 1710 MHz; not throttled"]


def test_peaks_that_differ_are_not_shown_as_one():
    run = run_of(H200, {**H200, "peak_tflops": 660.0, "peak_from": "measured"})
    assert at_work(run)[0].endswith("(rank 0) of 2 different peaks")


def test_a_cpu_that_tells_of_its_first_step_alone_takes_no_line():
    assert at_work(run_of({"time_to_first_step": 9.5, "windows": 5, "steady_spread": 0.2})) == []
    assert at_work(run_of({})) == []


def test_device_figures_survive_the_result_file():
    run = run_of({**H200, "mfu": "nan"}, {})
    data = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert data["rank_results"][0]["device_figures"]["mfu"] == "nan"
    assert data["rank_results"][1]["device_figures"] is None
    assert json.dumps(TrainingRun.from_dict(data).to_dict()) == json.dumps(run.to_dict())
