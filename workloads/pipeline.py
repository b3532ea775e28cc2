"""One replica's forward and backward passes over the micro batches of a step: on one rank, or through a pipeline."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workloads.compat import known
from workloads.decoder import Decoder, DecoderConfig, total_loss
from workloads.parallel import Layout, LayoutError, Mesh

Loss = Callable[[Tensor, Tensor], Tensor]


class Sequential:
    """The whole model on this rank: micro batches one after the other, gradients added up."""

    def __init__(self, model: nn.Module, micro_batches: int, loss: Loss = total_loss) -> None:
        self._model = model
        """What is called: the model, or DDP around it."""
        self._count = micro_batches
        self._loss = loss
        """`total_loss`, or what it was compiled to."""

    def run(self, tokens: Tensor, targets: Tensor, scale: float) -> Tensor:
        """Leaves the gradients of scale × the sum of all tokens' losses, and returns that. (n · b, s) token ids."""
        total = torch.zeros((), device=tokens.device)
        pairs = list(zip(tokens.chunk(self._count), targets.chunk(self._count), strict=True))
        for number, (x, y) in enumerate(pairs, 1):
            with self._exchange(last=number == len(pairs)):
                loss = self._loss(self._model(x), y) * scale
                loss.backward()
            total += loss.detach()
        return total

    def _exchange(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """DDP and FSDP exchange gradients as they become ready: once per step is enough."""
        if hasattr(self._model, "set_requires_gradient_sync"):
            self._model.set_requires_gradient_sync(last)
        elif hasattr(self._model, "no_sync") and not last:
            without: contextlib.AbstractContextManager[None] = self._model.no_sync()
            return without
        return contextlib.nullcontext()


class Shapes:
    """What goes into and out of the stages for one micro batch, as tensors without content.

    Left to themselves stages find it out by sending each other Python objects, which takes NumPy.
    """

    def __init__(
        self,
        config: DecoderConfig,
        layout: Layout,
        batch: int,
        length: int,
        *,
        inside: torch.dtype,
        scores: torch.dtype,
    ) -> None:
        """`batch` sequences of `length` tokens; `inside` is the type of the activations between stages."""
        part = length // layout.tensor if layout.sequence else length
        self.tokens = torch.empty(batch, length, dtype=torch.int64, device="meta")
        self.activations = torch.empty(batch, part, config.hidden, dtype=inside, device="meta", requires_grad=True)
        wide = config.padded_vocabulary
        self.scores = torch.empty(batch, length, wide, dtype=scores, device="meta", requires_grad=True)


class Pipelined:
    """The stages of this rank, in a schedule with those of the other ranks of its pipeline."""

    def __init__(
        self, parts: Sequence[Decoder], micro_batches: int, mesh: Mesh, device: torch.device, shapes: Shapes
    ) -> None:
        from torch.distributed import pipelining

        layout = mesh.layout
        assert mesh.pipeline is not None
        # With NCCL the whole group must have met before some of it send and receive at once.
        mesh.pipeline.sum_([torch.zeros(1, device=device)])
        stages = [
            pipelining.PipelineStage(
                part,
                number,
                layout.pipeline * layout.virtual,
                device,
                input_args=shapes.tokens if part.part.first else shapes.activations,
                output_args=shapes.scores if part.part.last else shapes.activations,
                group=mesh.pipeline.handle,
            )
            for number, part in zip(layout.stages, parts, strict=True)
        ]
        self._scale = 1.0
        kind: Any = pipelining.ScheduleInterleaved1F1B if len(stages) > 1 else pipelining.Schedule1F1B
        if micro_batches < layout.pipeline and len(stages) == 1:
            kind = pipelining.ScheduleGPipe  # 1F1B would be all forward, then all backward too, and PyTorch's refuses
        unscaled = known(kind.__init__, scale_grads=False)
        if device.type == "cpu" and not unscaled:  # 2.6 waits for one of several messages only, which gloo keeps apart
            raise LayoutError(f"pipeline_parallel on CPUs needs a newer PyTorch than {torch.__version__}")
        self._schedule = kind(
            stages if len(stages) > 1 else stages[0],
            n_microbatches=micro_batches,
            loss_fn=self._loss,
            **unscaled,
        )
        self._first, self._last = parts[0].part.first, parts[-1].part.last
        self._options = known(self._schedule.step, return_outputs=False)

    def _loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        return total_loss(scores, targets) * self._scale

    def run(self, tokens: Tensor, targets: Tensor, scale: float) -> Tensor:
        """As `Sequential.run`; the loss is 0 on ranks without the last stage."""
        self._scale = scale
        losses: list[Tensor] = []
        inputs = (tokens.contiguous(),) if self._first else ()
        told = {"target": targets, "losses": losses} if self._last else {}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\.")
            self._schedule.step(*inputs, **told, **self._options)
        return (
            torch.stack([loss.detach() for loss in losses]).sum() if losses else torch.zeros((), device=tokens.device)
        )
