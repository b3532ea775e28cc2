from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from workloads.decoder import DecoderConfig, Part
from workloads.gpt2_model import Gpt2
from workloads.llama3_model import SIZES, Llama3
from workloads.lora import Lora, LoraError, LoraLinear, adapt, check_stages, check_targets

SMALL = DecoderConfig(vocabulary=128, hidden=32, layers=2, heads=4, max_sequence_length=32)


def test_targets_are_ends_of_names_by_whole_components() -> None:
    model = Gpt2(SMALL)
    adapt(model, Lora(4, 8.0, ["attn.c_proj"]))
    adapted = {name for name, module in model.named_modules() if isinstance(module, LoraLinear)}
    assert adapted == {"transformer.h.0.attn.c_proj", "transformer.h.1.attn.c_proj"}
    assert Lora(4, 8.0, ["c_proj"]).matches("transformer.h.0.mlp.c_proj")
    assert not Lora(4, 8.0, ["proj"]).matches("transformer.h.0.mlp.c_proj")


def test_only_the_update_is_trained_and_it_starts_from_the_base() -> None:
    torch.manual_seed(0)
    model = Gpt2(SMALL)
    tokens = torch.randint(0, 128, (2, 16))
    before = model(tokens)
    names = {name for name, _ in model.named_parameters()}
    adapt(model, Lora(4, 8.0, ["attn.c_attn", "mlp.c_fc"]))
    assert torch.equal(model(tokens), before)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in model.named_parameters()} - names
    assert len(trained) == 2 * 2 * 2
    model(tokens).sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == trained


def test_the_update_is_alpha_over_rank_times_b_a() -> None:
    torch.manual_seed(0)
    base = torch.nn.Linear(8, 6)
    adapted = LoraLinear(base, Lora(2, 16.0, []))
    torch.nn.init.normal_(adapted.lora_B)
    x = torch.randn(3, 8)
    merged = base.weight + 16.0 / 2 * adapted.lora_B @ adapted.lora_A
    assert torch.allclose(adapted(x), F.linear(x, merged, base.bias), atol=1e-5)
    assert {name for name, _ in adapted.named_parameters()} == {"weight", "bias", "lora_A", "lora_B"}


def test_a_target_that_names_nothing_says_what_there_is() -> None:
    model = Llama3(SIZES["tiny"])
    check_targets(model, Lora(4, 8.0, ["attn.c_attn", "lm_head"]))
    with pytest.raises(LoraError, match=r"q_proj: no linear module .* attn.c_proj, lm_head, mlp.c_fc, mlp"):
        check_targets(model, Lora(4, 8.0, ["attn.c_attn", "q_proj"]))
    with pytest.raises(LoraError, match="output projection is its embedding"):
        check_targets(Gpt2(SMALL), Lora(4, 8.0, ["lm_head"]))


def test_a_pipeline_stage_without_any_target_is_named() -> None:
    stages = [Llama3(SIZES["tiny"], Part([0, 1], last=False)), Llama3(SIZES["tiny"], Part([2, 3], first=False))]
    check_stages(stages, Lora(4, 8.0, ["attn.c_attn"]))
    with pytest.raises(LoraError, match=r"0\.attn\.c_attn,mlp\.x: pipeline stage 1 \(layers 2, 3\) has none of them"):
        check_stages(stages, Lora(4, 8.0, ["0.attn.c_attn", "mlp.x"]))
    with pytest.raises(LoraError, match=r"lm_head: pipeline stage 0 \(layers 0, 1\)"):
        check_stages(stages, Lora(4, 8.0, ["lm_head"]))
