from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from allranks.checks import judge
from allranks.cli import main
from allranks.plan import Accelerator
from allranks.result import TrainingRun
from tests.ledger.speech import ledger_of, log, plan_of, world_lines

LOSSES = [4.5, 4.25, 4.0]


def lines(losses: Sequence[float] = LOSSES, rate: float = 1000, first_rate: float = 10) -> str:
    """Step lines as the language models print them."""
    return "".join(
        f"step {step:4d}/{len(losses)} | train loss {loss:.6f} | lr 1.00e-05 | (120.50 ms | "
        f"{first_rate if step == 1 else rate:.0f} tok/s | peak used:  1234 MB | peak reserved:  2048 MB, DP=8, TP=1, "
        "SP=1, PP=1)\n"
        for step, loss in enumerate(losses, start=1)
    )


def write(directory: Path, **logs: str) -> str:
    directory.mkdir(exist_ok=True)
    for name, text in logs.items():
        (directory / f"{name}.log").write_text("[COMMAND] ./gpt2\n" + text)
    return str(directory)


def result(directory: Path, workload: str = "gpt2-2x2", losses: Sequence[float] = LOSSES, rate: float = 50.0) -> None:
    plan = plan_of(workload=workload, accelerator=Accelerator.NVIDIA)
    judgement = judge(plan, ledger_of(log(*world_lines(losses=losses, throughput=rate)), plan=plan))
    directory.mkdir(parents=True)
    (directory / "result.json").write_text(json.dumps(TrainingRun(plan, judgement).to_dict()))


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["compare", *arguments])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_equal_logs_are_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a", gpt2_1=lines(), llama3_1=lines())
    b = write(tmp_path / "b", gpt2_1=lines(rate=900, first_rate=1), llama3_1=lines())
    assert compared(capsys, a, b) == (0, "2 trainings compared: no difference\n")


def test_losses_apart_name_case_and_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = write(tmp_path / "a", gpt2_1=lines()), write(tmp_path / "b", gpt2_1=lines([4.5, 4.2501, 4.1]))
    code, out = compared(capsys, a, b)
    assert code == 1
    assert "gpt2_1.log: loss 4.250100 at step 2 instead of 4.250000: 1.00e-04 apart, 1e-05 allowed" in out


@pytest.mark.parametrize("tell", ["name", "command"])
def test_bfloat16_has_a_tolerance_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str], tell: str) -> None:
    name = "gpt2_1_bfloat16" if tell == "name" else "gpt2_1"
    extra = "" if tell == "name" else "[COMMAND] ./gpt2 --dtype bfloat16\n"
    a = write(tmp_path / "a", **{name: extra + lines()})
    b = write(tmp_path / "b", **{name: extra + lines([4.5, 4.255, 4.0])})
    assert compared(capsys, a, b)[0] == 0
    code, out = compared(capsys, a, b, "--loss-tolerance", "bf16=1e-3")
    assert code == 1
    assert "1e-03 allowed" in out
    assert compared(capsys, a, b, "--loss-tolerance", "float32=1e-9")[0] == 0


def test_missing_steps_and_cases_are_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = write(tmp_path / "a", one=lines(), two=lines()), write(tmp_path / "b", one=lines(LOSSES[:2]), three=lines())
    code, out = compared(capsys, a, b)
    assert code == 1
    assert out.splitlines() == [
        "one.log: steps missing in the second: 3",
        "three.log: only in the second",
        "two.log: only in the first",
        "1 trainings compared: 3 differences",
    ]


def test_slower_is_a_difference_and_faster_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a", one=lines(rate=1000))
    slow, fast = write(tmp_path / "slow", one=lines(rate=750)), write(tmp_path / "fast", one=lines(rate=1300))
    code, out = compared(capsys, a, slow)
    assert code == 1
    assert "one.log: 1000.00 → 750.00 tok/s (-25.0%, 20% allowed) slower" in out
    assert compared(capsys, a, slow, "--throughput-tolerance", "0.3")[0] == 0
    code, out = compared(capsys, a, fast)
    assert code == 0
    assert "(+30.0%, 20% allowed) faster" in out


def test_a_loss_that_is_no_number_is_a_difference_even_in_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = [4.5, float("nan"), 4.0]
    a, b = write(tmp_path / "a", one=lines(broken)), write(tmp_path / "b", one=lines(broken))
    code, out = compared(capsys, a, b)
    assert code == 1
    assert "loss nan at step 2" in out


def test_results_are_compared_by_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, last in (("a", 4.0), ("b", 4.1)):
        result(tmp_path / side / "gpt2-1x1-nvidia-1", "gpt2-1x1")
        result(tmp_path / side / "gpt2-2x2-nvidia-2", "gpt2-2x2", [4.5, 4.25, last])
    code, out = compared(capsys, str(tmp_path / "a"), str(tmp_path / "b"))
    assert code == 1
    assert out.splitlines() == [
        "gpt2-2x2 on 4 ranks of nvidia: ranks 0-3: loss 4.100000 at step 3 instead of 4.000000: 1.00e-01 apart, "
        "1e-05 allowed",
        "2 trainings compared: 1 differences",
    ]


def test_two_that_are_named_are_meant_for_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result(tmp_path / "a", "gpt2-1x1")
    result(tmp_path / "b", "gpt2-2x2", rate=30.0)
    for a, b in (("a", "b"), ("a/result.json", "b/result.json")):
        code, out = compared(capsys, str(tmp_path / a), str(tmp_path / b))
        assert code == 1
        assert "the training: 200.00 → 120.00 samples/s (-40.0%, 20% allowed) slower" in out


def test_logs_of_records_are_compared_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, last in (("a.log.gz", 7.0), ("b.log.gz", 7.5)):
        with gzip.open(tmp_path / name, "wb") as file:
            file.write(log(*world_lines(losses=[9.0, 8.0, last])))
    code, out = compared(capsys, str(tmp_path / "a.log.gz"), str(tmp_path / "b.log.gz"))
    assert code == 1
    assert "the training: ranks 0-3: loss 7.500000 at step 3 instead of 7.000000" in out


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = write(tmp_path / "a", one=lines()), write(tmp_path / "b", one=lines([4.5, 4.25, 5.0]))
    code, out = compared(capsys, a, b, "--json")
    told = json.loads(out)
    assert (code, told["compared"], len(told["differences"])) == (1, ["one.log"], 1)


@pytest.mark.parametrize("what", ["gone", "empty", "chatter", "twice", "no-result"])
def test_what_cannot_be_compared_is_unusable(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    a = tmp_path / "a"
    if what != "gone":
        a.mkdir()
    said = {
        "gone": "no such file",
        "empty": "no logs in this directory",
        "chatter": "no training that told its losses",
        "twice": "one.log is there twice",
        "no-result": "is no result that can be read",
    }[what]
    if what == "chatter":
        (a / "build.log").write_text("cmake\n")
    if what == "twice":
        write(a / "x", one=lines())
        write(a / "y", one=lines())
    if what == "no-result":
        (a / "result.json").write_text("{}")
    code, out = compared(capsys, str(a), write(tmp_path / "b", one=lines()))
    assert code == 2
    assert said in out
