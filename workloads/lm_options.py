"""The command line of the language models' programs, and the learning rate that it describes."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

from workloads import compiling, flops, steady
from workloads.device import ATTENTION, CHOICES, DeviceError, kind_of
from workloads.options import positive, spelled, truth, whole

DECAY_STYLES = ("none", "constant", "linear", "cosine", "inverse-square-root")


def parse(
    name: str,
    sizes: dict[str, Any],
    defaults: dict[str, dict[str, Any]],
    argv: Sequence[str],
    on_gpu: dict[str, dict[str, Any]] | None = None,
) -> argparse.Namespace:
    """Exits with code 2 and a sentence for what cannot be. Option names may have dashes or underscores.

    `sizes` are the model's configurations by name, the small one first; `defaults` what depends on the size,
    `on_gpu` what differs there.
    """
    parser = argparse.ArgumentParser(prog=f"workloads.{name}", description=f"{name} pre-training.", allow_abbrev=False)
    small, large, *_ = sizes
    parser.add_argument("--device", choices=CHOICES, default="auto", help="what to compute on (default: what there is)")
    parser.add_argument(
        "--size", "--model", choices=["auto", *sizes], default="auto", help=f"auto: {small} on CPUs, else {large}"
    )
    _add_training(parser)
    _add_parallelism(parser)
    _add_checkpoints(parser)
    args = parser.parse_args(spelled(argv))
    try:
        kind = kind_of(args.device)
    except DeviceError as error:
        parser.error(str(error))
    if args.size == "auto":
        args.size = small if kind == "cpu" else large
    elsewhere = {"dtype": "float32", "warmup_time": 0.0, "log_every": 1}
    ours = (on_gpu or {}).get(args.size, {}) if kind == "cuda" else {}
    for option, value in {**elsewhere, **defaults[args.size], **ours}.items():
        if getattr(args, option) is None:
            setattr(args, option, value)
    _complete(args)
    problem = _problem(args, kind, sizes[args.size].max_sequence_length)
    if problem:
        parser.error(problem)
    return args


def _add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    group.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], help="of the computation")
    group.add_argument("--batch-size", type=positive, help="micro batch: sequences per replica and forward pass")
    group.add_argument("--sequence-length", type=positive, help="tokens per sequence")
    group.add_argument(
        "--total-batch-size",
        type=positive,
        help="tokens per step of all ranks together (default: one micro batch per replica and pipeline rank)",
    )
    group.add_argument("--num-iteration", type=positive, help="steps, those before --load included")
    group.add_argument("--learning-rate", "--lr", type=float)
    group.add_argument("--lr-decay-style", choices=DECAY_STYLES, default="constant", help="none: no warm-up either")
    group.add_argument("--lr-warmup-iters", type=whole, default=0, help="steps over which the learning rate rises")
    group.add_argument("--lr-warmup-init", type=float, default=0.0, help="what it rises from")
    group.add_argument("--lr-decay-iters", type=whole, default=0, help="step at which --min-lr is reached; 0: the last")
    group.add_argument("--min-lr", type=float, default=0.0)
    group.add_argument("--input-bin", help="files of tokens (llm.c's or nanoGPT's .bin), a path or a pattern")
    group.add_argument("--seed", type=whole, default=0, help="of weights, made-up data and order")
    group.add_argument("--log-every", type=positive, help="steps between step records")
    group.add_argument("--warmup-steps", type=whole, help="first steps, left out of the figures (default: 1)")
    steady.add_option(group)
    compiling.add_option(group)
    group.add_argument("--attention", choices=ATTENTION, default="auto", help="which of PyTorch's back ends")
    flops.add_option(group)
    group.add_argument("--timeout", type=float, default=600.0, help="for rendezvous and collectives, in seconds")


def _add_parallelism(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("parallelism", "data parallelism takes the ranks that the others leave")
    group.add_argument("--tensor-parallel", type=positive, default=1)
    group.add_argument("--sequence-parallel", type=truth, nargs="?", const=True, default=False)
    group.add_argument("--pipeline-parallel", type=positive, default=1)
    group.add_argument("--virtual-pipeline-parallel", type=positive, default=1, help="stages per pipeline rank")
    group.add_argument("--zero-stage", type=int, choices=[0, 1, 2, 3], default=0)
    group.add_argument("--nthread-per-process", type=positive, default=1, help="ranks as threads of each process")
    group.add_argument("--lora-rank", type=whole, default=0, help="0: train all parameters")
    group.add_argument("--lora-alpha", type=float, help="default: the rank")
    group.add_argument(
        "--lora-target-modules", default="attn.c_attn,attn.c_proj", help="ends of names, comma-separated"
    )


def _add_checkpoints(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("checkpoints")
    group.add_argument("--save", metavar="DIR", help="write checkpoints there, the last step's in any case")
    group.add_argument("--save-interval", type=whole, default=0, help="steps between checkpoints; 0: the last only")
    group.add_argument("--load", metavar="DIR", help="continue from a checkpoint, or the latest of a directory")
    group.add_argument("--max-checkpoint-keep", type=whole, default=0, help="0: all")
    group.add_argument("--save-optimizer-state", type=truth, nargs="?", const=True, default=True)


def _complete(args: argparse.Namespace) -> None:
    if not args.lr_decay_iters:
        args.lr_decay_iters = args.num_iteration
    if args.lora_alpha is None:
        args.lora_alpha = float(args.lora_rank)
    args.lora_target_modules = [name.strip() for name in args.lora_target_modules.split(",") if name.strip()]


def _problem(args: argparse.Namespace, kind: str, limit: int) -> str | None:
    """What cannot be, whatever the world."""
    if args.sequence_length > limit:
        return f"--sequence-length {args.sequence_length} is beyond the model's {limit}"
    if args.lora_rank and not args.lora_target_modules:
        return "--lora-target-modules names nothing to train"
    decays = args.lr_decay_style not in ("none", "constant")
    if decays and args.lr_decay_iters <= args.lr_warmup_iters:
        return f"--lr-decay-iters {args.lr_decay_iters} must be beyond --lr-warmup-iters {args.lr_warmup_iters}"
    if decays and args.min_lr > args.learning_rate:
        return f"--min-lr {args.min_lr:g} is above --learning-rate {args.learning_rate:g}, which is to fall to it"
    divided = {"--tensor-parallel": args.tensor_parallel, "--pipeline-parallel": args.pipeline_parallel}
    used = [f"{option} {value}" for option, value in divided.items() if value > 1]
    used += [f"--zero-stage {args.zero_stage}"] if args.zero_stage else []
    if kind == "xla" and (used or args.nthread_per_process > 1):
        return (
            f"{' '.join(used) or '--nthread-per-process'}: on XLA devices these programs are data-parallel by process"
        )
    if args.compile == "on" and args.tensor_parallel > 1:
        # The compiled backward pass hands plain tensors to where DTensor expects its own (PyTorch 2.13).
        return f"--compile on with --tensor-parallel {args.tensor_parallel}: such blocks cannot be compiled"
    if args.nthread_per_process > 1 and used:
        return (
            f"--nthread-per-process {args.nthread_per_process} with {' '.join(used)}: PyTorch's device meshes know one "
            "rank per process, so ranks as threads are data-parallel only; start processes instead"
        )
    if args.nthread_per_process > 1 and (args.save or args.load):
        return "--nthread-per-process: checkpoints are written by processes; start processes instead of threads"
    return None


def learning_rate(args: argparse.Namespace, step: int) -> float:
    """At `step`, counted from 1: up in a line over the warm-up, from --lr-warmup-init to --learning-rate, then
    constant, or down to --min-lr: in a line or half a cosine, reached at --lr-decay-iters and kept; or as 1 / √step,
    cut off there. `none` is no schedule at all: --learning-rate from the first step on."""
    peak, rise, last = float(args.learning_rate), int(args.lr_warmup_iters), int(args.lr_decay_iters)
    style = args.lr_decay_style
    if style == "none":
        return peak
    if step <= rise:
        return float(args.lr_warmup_init + (peak - args.lr_warmup_init) * step / rise)
    if style == "constant":
        return peak
    if style == "inverse-square-root":
        return float(args.min_lr if step > last else max(args.min_lr, peak * math.sqrt(max(rise, 1) / step)))
    done = min(1.0, (step - rise) / (last - rise))
    left = 1 - done if style == "linear" else (1 + math.cos(math.pi * done)) / 2
    return float(args.min_lr + (peak - args.min_lr) * left)
