"""Language models trained in real processes: whatever the topology, the losses are those of one process."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Train = Callable[..., Any]
PROGRAMS = Path(__file__).parent / "programs"
# 16 sequences a step, in four micro batches where one process has them all.
SIZES = ("--device", "cpu", "--sequence_length", "16", "--total_batch_size", "256", "--batch_size", "4")
SHORT = (*SIZES, "--num_iteration", "10")
LORA = ("--lora_rank", "4", "--lora_alpha", "16")
STEP = re.compile(
    r"step +(\d+)/10 \| train loss (\d+\.\d{6}) \| lr 1\.00e-03 \| \((\d+\.\d{2}) ms \| (\d+) tok/s \| "
    r"peak used: +\d+ MB \| peak reserved: +\d+ MB, DP=(\d), TP=(\d), SP=(\d), PP=(\d)\)"
)


def by_rank(outcomes: list[Any], event: str) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for outcome in outcomes:
        for record in outcome.records(event):
            found.setdefault(record["rank"], []).append(record)
    return found


def curves(outcomes: list[Any]) -> dict[int, list[float]]:
    return {rank: [record["loss"] for record in records] for rank, records in by_rank(outcomes, "step").items()}


def deviation(outcomes: list[Any], reference: Any) -> float:
    (expected,) = curves([reference]).values()
    found = curves(outcomes)
    assert all(len(curve) == len(expected) for curve in found.values())
    return max(abs(a - b) for curve in found.values() for a, b in zip(curve, expected, strict=True))


def assert_complete(outcomes: list[Any], world: int) -> None:
    """Every rank: records without gaps, one world, one human line; equal parameters where they must be equal."""
    for outcome in outcomes:
        assert outcome.code == 0, outcome.err
        assert outcome.err == ""
    records = by_rank(outcomes, None)  # type: ignore[arg-type]
    assert sorted(records) == list(range(world))
    prints: dict[Any, set[str]] = {}
    for rank, said in records.items():
        assert [record["seq"] for record in said] == list(range(len(said)))
        assert {record["world"] for record in said} == {world}
        assert (said[0]["event"], said[-1]["event"], said[-1]["records"]) == ("start", "end", len(said))
        assert sum(f"[Rank {rank}] - local_samples=" in outcome.out for outcome in outcomes) == 1
        prints.setdefault(said[-1].get("fingerprint_group"), set()).add(said[-1]["fingerprint"])
    assert all(len(found) == 1 for found in prints.values()), prints
    # What the ranks say that they did adds up to what the job did: nine steps after warm-up, of 16 sequences.
    assert sum(said[-1]["samples"] for said in records.values()) == pytest.approx(9 * 16)


@pytest.fixture(scope="session")
def references(train_once: Train) -> Callable[..., Any]:
    """One process: what any topology is compared with. Trained when first asked for."""
    known: dict[Any, Any] = {}

    def references(module: str, *args: str) -> Any:
        if (module, *args) not in known:
            known[(module, *args)] = train_once("-m", f"workloads.{module}", *SHORT, *args)
        return known[(module, *args)]

    return references


@pytest.mark.parametrize("module", ["gpt2", "llama3"])
def test_one_process_learns_and_says_so_in_the_fields_form(references: Train, module: str) -> None:
    alone = references(module)
    assert_complete([alone], 1)
    (curve,) = curves([alone]).values()
    assert curve[0] == pytest.approx(4.85, abs=0.1)  # ln 128: nothing is known yet
    assert curve[-1] < 0.95 * curve[0]
    lines = [STEP.fullmatch(line) for line in alone.out.splitlines() if line.startswith("step ")]
    assert [int(line[1]) for line in lines if line] == list(range(1, 11))
    for line, record in zip(lines, alone.records("step"), strict=True):
        assert line
        assert float(line[2]) == pytest.approx(record["loss"], abs=1e-6)
        assert float(line[3]) == pytest.approx(record["step_time"] * 1e3, abs=0.01)
        assert int(line[4]) == pytest.approx(256 / record["step_time"], abs=1)
        assert 0 < record["local_time"] <= record["step_time"]
    (start,), (end,) = alone.records("start"), alone.records("end")
    assert (start["workload"], start["global_batch"], start["steps"], start["warmup_steps"]) == (module, 16, 10, 1)
    assert (end["loss_first"], end["loss_last"], end["steps"]) == (curve[0], curve[-1], 10)


@pytest.mark.parametrize(
    ("module", "processes", "options", "sizes"),
    [
        ("gpt2", 4, "", "4111"),
        ("gpt2", 1, "--nthread_per_process 4", "4111"),
        ("gpt2", 2, "--tensor_parallel 2 --sequence_parallel --batch_size 8", "1221"),
        ("gpt2", 2, "--pipeline_parallel 2", "1112"),
        ("gpt2", 4, "--tensor_parallel 2 --pipeline_parallel 2 --batch_size 8", "1212"),
        ("gpt2", 2, "--zero_stage 1", "2111"),
        ("gpt2", 2, "--zero_stage 2", "2111"),
        pytest.param("gpt2", 4, "--pipeline_parallel 2 --zero_stage 3", "2112", marks=pytest.mark.thorough),
        ("llama3", 2, "--zero_stage 3", "2111"),
        pytest.param(
            "llama3",
            4,
            "--tensor_parallel 2 --pipeline_parallel 2 --sequence_parallel --batch_size 8",
            "1222",
            marks=pytest.mark.thorough,
        ),
        pytest.param("llama3", 4, "--tensor_parallel 2 --zero_stage 3", "2211", marks=pytest.mark.thorough),
        pytest.param(
            "llama3", 4, "--tensor_parallel 2 --zero_stage 1 --sequence_parallel", "2221", marks=pytest.mark.thorough
        ),
        ("llama3", 4, "--pipeline_parallel 2 --virtual_pipeline_parallel 2 --zero_stage 2", "2112"),
        pytest.param("llama3", 2, "--pipeline_parallel 2 --batch_size 16", "1112", marks=pytest.mark.thorough),
    ],
)
def test_the_losses_do_not_depend_on_the_topology(
    train: Train, references: Train, module: str, processes: int, options: str, sizes: str
) -> None:
    outcomes = train("-m", f"workloads.{module}", *SHORT, *options.split(), processes=processes)
    assert_complete(outcomes, 4 if "nthread" in options else processes)
    assert deviation(outcomes, references(module)) < 1e-5
    lines = [line for outcome in outcomes for line in outcome.out.splitlines() if line.startswith("step ")]
    assert len(lines) == 10  # by one rank
    assert all((found := STEP.fullmatch(line)) and "".join(found.groups()[4:]) == sizes for line in lines)


@pytest.mark.thorough
def test_eight_processes_in_three_dimensions_train_as_one_does(train: Train, references: Train) -> None:
    options = ("--tensor_parallel", "2", "--sequence_parallel", "--pipeline_parallel", "2", "--zero_stage", "1")
    outcomes = train("-m", "workloads.gpt2", *SHORT, *options, processes=8)
    assert_complete(outcomes, 8)
    assert deviation(outcomes, references("gpt2")) < 1e-5
    groups = {end["fingerprint_group"] for (end,) in by_rank(outcomes, "end").values()}
    assert groups == {"tp0pp0", "tp0pp1", "tp1pp0", "tp1pp1"}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param("--tensor_parallel 2 --sequence_parallel --batch_size 8", marks=pytest.mark.thorough),
        "--zero_stage 3",
    ],
)
def test_lora_does_not_depend_on_the_topology(train: Train, references: Train, options: str) -> None:
    lora = ("--lora_rank", "4", "--lora_alpha", "16", "--lora_target_modules", "attn.c_attn,attn.c_proj,mlp.c_proj")
    outcomes = train("-m", "workloads.gpt2", *SHORT, *lora, *options.split(), processes=2)
    assert_complete(outcomes, 2)
    assert deviation(outcomes, references("gpt2", *lora)) < 1e-5
    assert deviation(outcomes, references("gpt2")) > 1e-2


@pytest.mark.parametrize(
    "options",
    [
        "--zero_stage 2",
        pytest.param("--pipeline_parallel 2 --tensor_parallel 2 --batch_size 8", marks=pytest.mark.thorough),
    ],
)
def test_bfloat16_agrees_within_its_precision(train: Train, references: Train, options: str) -> None:
    outcomes = train("-m", "workloads.llama3", *SHORT, "--dtype", "bfloat16", *options.split(), processes=4)
    assert_complete(outcomes, 4)
    assert deviation(outcomes, references("llama3", "--dtype", "bfloat16")) < 1e-2
    assert deviation(outcomes, references("llama3")) < 1e-2


WRONG = [
    ("2", "left_out"),
    ("2", "sum_for_mean"),
    ("2 --zero_stage 1", "sum_for_mean"),
    ("2 --zero_stage 2", "left_out"),
    ("2 --zero_stage 3", "sum_for_mean"),
    ("2 --tensor_parallel 2", "left_out"),
    ("2 --tensor_parallel 2", "sum_for_mean"),
    ("2 --tensor_parallel 2 --sequence_parallel", "left_out"),
    ("2 --pipeline_parallel 2", "left_out"),  # of what both ends add to the embedding they share
    ("2 --pipeline_parallel 2 --virtual_pipeline_parallel 2", "sum_for_mean"),
    ("4 --pipeline_parallel 2", "left_out"),
    ("4 --tensor_parallel 2 --zero_stage 2", "sum_for_mean"),
]
BRIEF = {WRONG[0], WRONG[4], WRONG[5], WRONG[8]}


@pytest.mark.parametrize(
    ("layout", "fault"),
    [pytest.param(*each, marks=() if each in BRIEF else pytest.mark.thorough) for each in (*WRONG, ("2", "none"))],
)
def test_a_wrong_reduction_shows_in_the_losses_of_every_layout(
    train: Train, references: Train, layout: str, fault: str
) -> None:
    """By ten times the tolerance at least, from the first step whose gradients it spoils; nothing else shows it."""
    processes, *options = layout.split()
    program = str(PROGRAMS / "wrong_reduction.py")
    outcomes = train(program, fault, "gpt2", *SHORT, *options, processes=int(processes))
    assert_complete(outcomes, int(processes))
    apart = deviation(outcomes, references("gpt2"))
    assert apart < 1e-5 if fault == "none" else apart > 1e-4
    assert all(curve[-1] < 0.95 * curve[0] for curve in curves(outcomes).values())


def test_training_resumes_in_another_topology_as_if_it_had_not_stopped(
    train: Train, references: Train, tmp_path: Path
) -> None:
    first = (*SIZES, "--num_iteration", "6", "--save", str(tmp_path / "saved"))
    first += ("--save_interval", "4", "--max_checkpoint_keep", "1")
    train("-m", "workloads.gpt2", *first, "--pipeline_parallel", "2", "--zero_stage", "1", processes=2)
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["checkpoint_step_000006"]
    load = ("--load", str(tmp_path / "saved"))
    rest = train("-m", "workloads.gpt2", *SHORT, *load, "--zero_stage", "3", processes=2)
    (expected,) = curves([references("gpt2")]).values()
    for rank, curve in curves(rest).items():
        assert curve == pytest.approx(expected[6:], abs=1e-5), rank
    assert [record["step"] for record in rest[0].records("step")] == [7, 8, 9, 10]
    assert rest[0].records("start")[0]["steps"] == 4
    (other,) = train("-m", "workloads.gpt2", *SHORT, *load, "--seed", "1")
    assert other.code == 2
    assert "would not go on where that training stopped: seed 0 there and 1 here" in other.err


@pytest.mark.parametrize("zero", [pytest.param("2", marks=pytest.mark.thorough), "3"])
def test_lora_adapts_a_trained_model_and_resumes_in_another_topology(
    train: Train, lora_on_trained: tuple[Path, list[float]], zero: str
) -> None:
    """Weights from the other training, adapters and steps anew; a checkpoint with adapters goes on where it was."""
    saved, expected = lora_on_trained
    divided = ("--zero_stage", zero)
    anew = train("-m", "workloads.gpt2", *SHORT, *LORA, *divided, "--load", str(saved / "base"), processes=2)
    assert_complete(anew, 2)
    checkpoint = str(saved / "adapted" / "checkpoint_step_000006")
    rest = train("-m", "workloads.gpt2", *SHORT, *LORA, *divided, "--load", checkpoint, processes=2)
    for outcomes, wanted in ((anew, expected), (rest, expected[6:])):
        for rank, curve in curves(outcomes).items():
            assert curve == pytest.approx(wanted, abs=1e-5), rank
    assert [record["step"] for record in rest[0].records("step")] == [7, 8, 9, 10]


@pytest.fixture(scope="module")
def lora_on_trained(tmp_path_factory: pytest.TempPathFactory, train_once: Train) -> tuple[Path, list[float]]:
    """Checkpoints of a training and of its adaptation, both on one process, and the latter's losses."""
    saved = tmp_path_factory.mktemp("saved")
    (base,) = curves([train_once("-m", "workloads.gpt2", *SHORT, "--save", str(saved / "base"))]).values()
    keep = ("--load", str(saved / "base"), "--save", str(saved / "adapted"), "--save_interval", "3")
    (adapted,) = curves([train_once("-m", "workloads.gpt2", *SHORT, *LORA, *keep)]).values()
    assert len(adapted) == 10
    assert adapted[0] < base[0] - 0.5  # on the same first batch, which the trained model knows
    assert adapted[-1] < adapted[0]
    return saved, adapted


