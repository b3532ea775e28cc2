"""Training of decoder-only language models, in any combination of data, tensor and pipeline parallelism."""

from __future__ import annotations

import argparse
import importlib.util
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from workloads import checkpoints, compiling, flops, lm_options, memory, runtime
from workloads.data import Ahead, GlobalBatches, moved
from workloads.decoder import Decoder
from workloads.lora import ADAPTERS, LoraError
from workloads.optimizer import set_rate
from workloads.parallel import Layout, LayoutError
from workloads.replica import Replica, Speed
from workloads.runtime import Rank, UsageError
from workloads.sharding import held
from workloads.steady import Steady, agreed, gpu_of
from workloads.tokens import SyntheticTokens, TokensError, TokenStream, open_shards

SYNTHETIC_SEQUENCES = 1 << 14


@dataclass(frozen=True)
class Family:
    """One kind of model: its program's name, its class, its configurations and options' defaults by size."""

    name: str
    model: type[Decoder]
    sizes: dict[str, Any]
    defaults: dict[str, dict[str, Any]]
    on_gpu: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Those that differ on GPUs: what makes a working day of the card."""


def main(family: Family) -> None:
    args = lm_options.parse(family.name, family.sizes, family.defaults, sys.argv[1:], family.on_gpu)
    runtime.run(
        partial(train, family, args),
        device=args.device,
        threads_per_process=args.nthread_per_process,
        timeout=args.timeout,
    )


def train(family: Family, args: argparse.Namespace, me: Rank) -> None:
    """One rank's training, from fresh weights or a checkpoint to the final record."""
    try:
        Training(family, args, me).run()
    except (LayoutError, LoraError, TokensError) as error:
        raise UsageError(str(error)) from error


