from __future__ import annotations

from argparse import Namespace

import pytest

from workloads.gpt2 import FAMILY
from workloads.lm_options import learning_rate, parse


def gpt2(*argv: str) -> Namespace:
    return parse(FAMILY.name, FAMILY.sizes, FAMILY.defaults, ["--device", "cpu", *argv])


def rates(*argv: str, steps: int) -> list[float]:
    args = gpt2("--learning_rate", "1.0", "--num_iteration", "10", *argv)
    return [round(learning_rate(args, step), 6) for step in range(1, steps + 1)]


def test_the_learning_rate_rises_and_then_stays_or_falls_to_its_minimum() -> None:
    assert rates(steps=3) == [1, 1, 1]
    assert rates("--lr_warmup_iters", "4", steps=6) == [0.25, 0.5, 0.75, 1, 1, 1]
    falling = ("--lr_warmup_iters", "2", "--lr_decay_iters", "6", "--min_lr", "0.2")
    assert rates("--lr_decay_style", "linear", *falling, steps=8) == [0.5, 1, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2]
    cosine = rates("--lr_decay_style", "cosine", *falling, steps=8)
    assert cosine == pytest.approx([0.5, 1, 0.882843, 0.6, 0.317157, 0.2, 0.2, 0.2], abs=1e-6)
    assert rates("--lr_warmup_iters", "4", "--lr_warmup_init", "0.2", steps=5) == [0.4, 0.6, 0.8, 1, 1]


def test_the_inverse_square_root_goes_on_from_the_peak_and_ends_at_the_minimum() -> None:
    style = ("--lr_decay_style", "inverse-square-root", "--min_lr", "0.5")
    assert rates(*style, "--lr_decay_iters", "3", steps=4) == [1, 0.707107, 0.57735, 0.5]
    assert rates(*style, "--lr_warmup_iters", "2", steps=10) == pytest.approx(
        [0.5, 1, 0.816497, 0.707107, 0.632456, 0.57735, 0.534522, 0.5, 0.5, 0.5], abs=1e-6
    )


def test_none_is_no_schedule_and_no_warm_up() -> None:
    ignored = ("--lr_warmup_iters", "4", "--lr_decay_iters", "2", "--min_lr", "0.2")
    assert rates("--lr_decay_style", "none", *ignored, steps=3) == [1, 1, 1]


def test_zero_decay_iterations_are_all_of_them() -> None:
    assert rates("--lr_decay_style", "linear", "--lr_decay_iters", "0", steps=10) == rates(
        "--lr_decay_style", "linear", steps=10
    )


def test_names_may_have_underscores_and_values_may_be_joined() -> None:
    args = gpt2("--model", "tiny", "--sequence_parallel=true", "--save-optimizer-state=false", "--lora_rank=8")
    assert (args.size, args.sequence_parallel, args.save_optimizer_state, args.lora_rank) == ("tiny", True, False, 8)
    assert args.lora_alpha == 8.0
    assert args.lora_target_modules == ["attn.c_attn", "attn.c_proj"]
    assert gpt2("--sequence_parallel", "--seed", "3").sequence_parallel


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--sequence_length", "4096"], "--sequence-length 4096 is beyond the model's 256"),
        (["--lr_decay_style", "linear", "--lr_warmup_iters", "10"], "--lr-decay-iters 10 must be beyond"),
        (["--lr_decay_style", "cosine", "--min_lr", "0.1"], "--min-lr 0.1 is above --learning-rate 0.001"),
        (["--lora_rank", "2", "--lora_target_modules", ","], "names nothing to train"),
        (
            ["--nthread_per_process", "2", "--tensor_parallel", "2", "--zero_stage", "1"],
            "with --tensor-parallel 2 --zero",
        ),
        (["--nthread_per_process", "2", "--save", "x"], "checkpoints are written by processes"),
        (["--zero_stage", "4"], "invalid choice"),
        (["--no_such_option"], "unrecognized arguments"),
    ],
)
def test_what_cannot_be_exits_2_with_a_sentence(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        gpt2(*argv)
    assert exit.value.code == 2
    assert said in capsys.readouterr().err


def test_compiling_tensor_parallel_blocks_is_refused_before_anything_is_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        gpt2("--compile", "on", "--tensor_parallel", "2")
    assert ended.value.code == 2
    assert "--tensor-parallel 2: such blocks cannot be compiled" in capsys.readouterr().err
    assert gpt2("--compile", "on", "--pipeline_parallel", "2").compile == "on"
