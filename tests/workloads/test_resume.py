from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Start = Callable[..., subprocess.Popen[str]]
PROGRAM = "tests.workloads.programs.echoes"


def resume(start: Start, run_dir: Path, *arguments: str) -> tuple[int, list[str], str]:
    process = start("-m", "workloads.resume", *arguments, TORCHELASTIC_RUN_ID="r", ALLRANKS_RUN_DIR=str(run_dir))
    out, err = process.communicate(timeout=60)
    return process.returncode, out.splitlines(), err


def test_the_later_training_loads_what_the_earlier_saved(start: Start, tmp_path: Path) -> None:
    earlier = json.dumps(["--save", "@RUN_DIR@/c"])
    code, out, _ = resume(
        start,
        tmp_path,
        "--device",
        "cpu",
        "--program",
        PROGRAM,
        "--earlier",
        earlier,
        "--args",
        "--load",
        "@RUN_DIR@/c",
    )
    path = f"{tmp_path}/c"
    assert (code, out) == (0, [f"r-earlier --device cpu --save {path}", f"r --device cpu --load {path}", "saved"])


def test_without_an_earlier_training_only_the_directory_is_given(start: Start, tmp_path: Path) -> None:
    code, out, _ = resume(start, tmp_path, "--program", PROGRAM, "--args", "--save", "@RUN_DIR@/c")
    assert (code, out) == (0, [f"r --save {tmp_path}/c"])


def test_an_earlier_training_that_fails_ends_it_with_its_code(start: Start, tmp_path: Path) -> None:
    code, out, err = resume(start, tmp_path, "--program", PROGRAM, "--earlier", '["--fail"]', "--args", "--load", "x")
    assert (code, out) == (7, ["r-earlier --fail"])
    assert "that was to save ended with exit code 7" in err


def test_a_directory_of_its_own_goes_with_an_earlier_training_that_fails(start: Start, tmp_path: Path) -> None:
    arguments = ("--program", PROGRAM, "--earlier", '["--fail"]', "--args")
    process = start("-m", "workloads.resume", *arguments, TORCHELASTIC_RUN_ID="r", TMPDIR=str(tmp_path))
    process.communicate(timeout=60)
    assert process.returncode == 7
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--program", PROGRAM), "--args is missing"),
        (("--args", "x"), "--program is missing"),
        (("--program", PROGRAM, "--earlier", "{}", "--args"), "a JSON list of strings"),
        (("--program", PROGRAM, "--what", "x", "--args"), "unknown option --what"),
        (("--program", "--args"), "--program has no value"),
    ],
)
def test_usage_that_cannot_be_meant(start: Start, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    code, _, err = resume(start, tmp_path, *arguments)
    assert code == 2
    assert said in err


def test_under_torchrun_each_training_meets_by_itself_and_nothing_is_left(start: Start, tmp_path: Path) -> None:
    """The first process of the later training is late: the others must not take the earlier one's address for its."""
    short = ["--sequence_length", "16", "--total_batch_size", "128", "--batch_size", "4", "--num_iteration"]
    earlier = json.dumps([*short, "2", "--save", "@RUN_DIR@/c"])
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-id", "r", "--master-port", "0")
    program = ("-m", "workloads.resume", "--device", "cpu", "--program", "tests.workloads.programs.late_root")
    later = ("--args", *short, "4", "--load", "@RUN_DIR@/c")
    (tmp_path / "tmp").mkdir()
    process = start(*torchrun, *program, "--earlier", earlier, *later, TMPDIR=str(tmp_path / "tmp"))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    records = [json.loads(line.removeprefix("ALLRANKS ")) for line in out.splitlines() if line.startswith("ALLRANKS ")]
    steps = {(record["run"], record["rank"], record["step"]) for record in records if record["event"] == "step"}
    assert steps == {
        (run, rank, step) for run, both in (("r-earlier", (1, 2)), ("r", (3, 4))) for rank in (0, 1) for step in both
    }
    assert not list((tmp_path / "tmp").glob("allranks-*"))
