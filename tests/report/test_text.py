"""The text report."""

from dataclasses import replace

from allranks.checks import judge
from allranks.plan import Accelerator, Plan
from allranks.report.table import format_table
from allranks.report.text import funnel, render, summary
from allranks.result import Figures, RankResult, TrainingRun
from tests.ledger.speech import RUN, ledger_of, log, rank_lines


def run_of(world: int, per_node: int, absent: tuple[int, ...] = (), **changes: object) -> TrainingRun:
    nodes = world // per_node
    plan = Plan(nodes, per_node, run_id=RUN, workload="bert", accelerator=Accelerator.CPU)
    lines = [
        rank_lines(
            rank,
            world=world,
            per_node=per_node,
            node=f"ip-10-0-3-{rank // per_node}.us-west-2.compute.internal",
            pod=f"bert-nvidia-3f9a1c-{rank // per_node}-x7k2p",
            throughput=43.7259375,
            epoch_time=0.27125,
        )
        for rank in range(world)
        if rank not in absent
    ]
    run = TrainingRun(plan, judge(plan, ledger_of(log(*lines), plan=plan)), cluster="stand-in (127.0.0.1:41873)")
    return replace(run, **changes)  # type: ignore[arg-type]


def test_the_summary_is_the_fields_word_for_word():
    run = run_of(64, 32)
    assert summary(run) == [
        "Parsed throughput from 64 ranks. Total=2798.46 samples/s, Average=43.73 samples/s",
        "Average Throughput: 43.73 samples/second",
        "Parsed average epoch time from 64 ranks. Sum=17.36s, Average=0.27s",
    ]
    assert funnel(run) == "64 planned · 64 launched · 64 heard · 64 finished · 64 measured"


def test_figures_from_the_status_are_shown_and_not_summed():
    run = run_of(4, 2)
    ranks = (*run.ranks[:3], replace(run.ranks[3], source="status"))
    run = replace(run, judgement=replace(run.judgement, ranks=ranks))
    assert summary(run)[0].startswith("Parsed throughput from 3 ranks.")
    lines = render(run)
    assert any("43.73*" in line for line in lines)
    assert "* from the launcher's status, not from the log" in lines


def test_nothing_parsed_is_said():
    assert summary(run_of(2, 1, absent=(0, 1))) == ["no figures were parsed"]
    assert Figures.of((RankResult(0),)).throughput_total is None


def test_a_small_world_is_shown_rank_by_rank_within_100_columns():
    lines = render(run_of(4, 2, started=100.0, finished=131.25, artefacts="artefacts/x"))
    assert lines[0] == "bert on cpu · 2 × 2 processes = 4 ranks · stand-in (127.0.0.1:41873) · 31.2 s"
    assert max(map(len, lines)) <= 100
    assert sum("9.5→7" in line for line in lines) == 4
    assert "artefacts: artefacts/x" in lines
    assert lines[-1] == "PASSED: all 4 ranks accounted for"


def test_a_large_world_is_shown_node_by_node_with_the_odd_ranks_below():
    lines = render(run_of(64, 32, absent=(3, 40)))
    table = lines[lines.index("") + 1 :]
    table = table[: table.index("")]
    assert len(table) == 1 + 2 + 2, "head, two nodes, two odd ranks"
    assert [row.split()[0] for row in table[1:]] == ["0-31", "32-63", "3", "40"]
    assert table[1].endswith("1 planned")
    assert max(map(len, table)) <= 100


def test_ranks_that_come_in_many_ranges_leave_room_for_the_other_columns():
    lines = render(run_of(512, 512, absent=tuple(range(1, 512, 2))))
    table = lines[lines.index("") + 1 :]
    assert max(len(line) for line in table[: table.index("")]) <= 100
    assert any(line.lstrip().startswith("0, 2, 4") and "(256 ranks)" in line for line in table), table[:3]


def test_many_odd_ranks_are_counted():
    lines = render(run_of(64, 32, absent=tuple(range(30))))
    assert "… and 6 more odd ranks" in lines


def test_findings_carry_their_code_and_are_wrapped():
    lines = render(run_of(4, 2, absent=(3,)))
    text = " ".join(" ".join(lines).split())
    assert "never reported: no record in the log [missing-rank]" in text
    assert max(map(len, lines[:-1])) <= 100


def test_a_table_narrows_the_columns_that_may_and_keeps_both_ends_of_names():
    lines = format_table(("n", "name"), [("1", "abcdefghijklmnopqrstuvwxyz")], 15, (1,))
    assert lines == ["n  name", "1  abcde…uvwxyz"]


def test_devices_that_were_stood_in_for_are_said():
    run = run_of(4, 2)
    ranks = tuple(
        replace(rank, device=f"cuda:{rank.rank % 2}" if rank.rank else "cpu (in place of nvidia)", backend="nccl")
        for rank in run.ranks
    )
    lines = render(replace(run, judgement=replace(run.judgement, ranks=ranks)))
    assert "devices: 3 × cuda, nccl; 1 × cpu (in place of nvidia), nccl" in lines
