"""How W ranks divide one training: data × tensor × pipeline parallelism, and who belongs to which group.

Rank = (pipeline rank · data + data rank) · tensor + tensor rank: tensor parallelism talks most and takes neighbours,
pipeline stages talk least. What a rank has of the model follows from the layout alone.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from workloads.decoder import Decoder, DecoderConfig, Part


class LayoutError(ValueError):
    """Sizes that do not divide; the message has the arithmetic."""


@dataclass(frozen=True)
class Layout:
    """The sizes of a training's dimensions and one rank's place in them."""

    rank: int = 0
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1
    """Pipeline stages per rank, taken in turns: stage s is on pipeline rank s mod `pipeline`."""
    sequence: bool = False
    """Whether tensor-parallel ranks also divide the sequence between the parts that are divided by width."""

    @classmethod
    def of(
        cls, rank: int, world: int, *, tensor: int = 1, pipeline: int = 1, virtual: int = 1, sequence: bool = False
    ) -> Layout:
        """Data parallelism takes what the other dimensions leave. Raises LayoutError when that is not whole."""
        data, rest = divmod(world, tensor * pipeline)
        if rest:
            raise LayoutError(
                f"{world} ranks do not divide into replicas of tensor_parallel {tensor} × pipeline_parallel {pipeline} "
                f"= {tensor * pipeline} ranks: {world} = {data} × {tensor * pipeline} + {rest}"
            )
        if virtual > 1 and pipeline == 1:
            raise LayoutError(f"virtual_pipeline_parallel {virtual} needs a pipeline_parallel above 1")
        if sequence and tensor == 1:
            raise LayoutError("sequence_parallel divides what tensor-parallel ranks share: tensor_parallel is 1")
        return cls(rank, data, tensor, pipeline, virtual, sequence)

    @property
    def tensor_rank(self) -> int:
        return self.rank % self.tensor

    @property
    def data_rank(self) -> int:
        return self.rank // self.tensor % self.data

    @property
    def pipeline_rank(self) -> int:
        return self.rank // (self.tensor * self.data)

    @property
    def plain(self) -> bool:
        """Whether every rank is a whole replica."""
        return self.tensor == self.pipeline == 1

    @property
    def stages(self) -> range:
        """Numbers of the pipeline stages on this rank."""
        return range(self.pipeline_rank, self.pipeline * self.virtual, self.pipeline)

    @property
    def holds_last_stage(self) -> bool:
        return self.pipeline_rank == self.pipeline - 1

    @property
    def group_name(self) -> str | None:
        """Ranks of the same name hold the same parameters; None where all do."""
        return None if self.plain else f"tp{self.tensor_rank}pp{self.pipeline_rank}"

    def all_parts(self, layers: int) -> list[Part]:
        """What each stage holds of a model, the layers divided as evenly as they go."""
        count = self.pipeline * self.virtual
        bounds = [layers * stage // count for stage in range(count + 1)]
        return [Part(range(bounds[s], bounds[s + 1]), first=s == 0, last=s == count - 1) for s in range(count)]

    def parts(self, layers: int) -> list[Part]:
        """What the stages on this rank hold of a model."""
        every = self.all_parts(layers)
        return [every[stage] for stage in self.stages]

    def check(self, config: DecoderConfig, sequence_length: int) -> None:
        """Raises LayoutError when the model or its sequences cannot be divided so."""
        stages = self.pipeline * self.virtual
        if config.layers < stages:
            raise LayoutError(
                f"{config.layers} layers are too few for pipeline_parallel {self.pipeline} × virtual_pipeline_parallel "
                f"{self.virtual} = {stages} stages"
            )
        widths = {"heads": config.heads, "key/value heads": config.key_value_heads, "feed-forward width": config.inner}
        for name, size in widths.items():
            if size % self.tensor:
                raise LayoutError(f"{size} {name} do not divide by tensor_parallel {self.tensor}")
        if self.sequence and sequence_length % self.tensor:
            raise LayoutError(
                f"sequence_parallel: sequence_length {sequence_length} does not divide by tensor_parallel {self.tensor}"
            )

    def micro_batches(self, total_batch_size: int, batch_size: int, sequence_length: int) -> int:
        """How many micro batches each replica has per step. Sizes in tokens, sequences, tokens.

        Raises LayoutError when that is not whole, or not a number that the pipeline's schedule can run.
        """
        each = self.data * batch_size * sequence_length
        count, rest = divmod(total_batch_size, each)
        product = f"data parallel {self.data} × batch_size {batch_size} × sequence_length {sequence_length} = {each}"
        if rest or not count:
            raise LayoutError(f"total_batch_size {total_batch_size} tokens are not a multiple of {product} tokens")
        rounds = max(1, count // self.pipeline)
        if self.virtual > 1 and count % rounds:
            raise LayoutError(
                f"total_batch_size {total_batch_size} / ({product}) is {count} micro batches: interleaved stages run "
                f"in {rounds} rounds of as many, so make it a multiple of pipeline_parallel {self.pipeline}"
            )
        return count


class Subgroup:
    """Some of the ranks, this one among them, as a process group."""

    def __init__(self, handle: dist.ProcessGroup) -> None:
        self.handle = handle
        self.ranks = dist.get_process_group_ranks(handle)
        self.size = len(self.ranks)

    def sum_(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its sum over the group."""
        for tensor in tensors:
            dist.all_reduce(tensor, group=self.handle)


