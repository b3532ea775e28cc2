from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from workloads.gpt2_model import SIZES, Gpt2
from workloads.parallel import Layout, LayoutError
from workloads.replica import parameter_groups
from workloads.sharding import _share_out, first_values, initialise

TINY = SIZES["tiny"]


def test_every_rank_has_one_place() -> None:
    layouts = [Layout.of(rank, 24, tensor=2, pipeline=3) for rank in range(24)]
    places = [(at.pipeline_rank, at.data_rank, at.tensor_rank) for at in layouts]
    assert places == [(p, d, t) for p in range(3) for d in range(4) for t in range(2)]
    assert {at.data for at in layouts} == {4}
    assert [at.rank for at in layouts if at.holds_last_stage] == list(range(16, 24))


@pytest.mark.parametrize(("pipeline", "virtual"), [(1, 1), (2, 1), (2, 2), (3, 2), (4, 2)])
def test_stages_cover_the_layers_once_and_in_order(pipeline: int, virtual: int) -> None:
    stages = {}
    for rank in range(pipeline):
        layout = Layout.of(rank, pipeline, pipeline=pipeline, virtual=virtual)
        stages |= dict(zip(layout.stages, layout.parts(8), strict=True))
    ordered = [stages[number] for number in range(pipeline * virtual)]
    assert [layer for part in ordered for layer in part.layers] == list(range(8))
    assert max(len(part.layers) for part in ordered) - min(len(part.layers) for part in ordered) <= 1
    assert [part.first for part in ordered] == [True] + [False] * (len(ordered) - 1)
    assert [part.last for part in ordered] == [False] * (len(ordered) - 1) + [True]


@pytest.mark.parametrize(
    ("world", "options", "said"),
    [
        (
            6,
            {"tensor": 2, "pipeline": 2},
            r"6 ranks do not divide .* 2 × pipeline_parallel 2 = 4 ranks: 6 = 1 × 4 \+ 2",
        ),
        (2, {"tensor": 4}, r"2 ranks .* = 4 ranks: 2 = 0 × 4 \+ 2"),
        (2, {"virtual": 2}, "virtual_pipeline_parallel 2 needs"),
        (2, {"sequence": True}, "tensor_parallel is 1"),
    ],
)
def test_a_world_that_does_not_divide_is_refused_with_the_arithmetic(world: int, options: dict, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        Layout.of(0, world, **options)


@pytest.mark.parametrize(
    ("layout", "length", "said"),
    [
        (Layout(pipeline=4, virtual=3), 32, "8 layers are too few for .* 4 × virtual_pipeline_parallel 3 = 12 stages"),
        (Layout(tensor=3), 32, "8 heads do not divide by tensor_parallel 3"),
        (Layout(tensor=4, sequence=True), 30, "sequence_length 30 does not divide by tensor_parallel 4"),
    ],
)
def test_a_model_that_does_not_divide_is_refused(layout: Layout, length: int, said: str) -> None:
    Layout(tensor=4, pipeline=4, virtual=2, sequence=True).check(TINY, 32)
    with pytest.raises(LayoutError, match=said):
        layout.check(TINY, length)


def test_key_value_heads_limit_tensor_parallelism() -> None:
    with pytest.raises(LayoutError, match="2 key/value heads do not divide by tensor_parallel 4"):
        Layout(tensor=4).check(replace(TINY, kv_heads=2), 32)


def test_micro_batches_make_up_the_global_batch_or_are_refused_with_the_arithmetic() -> None:
    assert Layout(data=2).micro_batches(512, 4, 32) == 2
    assert Layout().micro_batches(512, 4, 32) == 4
    said = "500 tokens are not a multiple of data parallel 2 × batch_size 4 × sequence_length 32 = 256 tokens"
    with pytest.raises(LayoutError, match=said):
        Layout(data=2).micro_batches(500, 4, 32)
    with pytest.raises(LayoutError, match="128 tokens are not a multiple of"):
        Layout(data=2).micro_batches(128, 4, 32)
    with pytest.raises(LayoutError, match=r"is 5 micro batches: .* 2 rounds .* multiple of pipeline_parallel 2"):
        Layout(pipeline=2, virtual=2).micro_batches(5 * 128, 4, 32)
    assert Layout(pipeline=4, virtual=2).micro_batches(3 * 128, 4, 32) == 3


def test_groups_of_equal_parameters_are_named_where_not_all_are() -> None:
    assert Layout(data=4).group_name is None
    names = [Layout.of(rank, 8, tensor=2, pipeline=2).group_name for rank in range(8)]
    assert names == ["tp0pp0", "tp1pp0"] * 2 + ["tp0pp1", "tp1pp1"] * 2


def test_first_values_depend_on_seed_and_name_only() -> None:
    """So a stage that holds two layers starts as the whole model does."""
    with torch.device("meta"):
        whole = Gpt2(TINY)
        stages = [Gpt2(TINY, part) for r in range(2) for part in Layout.of(r, 2, pipeline=2, virtual=2).parts(8)]
    for model in (whole, *stages):
        initialise(model, 7, torch.device("cpu"))
    expected = dict(whole.named_parameters())
    for stage in stages:
        for name, parameter in stage.named_parameters():
            assert torch.equal(parameter, expected[name]), name
    assert whole.lm_head.weight is whole.transformer["wte"].weight
    assert not torch.equal(
        first_values("a.weight", torch.Size([4]), 1, 0), first_values("a.weight", torch.Size([4]), 1, 1)
    )
    assert expected["transformer.h.0.attn.c_attn.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert expected["transformer.h.0.attn.c_proj.weight"].std().item() == pytest.approx(0.005, rel=0.05)


def test_zero_1_shares_parameters_out_evenly() -> None:
    parameters = [torch.empty(size) for size in (100, 60, 50, 10, 5, 3)]
    owners = _share_out(parameters, 2)
    loads = [sum(p.numel() for p, owner in zip(parameters, owners, strict=True) if owner == rank) for rank in (0, 1)]
    assert loads == [115, 113]
    assert _share_out(parameters[:1], 3) == [0]


def test_matrices_decay_and_the_rest_does_not() -> None:
    model = Gpt2(TINY)
    groups = {group["weight_decay"]: group["params"] for group in parameter_groups([model])}
    assert {p.dim() for p in groups[0.1]} == {2}
    assert {p.dim() for p in groups[0.0]} == {1}
    assert sum(map(len, groups.values())) == len(list(model.parameters()))
