"""BERT pre-training on data made up on the fly: the smallest real data-parallel job that is worth running everywhere.

python -m workloads.bert                                          one process, on what there is
python -m workloads.launch --nproc-per-node 8 -m workloads.bert --device cuda
"""

# isort: off
import workloads.early  # noqa: F401 - before torch, see there
# isort: on

import argparse
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from workloads import compiling, flops, memory, runtime, steady
from workloads.bert_model import SIZES, Bert, BertConfig
from workloads.data import MIN_SEQ_LEN, Ahead, Batch, Corpus, Sampler, Slice, predictions_per_sequence
from workloads.device import ATTENTION, CHOICES, Device, DeviceError, kind_of
from workloads.groups import Alone
from workloads.optimizer import adamw, set_rate
from workloads.options import positive, spelled, whole
from workloads.precision import computing
from workloads.runtime import Rank, UsageError
from workloads.steady import Steady, agreed, gpu_of

# What is not given on the command line depends on the size, and of the large one on the device: these are a GPU's
# working sizes. Batch sizes are per rank.
DEFAULTS: dict[str, dict[str, Any]] = {
    "tiny": {"batch_size": 8, "seq_len": 32, "lr": 1e-3, "epochs": 3, "steps_per_epoch": 20, "log_every": 1},
    "base": {"batch_size": 32, "seq_len": 128, "lr": 1e-4, "epochs": 2, "steps_per_epoch": 100, "log_every": 10},
}
ON_GPU = {"tiny": {}, "base": {"batch_size": 512, "dtype": "auto", "warmup_time": 5.0}}
ELSEWHERE = {"dtype": "float32", "warmup_time": 0.0}


def main() -> None:
    args = parse(sys.argv[1:])
    runtime.run(
        partial(train, args), device=args.device, threads_per_process=args.nthread_per_process, timeout=args.timeout
    )


def train(args: argparse.Namespace, me: Rank) -> None:
    """One rank's training, from fresh weights to the final record."""
    device = me.device
    sampler = sampler_of(args, me)
    steps = args.epochs * sampler.steps_per_epoch
    if args.warmup_steps >= steps:
        raise UsageError(f"--warmup-steps {args.warmup_steps} leaves nothing to measure of {steps} steps")
    dtype = device.fast_dtype if args.dtype == "auto" else getattr(torch, args.dtype)
    config = replace(SIZES[args.size], dropout=args.dropout, gelu="tanh" if args.gelu == "tanh" else "none")
    operations = operations_of(config, args.seq_len)
    compiled = compiling.decide(args.compile, device, me.topology, operations=operations * args.batch_size * steps)

    with runtime.seeded(args.seed):
        model = Bert(config)
    model.to(device.torch_device).train()
    if compiled.on:
        model.compile_regions()
    announce(args, me, sampler, model, steps, dtype, compiled)
    peak = flops.peak_of(args.peak, device, dtype)
    corpus = Corpus(args.seq_len, args.seed)
    meter = Steady(device, args.warmup_steps, steps=steps, warmup_time=args.warmup_time, gpu=gpu_of(device))
    optimizer = optimizer_of(model, device)
    computed = computing(model, dtype)

    def work() -> list[float]:
        # Before the training and outside of its figures: kernels are compiled and loaded, memory is found to suffice.
        rehearsal = partial(computed, *some_batch(corpus, args.batch_size, device))
        meter.compile_time = compiling.rehearse(rehearsal, model, device) if device.kind == "cuda" else None
        if args.dropout:
            torch.manual_seed(args.seed + 1 + me.group.rank)  # ranks drop differently
        return learn(args, me, sampler, corpus, me.gradients(computed), optimizer, meter)

    def loss_of(samples: int) -> torch.Tensor:
        return computed(*some_batch(corpus, samples, device))

    with device.attention(args.attention):
        losses = memory.explained(work, loss_of, device, args.batch_size, optimizer)
    conclude(me, sampler, model, meter, losses, **flops.fields(operations, meter.pace, peak))


def announce(
    args: argparse.Namespace,
    me: Rank,
    sampler: Sampler,
    model: Bert,
    steps: int,
    dtype: torch.dtype,
    compiled: compiling.Decision,
) -> None:
    me.start_record(
        workload="bert",
        size=args.size,
        dtype=str(dtype).removeprefix("torch."),
        seed=args.seed,
        global_batch=sampler.global_batch,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        steps=steps,
        warmup_steps=args.warmup_steps,
        **compiled.fields,
    )


def conclude(me: Rank, sampler: Sampler, model: Bert, meter: Steady, losses: list[float], **arithmetic: object) -> None:
    """The line for people and the final record. `arithmetic` are the fields about FLOPs."""
    figures = meter.figures(sampler.steps_per_epoch)
    me.log.people(**figures)
    me.log.end(
        steps=meter.step,
        warmup_steps=meter.warmup_steps,
        **figures,
        **meter.steady_figures(),
        **arithmetic,
        **meter.phases,
        peak_memory=me.device.peak_memory,
        loss_first=losses[0],
        loss_last=losses[-1],
        fingerprint=runtime.fingerprint(model),
    )


