"""This rank's part of a model, assembled: cut, adapted, divided, initialised, with gradients and optimizer."""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from workloads.compiling import compile_function
from workloads.decoder import Decoder, total_loss
from workloads.groups import Alone, Explicit
from workloads.lora import Lora, adapt, check_stages, check_targets
from workloads.optimizer import adamw
from workloads.parallel import Layout, Mesh, divide_tensors, shard
from workloads.pipeline import Pipelined, Sequential, Shapes
from workloads.precision import computing
from workloads.runtime import Rank
from workloads.sharding import Zero1, initialise, sum_tied


@dataclass(frozen=True)
class Speed:
    """What makes a training fast and leaves its mathematics alone."""

    dtype: torch.dtype = torch.float32
    """Of the computation; parameters, gradients and the optimizer's state are float32."""
    compiled: bool = False


class Replica:
    """What this rank trains. `micro_batches` per step, as `Layout.micro_batches` counts them.

    Raises LayoutError or LoraError for options that do not fit the model.
    """

    def __init__(
        self,
        new: type[Decoder],
        config: Any,
        args: argparse.Namespace,
        me: Rank,
        layout: Layout,
        micro_batches: int,
        speed: Speed | None = None,
    ) -> None:
        self.layout = layout
        layout.check(config, args.sequence_length)
        # Threads have one raw group each, of all ranks; every other layout is a mesh of processes.
        divided = layout.data * layout.tensor * layout.pipeline > 1 and not (layout.plain and args.zero_stage == 0)
        self._mesh = Mesh(layout, me.device.torch_device.type, args.timeout) if divided else None
        self.parameters, self.parts = parts_of(new, config, args, layout)
        """Parameters of the whole model; this rank's parts of it."""
        # FSDP averages over its ranks what the others add up.
        fully = args.zero_stage >= 2 and layout.data > 1
        self.averaged = layout.data if fully else 1
        speed = speed or Speed()
        self.autocast = speed.dtype != torch.float32 and not (layout.plain or fully)
        """Whether the caller's autocast has to see to the type of the computation."""
        self._place(args, me, fully, speed)
        self.alone: nn.Module = computing(self.parts[0], torch.float32 if fully or self.autocast else speed.dtype)
        """What a world of one would call; not for models in several parts."""
        self._loss = compile_function(total_loss) if speed.compiled else total_loss
        self.gradients = self._gradients(me, fully)
        if layout.pipeline > 1:
            assert self._mesh is not None
            # Under autocast only the scores are of the lower precision, under FSDP's policy all is.
            shapes = Shapes(
                config,
                layout,
                args.batch_size,
                args.sequence_length,
                inside=speed.dtype if fully else torch.float32,
                scores=speed.dtype,
            )
            device = me.device.torch_device
            self._passes: Any = Pipelined(self.parts, micro_batches, self._mesh, device, shapes)
        else:
            self._passes = Sequential(self.gradients.model, micro_batches, self._loss)
        self.optimizer: Any = self._optimizer(args, me)

    def _optimizer(self, args: argparse.Namespace, me: Rank) -> Any:
        # With Llama's epsilon: a larger one than usual also makes the size of gradients matter, which Adam else divides
        # away. A cluster that sums where it should average shows in the loss.
        new_optimizer = partial(adamw, device=me.device, betas=(0.9, 0.95), eps=1e-5)
        groups = parameter_groups(self.parts)
        data = self._mesh.data if self._mesh else None
        return Zero1(groups, new_optimizer, data) if args.zero_stage == 1 and data else new_optimizer(groups)

    def _place(self, args: argparse.Namespace, me: Rank, fully: bool, speed: Speed) -> None:
        for part in self.parts:
            if self.layout.tensor > 1:
                assert self._mesh is not None
                divide_tensors(part, self._mesh)
            initialise(part, args.seed, me.device.torch_device)
            part.train()
            if speed.compiled:
                part.compile_regions()
            if fully:
                assert self._mesh is not None
                shard(part, self._mesh, reshard=args.zero_stage == 3, dtype=speed.dtype)

    def _gradients(self, me: Rank, fully: bool) -> Alone:
        if self.layout.plain and not fully:
            return me.gradients(self.alone)
        model = self.parts[0] if len(self.parts) == 1 else nn.ModuleList(self.parts)
        if fully or self._mesh is None or self._mesh.data is None:
            return Alone(model, me.device)
        return Explicit(model, me.device, self._mesh.data)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch, computed by this rank alone."""
        return self._loss(self.alone(tokens), targets) / tokens.numel()

    def backward(self, tokens: Tensor, targets: Tensor, total_tokens: int) -> Tensor:
        """One step's passes. Afterwards every gradient is that of the mean loss over the global batch. Returns this
        rank's share of that mean: the shares of all ranks add up to it."""
        loss = self._passes.run(tokens, targets, self.averaged / total_tokens)
        self.gradients.finish()
        if self._mesh is not None:
            sum_tied(self.parts, self._mesh.ends)
        mine = self.layout.holds_last_stage and self.layout.tensor_rank == 0
        return loss / self.averaged if mine else torch.zeros_like(loss)


def parameter_groups(parts: list[Decoder]) -> list[dict[str, Any]]:
    """Matrices decay, biases and normalisations do not. Parameters divided differently are updated separately: an
    operation over a list of tensors takes no mixture."""
    groups: dict[tuple[bool, Any], list[nn.Parameter]] = defaultdict(list)
    for part in parts:
        for parameter in part.parameters():
            if parameter.requires_grad:
                groups[parameter.dim() > 1, getattr(parameter, "device_mesh", None)].append(parameter)
    return [
        {"params": parameters, "weight_decay": 0.1 if decays else 0.0} for (decays, _), parameters in groups.items()
    ]


def parts_of(new: type[Decoder], config: Any, args: argparse.Namespace, layout: Layout) -> tuple[int, list[Decoder]]:
    """The whole model's number of parameters, and this rank's parts of it, on no device yet. Raises LoraError."""
    lora = Lora(args.lora_rank, args.lora_alpha, args.lora_target_modules) if args.lora_rank else None
    with torch.device("meta"):
        whole = new(config)
        if lora:
            check_targets(whole, lora)
            check_stages([new(config, part) for part in layout.all_parts(config.layers)], lora)
            adapt(whole, lora)
        parts = [new(config, part) for part in layout.parts(config.layers)]
        for part in parts:
            if lora:
                adapt(part, lora)
    return sum(p.numel() for p in whole.parameters()), parts