def test_adapters_of_another_scale_are_refused(train: Train, lora_on_trained: tuple[Path, list[float]]) -> None:
    saved, _ = lora_on_trained
    other = (*LORA[:2], "--lora_alpha", "8", "--load", str(saved / "adapted"))
    (outcome,) = train("-m", "workloads.gpt2", *SHORT, *other, "--num_iteration", "12")
    assert outcome.code == 2
    assert "lora_alpha 16 there, 8 here" in outcome.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--tensor_parallel 2", "1 ranks do not divide into replicas of tensor_parallel 2"),
        ("--total_batch_size 100", "100 tokens are not a multiple of data parallel 1 × batch_size 4"),
        ("--lora_rank 2 --lora_target_modules q_proj", "q_proj: no linear module has that name"),
        ("--warmup_steps 10", "leaves nothing to measure of 10 steps"),
        ("--input_bin /nowhere/*.bin", "/nowhere/*.bin: no file matches"),
        ("--load /nowhere", "/nowhere: no checkpoint there"),
    ],
)
def test_what_does_not_fit_exits_2_with_the_reason(train: Train, options: str, said: str) -> None:
    (outcome,) = train("-m", "workloads.gpt2", *SHORT, *options.split())
    assert outcome.code == 2
    assert said in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.records("error")[0]["type"] == "UsageError"


def test_help_takes_no_time_to_speak_of_and_names_the_options() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workloads.llama3", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "--virtual-pipeline-parallel" in done.stdout
    assert "{auto,tiny,1B,8B}" in done.stdout