def learn(
    args: argparse.Namespace,
    me: Rank,
    sampler: Sampler,
    corpus: Corpus,
    gradients: Alone,
    optimizer: torch.optim.Optimizer,
    meter: Steady,
) -> list[float]:
    """All epochs. The host only waits for the device at steps that are shown; returns their losses."""
    device, log = me.device, me.log
    steps = args.epochs * sampler.steps_per_epoch
    losses = []
    for epoch in range(args.epochs):
        meter.start_epoch()
        parts = sampler.epoch(epoch)
        batches = Ahead((part, corpus.batch(part, epoch, args.batch_size).to(device.torch_device)) for part in parts)
        for part, batch in batches:
            step = meter.step + 1
            shown = step in (1, steps) or step % args.log_every == 0
            meter.start_step(exact=shown)
            rate = args.lr * schedule(step, steps)
            set_rate(optimizer, rate, device)
            loss = gradients.model(*batch)
            loss.backward()
            gradients.finish()
            optimizer.step()
            optimizer.zero_grad()
            device.end_step()
            batches.prepare()  # the next one, while the device computes
            # XLA runs a step as one graph: where the local part of it ends, nobody outside can tell.
            ready = None if device.kind == "xla" else gradients.ready
            times = meter.end_step(len(part.indices), ready, exact=shown)
            if shown:
                mean, unanimous = agreed(loss, meter.vote, me.group, device)
                losses.append(mean)
                # A NaN is reported as it is and ends nothing: what a run is worth is judged outside, from all ranks.
                log.record("step", step=step, loss=mean, lr=rate, samples=len(part.indices), **times)
                meter.close_window(unanimous=unanimous)
        log.record("epoch", epoch=epoch, **meter.end_epoch())
    return losses


def operations_of(config: BertConfig, seq_len: int) -> float:
    """Of the training, per sample."""
    return flops.bert(
        layers=config.layers,
        hidden=config.hidden,
        vocabulary=config.vocabulary,
        length=seq_len,
        predictions=predictions_per_sequence(seq_len),
    )


def some_batch(corpus: Corpus, samples: int, device: Device) -> Batch:
    """To try out what a step takes."""
    return corpus.batch(Slice(tuple(range(samples)), samples), 0, samples).to(device.torch_device)


def sampler_of(args: argparse.Namespace, me: Rank) -> Sampler:
    world = me.group.size
    samples = args.samples or args.steps_per_epoch * args.batch_size * world
    return Sampler(samples, args.batch_size, me.group.rank, world, args.seed)


def optimizer_of(model: nn.Module, device: Device) -> torch.optim.Optimizer:
    """AdamW; weights decay, biases and normalisations do not (they are the parameters with one dimension)."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.01},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return adamw(groups, device)


def schedule(step: int, steps: int) -> float:
    """Learning rate at `step` (from 1) as a fraction of its peak: a tenth of the steps up, then down, in lines."""
    rise = max(1, steps // 10)
    return min(step / rise, (steps - step + 1) / (steps - rise + 1))


def parse(argv: list[str]) -> argparse.Namespace:
    """Exits with code 2 and a sentence for what cannot be. Option names may have dashes or underscores."""
    parser = argparse.ArgumentParser(prog="workloads.bert", description="BERT pre-training.", allow_abbrev=False)
    parser.add_argument("--device", choices=CHOICES, default="auto", help="what to compute on (default: what there is)")
    parser.add_argument("--size", choices=["auto", *SIZES], default="auto", help="auto: tiny on CPUs, else base")
    parser.add_argument("--epochs", type=positive)
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--steps-per-epoch", type=positive)
    data.add_argument("--samples", type=positive, help="size of the dataset, in place of steps per epoch")
    parser.add_argument("--batch-size", type=positive, help="samples per rank and step")
    parser.add_argument("--seq-len", type=positive, help="tokens per sample")
    parser.add_argument("--lr", type=float, help="peak learning rate")
    parser.add_argument("--warmup-steps", type=whole, default=3, help="first steps, left out of the figures")
    steady.add_option(parser)
    parser.add_argument("--seed", type=whole, default=0)
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], help="of the computation")
    parser.add_argument("--gelu", choices=["exact", "tanh"], default="exact", help="tanh: an approximation, cheaper")
    compiling.add_option(parser)
    parser.add_argument("--attention", choices=ATTENTION, default="auto", help="which of PyTorch's back ends")
    flops.add_option(parser)
    parser.add_argument("--log-every", type=positive, help="steps between step records")
    parser.add_argument("--dropout", type=float, default=0.0, help="0 makes runs comparable; the paper has 0.1")
    parser.add_argument("--nthread-per-process", type=positive, default=1, help="ranks as threads of each process")
    parser.add_argument("--timeout", type=float, default=600.0, help="for rendezvous and collectives, in seconds")
    args = parser.parse_args(spelled(argv))
    try:
        kind = kind_of(args.device)
    except DeviceError as error:
        parser.error(str(error))
    if args.size == "auto":
        args.size = "tiny" if kind == "cpu" else "base"
    defaults = {**ELSEWHERE, **DEFAULTS[args.size], **(ON_GPU[args.size] if kind == "cuda" else {})}
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    limit = SIZES[args.size].max_seq_len
    if not MIN_SEQ_LEN <= args.seq_len <= limit:
        parser.error(f"--seq-len must be from {MIN_SEQ_LEN} to {limit}, not {args.seq_len}")
    if not 0 <= args.dropout < 1:
        parser.error(f"--dropout must be at least 0 and below 1, not {args.dropout:g}")
    if args.nthread_per_process > 1 and args.dropout and kind == "cpu":
        parser.error("--nthread-per-process needs --dropout 0: the CPU's random generator is shared by all threads")
    if args.nthread_per_process > 1 and kind == "xla":
        parser.error("--nthread-per-process: a process has one XLA device; start processes instead of threads")
    return args


if __name__ == "__main__":
    main()
