"""Whole `pytest e2e` sessions of cases, as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TRAINING = {"num_iteration": 10, "sequence_length": 32, "total_batch_size": 512, "learning_rate": 1e-3}


def session(tmp_path: Path, *arguments: str, plugin: str | None = None) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    plugins = ("-p", plugin) if plugin else ()
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "e2e", "--cluster", "standin"),
            *("--artefacts", str(tmp_path / "runs"), *plugins, *arguments),
        ],
        cwd=ROOT,
        env={**kept, "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", "PLANTED": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def write(path: Path, **cases: dict[str, Any]) -> Path:
    tests = [{"id": name, "args": {**TRAINING, **args}} for name, args in cases.items()]
    path.write_text(json.dumps({"test_groups": [{"tag": "mine", "tests": tests}], "variables": {"BUILD_DIR": "x"}}))
    return path


def failed(output: str) -> list[str]:
    return [line.split()[1].split("::")[-1] for line in output.splitlines() if line.startswith("FAILED e2e")]


FAULTS = {
    "left_out": ("1 × 4", {"nproc_per_node": 4, "batch_size": 4}),
    "sum_for_mean": ("1 × 4", {"nproc_per_node": 4, "batch_size": 4}),
    "left_out_zero2": ("1 × 2, zero 2", {"nproc_per_node": 2, "batch_size": 8, "zero_stage": 2}),
    "left_out_tp2": ("1 × 2, tensor 2", {"nproc_per_node": 2, "batch_size": 8, "tensor_parallel": 2}),
    "sum_for_mean_pp2": ("1 × 2, pipeline 2", {"nproc_per_node": 2, "batch_size": 8, "pipeline_parallel": 2}),
}


@pytest.mark.parametrize(
    "faults",
    [("left_out", "sum_for_mean"), pytest.param(tuple(list(FAULTS)[2:]), marks=pytest.mark.thorough)],
    ids=["data", "divided"],
)
def test_a_wrong_reduction_turns_red_and_names_the_first_step(tmp_path: Path, faults: tuple[str, ...]) -> None:
    """Planted in real runs: one rank's gradients left out, and the sum taken for the mean. Nothing else shows it: all
    ranks end with the same parameters, and the loss falls."""
    wrong = {name: FAULTS[name][1] for name in faults}
    file = write(tmp_path / "cases.json", right={"nproc_per_node": 2, "batch_size": 8}, **wrong)
    ran = session(tmp_path, "-k", "gpt2", "--case-file", str(file), plugin="tests.cases.programs.planted")
    assert ran.returncode == 1, ran.stdout
    assert failed(ran.stdout) == [f"test_losses_are_those_of_one_rank[mine-{name}@nvidia]" for name in faults], (
        ran.stdout
    )
    for name in faults:
        topology, arguments = FAULTS[name]
        assert f"case {name} ({topology}): ranks 0-{arguments['nproc_per_node'] - 1}: loss " in ran.stdout
    step = 1 if "left_out_tp2" in faults else 2  # what tensor-parallel ranks add up is in the first loss already
    assert f" at step {step} instead of " in ran.stdout
    assert ran.stdout.count(" at step 2 instead of ") >= 2, ran.stdout
    assert "cases.json: not applicable: variable BUILD_DIR: no case uses it" in ran.stdout
    table = ran.stdout[ran.stdout.index("  from 1 × 1") :].splitlines()[1 : 2 + len(faults)]
    assert [row.split()[:2] for row in table] == [["gpt2", name] for name in ("right", *faults)]


@pytest.mark.thorough
def test_a_save_and_its_resume_run_within_one_job_and_others_are_skipped_by_name(tmp_path: Path) -> None:
    root, two = "@CKPT_ROOT_DIR@/a", {"nproc_per_node": 2, "batch_size": 8}
    file = write(
        tmp_path / "cases.json",
        resume={**two, "load": f"{root}/checkpoint_step_000004", "zero_stage": 2, "save": f"{root}2"},
        resume_again={**two, "load": f"{root}2", "num_iteration": 12},
        resume_as_lora={**two, "load": f"{root}/checkpoint_step_000008", "lora_rank": 4},
        first={**two, "save": root, "save_interval": 4, "zero_stage": 2},
        two_nodes={"nnodes": 2, "save": f"{root}3"},
        from_elsewhere={"load": "/models/checkpoint_step_000004"},
        too_large={"nproc_per_node": 64},
    )
    select = "gpt2 and (resume or two_nodes or elsewhere or large)"
    ran = session(tmp_path, "-k", select, "--case-file", str(file), "-rs")
    assert ran.returncode == 0, ran.stdout
    for skipped in (
        "case two_nodes (2 × 1): its checkpoints must be seen by several nodes: give --shared-volume",
        "case from_elsewhere (1 × 1): it loads /models/checkpoint_step_000004, which no case of this file saves",
        "case too_large (1 × 64): it needs 64 devices per node",
        "case resume_again (1 × 2): it loads what case resume saves, which itself loads: give --shared-volume",
    ):
        assert skipped in ran.stdout
    results = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/result.json")]
    points = {result["plan"]["workload"]: result["losses"][0]["points"] for result in results}
    assert {name: [step for step, _ in told] for name, told in points.items()} == {
        "gpt2-resume": list(range(5, 11)),
        "gpt2-resume_on_1_rank": list(range(1, 11)),
        "gpt2-resume_as_lora": list(range(1, 11)),  # what was trained is adapted, from the beginning of the data
        "gpt2-resume_as_lora_on_1_rank": list(range(1, 11)),
    }
    assert points["gpt2-resume_as_lora"][0][1] < points["gpt2-resume_on_1_rank"][0][1] - 0.5


@pytest.mark.thorough
def test_on_a_shared_volume_the_saving_case_runs_first_and_the_resumed_one_may_have_other_ranks(
    tmp_path: Path,
) -> None:
    root, lora_root = "@CKPT_ROOT_DIR@/a", "@CKPT_ROOT_DIR@/adapted"
    lora = {"batch_size": 8, "lora_rank": 4, "save_interval": 4}
    there = tmp_path / "volume/cases/cases.json"  # what the cases before saved, as if from elsewhere
    file = write(
        tmp_path / "cases.json",
        resume={"nnodes": 2, "batch_size": 8, "load": f"{root}/checkpoint_step_000004", "log_every": 3},
        first={"nproc_per_node": 4, "batch_size": 4, "save": root, "save_interval": 4, "zero_stage": 3},
        adapted={**lora, "nproc_per_node": 2, "load": f"{root}/checkpoint_step_000008", "save": lora_root},
        resume_adapted={**lora, "load": f"{lora_root}/checkpoint_step_000004"},
        resume_model={**lora, "nproc_per_node": 2, "load": f"{there}/a/gpt2/no_resume/checkpoint_step_000008"},
        resume_adapters={**lora, "load": f"{there}/adapted/gpt2/resume/checkpoint_step_000004"},
    )
    (tmp_path / "volume").mkdir()
    volume = ("--shared-volume", f"hostPath:{tmp_path / 'volume'}")
    ran = session(tmp_path, "-k", "gpt2 and resume", "--case-file", str(file), *volume)
    assert ran.returncode == 0, ran.stdout
    resumed = [f"resume{name}{kind}" for name in ("", "_adapted", "_model", "_adapters") for kind in ("", "_on_1_rank")]
    assert [run for run in ("first", "adapted", *resumed) if f"gpt2-{run} on nvidia" not in ran.stdout] == [], (
        ran.stdout
    )
    assert ran.stdout.index("gpt2-first-nvidia") < ran.stdout.index("gpt2-resume-nvidia")
    saved = tmp_path / "volume/cases/cases.json/a/gpt2/no_resume/checkpoint_step_000004/state.json"
    assert json.loads(saved.read_text())["world"] == 4


def test_a_case_that_trains_something_else_than_it_says_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "cases.json", one={"tensor_paralel": 2})
    ran = session(tmp_path, "--case-file", str(file), "--collect-only", "-q")
    assert ran.returncode == 4
    assert "ERROR: cases.json, case one: unknown argument 'tensor_paralel'" in ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr


def test_files_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first, second = write(tmp_path / "a.json", one={}), write(tmp_path / "other" / "a.json", two={})
    ran = session(tmp_path, "--case-file", str(first), "--case-file", str(second), "--collect-only", "-q")
    assert "two case files are called a.json: give one of them another name" in ran.stderr
    third = write(tmp_path / "b.json", one={})
    ran = session(tmp_path, "--case-file", str(first), "--case-file", str(third), "--collect-only", "-q")
    assert "case one of group mine is in a.json and in b.json: rename one" in ran.stderr


def test_tags_choose_cases_by_group(tmp_path: Path) -> None:
    ran = session(tmp_path, "--collect-only", "-q", "--tags", "8_proc", "-k", "gpt2")
    listed = [line for line in ran.stdout.splitlines() if "::" in line]
    assert listed
    assert all("[8_proc-" in line for line in listed)
    assert "no group has this tag" in session(tmp_path, "--collect-only", "-q", "--tags", "9_proc").stderr


def test_by_default_each_topology_of_each_model_is_one_job_and_there_are_at_most_sixteen(tmp_path: Path) -> None:
    ran = session(tmp_path, "--collect-only", "-q", "-k", "(gpt2 or llama3) and verdict")
    listed = [line for line in ran.stdout.splitlines() if "::" in line]
    assert 12 <= len(listed) <= 16
    for topology in ("1x1", "1x4", "2x2", "tp2", "pp2", "zero2"):
        assert sum(f"-{topology}@nvidia" in line for line in listed) == 2, topology