class Training:
    """One rank's training. `step` counts the global batches consumed since the very beginning."""

    def __init__(self, family: Family, args: argparse.Namespace, me: Rank) -> None:
        self.family, self.args, self.me = family, args, me
        if (args.save or args.load) and me.group.size > 1 and importlib.util.find_spec("numpy") is None:
            raise UsageError(
                "--save, --load: PyTorch's checkpoints of several processes need NumPy, which is not there"
            )
        self.layout = Layout.of(
            me.group.rank,
            me.group.size,
            tensor=args.tensor_parallel,
            pipeline=args.pipeline_parallel,
            virtual=args.virtual_pipeline_parallel,
            sequence=args.sequence_parallel,
        )
        config = family.sizes[args.size]
        default = args.batch_size * args.sequence_length * self.layout.data * self.layout.pipeline
        self.tokens = args.total_batch_size or default
        micro_batches = self.layout.micro_batches(self.tokens, args.batch_size, args.sequence_length)
        self.stream = stream_of(args, config.vocabulary)
        self.batches = GlobalBatches(len(self.stream), self.tokens // args.sequence_length, args.seed)
        self.dtype = me.device.fast_dtype if args.dtype == "auto" else getattr(torch, args.dtype)
        self.operations = operations_of(family.model, config, args.sequence_length)
        # Tensor- and pipeline-parallel ranks work on the same sequences: each counts its part, so that a sum over ranks
        # is what the job did.
        self.samples = self.batches.global_batch / me.group.size
        work = self.operations * self.samples * args.num_iteration
        self.compiled = compiling.decide(
            args.compile, me.device, me.topology, operations=work, divided_tensors=self.layout.tensor > 1
        )
        speed = Speed(self.dtype, self.compiled.on)
        self.replica = Replica(family.model, config, args, me, self.layout, micro_batches, speed)
        self.step = self._load() if args.load else 0
        left = args.num_iteration - self.step
        if left < 1:
            raise UsageError(
                f"--load: step {self.step} of --num_iteration {args.num_iteration} leaves nothing to train"
            )
        self.warmup = min(1, left - 1) if args.warmup_steps is None else args.warmup_steps
        if self.warmup >= left:
            raise UsageError(f"--warmup-steps {self.warmup} leaves nothing to measure of {left} steps")
        self.steps = left
        self.losses: list[float] = []

    def run(self) -> None:
        args, me = self.args, self.me
        me.start_record(
            workload=self.family.name,
            size=args.size,
            dtype=str(self.dtype).removeprefix("torch."),
            seed=args.seed,
            global_batch=self.batches.global_batch,
            parameters=self.replica.parameters,
            steps=self.steps,
            warmup_steps=self.warmup,
            layout=layout_text(self.layout),
            zero_stage=args.zero_stage,
            **self.compiled.fields,
        )
        peak = flops.peak_of(args.peak, me.device, self.dtype)
        meter = Steady(me.device, self.warmup, steps=self.steps, warmup_time=args.warmup_time, gpu=gpu_of(me.device))
        # A rank with a whole model can try out a step by itself.
        whole = self.layout.plain and args.zero_stage < 2 and me.device.kind == "cuda"
        with me.device.attention(args.attention):
            if whole:
                work = partial(self._rehearse_and_learn, meter)
                memory.explained(work, self._some_loss, me.device, args.batch_size, self.replica.optimizer)
            else:
                self._learn(meter)
        figures = meter.figures(self.batches.dataset_size / self.batches.global_batch)
        me.log.people(**figures)
        parameters = ((name, held(p)) for part in self.replica.parts for name, p in part.named_parameters())
        me.log.end(
            steps=self.steps,
            warmup_steps=meter.warmup_steps,
            **figures,
            **meter.steady_figures(),
            **flops.fields(self.operations, meter.pace, peak),
            **meter.phases,
            peak_memory=me.device.peak_memory,
            loss_first=self.losses[0],
            loss_last=self.losses[-1],
            fingerprint=runtime.fingerprint(parameters),
            fingerprint_group=self.layout.group_name,
        )

    def _learn(self, meter: Steady) -> None:
        args, me = self.args, self.me
        meter.start_epoch()
        self._next = Ahead(self._batches(self.step))
        while self.step < args.num_iteration:
            self._step(meter)
            epoch, within = divmod(self.step * self.batches.global_batch, self.batches.dataset_size)
            if within < self.batches.global_batch and epoch:
                me.log.record("epoch", epoch=epoch - 1, **meter.end_epoch())
                meter.start_epoch()
            due = self.step == args.num_iteration or (args.save_interval and self.step % args.save_interval == 0)
            if args.save and due:
                self._save()

    def _batches(self, first: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's slices of the global batches from number `first` on, on its device: tokens and targets."""
        device = self.me.device.torch_device
        for n in range(first, self.args.num_iteration):
            mine = self.batches.slice(n, self.layout.data_rank, self.layout.data)
            tokens, targets = self.stream.batch(mine)
            yield moved(tokens, device), moved(targets, device)

    def _rehearse_and_learn(self, meter: Steady) -> None:
        rehearsal = partial(self._some_loss, self.args.batch_size)
        meter.compile_time = compiling.rehearse(rehearsal, self.replica.alone, self.me.device)
        self._learn(meter)

    def _some_loss(self, sequences: int) -> torch.Tensor:
        """To try out what a step takes."""
        tokens, targets = self.stream.batch(list(range(sequences)))
        device = self.me.device.torch_device
        return self.replica.loss(moved(tokens, device), moved(targets, device))

    def _step(self, meter: Steady) -> None:
        args, me, layout = self.args, self.me, self.layout
        device = me.device.torch_device
        self.step += 1
        shown = self.step in (args.num_iteration - self.steps + 1, args.num_iteration)
        shown = shown or self.step % args.log_every == 0
        meter.start_step(exact=shown)
        rate = lm_options.learning_rate(args, self.step)
        set_rate(self.replica.optimizer, rate, me.device)
        tokens, targets = next(self._next)
        # No cache: autograd gets to casts kept from the first micro batch last, after FSDP has taken the gradients.
        with torch.autocast(device.type, torch.bfloat16, enabled=self.replica.autocast, cache_enabled=False):
            loss = self.replica.backward(tokens, targets, self.tokens)
        self.replica.optimizer.step()
        self.replica.optimizer.zero_grad()
        me.device.end_step()
        self._next.prepare()  # while the device computes
        # Elsewhere a rank waits for others in the midst of its own work.
        alone = layout.plain and self.replica.averaged == 1 and me.device.kind != "xla"
        times = meter.end_step(self.samples, self.replica.gradients.ready if alone else None, exact=shown)
        if shown:
            mean, unanimous = agreed(loss, meter.vote, me.group, me.device)
            self.losses.append(mean)
            me.log.record("step", step=self.step, loss=self.losses[-1], lr=rate, samples=self.samples, **times)
            if layout.holds_last_stage and layout.data_rank == layout.tensor_rank == 0:
                me.log.say(self._line(rate, times["step_time"]))
            meter.close_window(unanimous=unanimous)

    def _line(self, rate: float, seconds: float) -> str:
        used, reserved = peak_memory(self.me.device.torch_device)
        return (
            f"step {self.step:4d}/{self.args.num_iteration} | train loss {self.losses[-1]:.6f} | lr {rate:.2e} | "
            f"({seconds * 1e3:.2f} ms | {self.tokens / seconds:.0f} tok/s | peak used: {used:5d} MB | "
            f"peak reserved: {reserved:5d} MB, {layout_text(self.layout)})"
        )

    def _save(self) -> None:
        args = self.args
        checkpoints.save(
            args.save,
            self.step,
            self.replica.parts,
            self.replica.optimizer if args.save_optimizer_state else None,
            {"consumed": self.step, "lora_alpha": args.lora_alpha, **self._identity()},
            keep=args.max_checkpoint_keep,
        )

    def _load(self) -> int:
        """Returns how many global batches were consumed: none where LoRA begins on what another training made."""
        args = self.args
        try:
            state = checkpoints.load(args.load, self.replica.parts, self.replica.optimizer, adapters=ADAPTERS)
        except checkpoints.CheckpointError as error:
            raise UsageError(f"--load: {error}") from error
        if state["base"]:
            return 0
        if state.get("lora_alpha", args.lora_alpha) != args.lora_alpha:
            raise UsageError(f"--load {args.load}: lora_alpha {state['lora_alpha']:g} there, {args.lora_alpha:g} here")
        changed = {
            name: (state[name], value) for name, value in self._identity().items() if state.get(name, value) != value
        }
        if changed:
            told = ", ".join(f"{name} {there} there and {here} here" for name, (there, here) in changed.items())
            raise UsageError(f"--load {args.load}: the data would not go on where that training stopped: {told}")
        return int(state["consumed"])

    def _identity(self) -> dict[str, int]:
        """What the sequence of global batches depends on."""
        return {
            "total_batch_size": self.tokens,
            "sequence_length": self.args.sequence_length,
            "dataset_size": self.batches.dataset_size,
            "seed": self.args.seed,
        }


def operations_of(new: type[Decoder], config: Any, length: int) -> float:
    """Of the training of the whole model, per sequence."""
    with torch.device("meta"):
        matrices = sum(module.weight.numel() for module in new(config).modules() if isinstance(module, nn.Linear))
    matrices -= (config.padded_vocabulary - config.vocabulary) * config.hidden
    return flops.decoder(matrices=matrices, layers=config.layers, hidden=config.hidden, length=length)


def stream_of(args: argparse.Namespace, vocabulary: int) -> TokenStream:
    length = args.sequence_length
    if args.input_bin:
        return TokenStream(open_shards(args.input_bin), length, vocabulary=vocabulary)
    return TokenStream(SyntheticTokens(vocabulary, SYNTHETIC_SEQUENCES * length + 1, args.seed), length)


def layout_text(layout: Layout) -> str:
    sequence = layout.tensor if layout.sequence else 1
    return f"DP={layout.data}, TP={layout.tensor}, SP={sequence}, PP={layout.pipeline}"


def peak_memory(device: torch.device) -> tuple[int, int]:
    """Used and reserved, in MB of 2²⁰ bytes: of the CUDA device, elsewhere of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) >> 20, torch.cuda.max_memory_reserved(device) >> 20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (20 if sys.platform == "darwin" else 10)
    return peak, peak