class Mesh:
    """The process groups of a layout. All ranks make it together; `timeout` in seconds bounds their collectives."""

    def __init__(self, layout: Layout, device_type: str, timeout: float) -> None:
        self.layout = layout
        self._device_type = device_type
        self._timeout = timedelta(seconds=timeout)
        # pipeline × data × tensor → the ranks
        self._ranks = torch.arange(layout.pipeline * layout.data * layout.tensor).view(
            layout.pipeline, layout.data, layout.tensor
        )
        self.pipeline = self._subgroup(self._ranks.permute(1, 2, 0))
        self.data = self._subgroup(self._ranks.permute(0, 2, 1))
        self.tensor = self._subgroup(self._ranks)
        self.ends = self.pipeline if layout.pipeline == 2 else self._subgroup(self._ranks[[0, -1]].permute(1, 2, 0))
        """The first and the last stage of this rank's pipeline; None where this rank has neither, or both."""

    def _subgroup(self, ranks: Tensor) -> Subgroup | None:
        """One group per row along the last dimension; this rank's, if it has one with anybody else in it."""
        if ranks.shape[-1] == 1 or ranks.unique().numel() < ranks.numel():
            return None
        mine, _ = dist.new_subgroups_by_enumeration(ranks.flatten(0, 1).tolist(), timeout=self._timeout)
        return Subgroup(mine) if mine is not None else None

    @cached_property
    def devices(self) -> Any:
        """Data × tensor as a DeviceMesh with the dimensions `data` and `tensor`, as far as they are larger than 1."""
        from torch.distributed.device_mesh import DeviceMesh

        mine = self._ranks[self.layout.pipeline_rank]
        if self.data and self.tensor:
            groups: Any = [self.data.handle, self.tensor.handle]
            return DeviceMesh.from_group(groups, self._device_type, mesh=mine, mesh_dim_names=("data", "tensor"))
        name, group = ("data", self.data) if self.data else ("tensor", self.tensor)
        assert group is not None
        return DeviceMesh.from_group(group.handle, self._device_type, mesh_dim_names=(name,))


def divide_tensors(model: Decoder, mesh: Mesh) -> None:
    """Tensor parallelism: of every pair of projections the first is divided by its rows, the second by its columns.

    Between the modules activations are ordinary tensors: whole, or with sequence parallelism this rank's part of the
    sequence.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    sequence = mesh.layout.sequence
    outside = Shard(1) if sequence else Replicate()
    whole = tp.PrepareModuleInput(input_layouts=(outside,), desired_input_layouts=(Replicate(),))
    back = tp.RowwiseParallel(output_layouts=outside)
    # Positions are added to whole sequences, so these are divided after that.
    embedded = Replicate() if model.positions else outside
    styles: dict[str, Any] = {
        "transformer.wte": tp.RowwiseParallel(input_layouts=Replicate(), output_layouts=embedded),
        "attn": whole,
        "attn.c_attn": tp.ColwiseParallel(),
        "attn.c_proj": back,
        "mlp": whole,
        "mlp.c_fc": tp.ColwiseParallel(),
        "mlp.c_fc2": tp.ColwiseParallel(),
        "mlp.c_proj": back,
        "lm_head": tp.ColwiseParallel(input_layouts=outside, output_layouts=Replicate()),
    }
    if sequence:
        styles |= dict.fromkeys(("ln_1", "ln_2", "transformer.ln_f"), tp.SequenceParallel())
        if model.positions:
            styles["transformer.drop"] = tp.PrepareModuleInput(
                input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=True
            )
    plan = {
        name: style
        for name, _ in model.named_modules()
        for end, style in styles.items()
        if f".{name}".endswith(f".{end}")
    }
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    tp.parallelize_module(model, mesh.devices["tensor"], plan)
    model.tie()
    for name, parameter in model.named_parameters():  # sequence parallelism gives frozen normalisations new parameters
        parameter.requires_grad_(trained[name])


def shard(model: Decoder, mesh: Mesh, *, reshard: bool, dtype: torch.dtype = torch.float32) -> None:
    """ZeRO stage 2 or, with `reshard`, 3: parameters, gradients and optimizer state divided among the data-parallel
    ranks; `reshard` gives up the gathered parameters of a block as soon as it was computed, in both directions. The
    model is computed in `dtype`; gradients are added up in float32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if mesh.devices.device_type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
        raise LayoutError(f"zero_stage 2 and 3 on CPUs need a newer PyTorch than {torch.__version__}")
    # The scores of divided projections are views; nobody changes them in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    devices = mesh.devices["data"]
    lower = dtype != torch.float32
    policy = MixedPrecisionPolicy(dtype, torch.float32) if lower else MixedPrecisionPolicy()
    for block in model.transformer["h"].values():
        fully_shard(block, mesh=devices, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(model, mesh=devices, reshard_after_forward=reshard, mp_policy=policy)
