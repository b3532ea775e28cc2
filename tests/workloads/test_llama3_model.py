"""Llama 3 against an implementation that is not ours."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from workloads.decoder import total_loss
from workloads.llama3_model import SIZES, Llama3, LlamaConfig, RopeScaling, Rotary

SMALL = LlamaConfig(
    128,
    32,
    layers=2,
    heads=4,
    kv_heads=2,
    feed_forward=48,
    max_sequence_length=64,
    rope_theta=10_000.0,
    scaling=RopeScaling(8.0, original_length=32),
)


def their_config(ours: LlamaConfig) -> Any:
    from transformers import LlamaConfig as TheirConfig

    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": ours.rope_theta}
    if ours.scaling:
        rope |= {
            "rope_type": "llama3",
            "factor": ours.scaling.factor,
            "low_freq_factor": ours.scaling.low_frequency,
            "high_freq_factor": ours.scaling.high_frequency,
            "original_max_position_embeddings": ours.scaling.original_length,
        }
    return TheirConfig(
        vocab_size=ours.vocabulary,
        hidden_size=ours.hidden,
        intermediate_size=ours.inner,
        num_hidden_layers=ours.layers,
        num_attention_heads=ours.heads,
        num_key_value_heads=ours.key_value_heads,
        max_position_embeddings=ours.max_sequence_length,
        rms_norm_eps=ours.norm_eps,
        tie_word_embeddings=ours.tied,
        rope_parameters=rope,
    )


@pytest.fixture(autouse=True)
def _remarks() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def as_ours(named: dict[str, Tensor], config: LlamaConfig) -> dict[str, Tensor]:
    """Their tensors under our names: queries, keys and values grouped by head of keys and values."""
    found = {
        "transformer.wte.weight": named["model.embed_tokens.weight"],
        "transformer.ln_f.weight": named["model.norm.weight"],
    }
    if not config.tied:
        found["lm_head.weight"] = named["lm_head.weight"]
    pairs = {
        "ln_1": "input_layernorm",
        "ln_2": "post_attention_layernorm",
        "attn.c_proj": "self_attn.o_proj",
        "mlp.c_fc": "mlp.up_proj",
        "mlp.c_fc2": "mlp.gate_proj",
        "mlp.c_proj": "mlp.down_proj",
    }
    for layer in range(config.layers):
        here, there = f"transformer.h.{layer}", f"model.layers.{layer}"
        for ours, theirs in pairs.items():
            found[f"{here}.{ours}.weight"] = named[f"{there}.{theirs}.weight"]
        qkv = [
            named[f"{there}.self_attn.{part}_proj.weight"].unflatten(0, (config.key_value_heads, -1)) for part in "qkv"
        ]
        found[f"{here}.attn.c_attn.weight"] = torch.cat(qkv, dim=1).flatten(0, 1)
    return {name: tensor.detach().clone() for name, tensor in found.items()}


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, tied=True, scaling=None)], ids=["3.1", "tied, unscaled"])
def test_scores_and_gradients_are_those_of_the_other_implementation(config: LlamaConfig) -> None:
    from transformers import LlamaForCausalLM

    torch.manual_seed(1)
    theirs = LlamaForCausalLM(their_config(config)).train()
    for name, parameter in theirs.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
    ours = Llama3(config)
    translated = as_ours(dict(theirs.named_parameters()), config)
    assert set(translated) == {name for name, _ in ours.named_parameters()}
    ours.load_state_dict(translated, strict=not config.tied)
    tokens, targets = torch.randint(0, 128, (2, 3, 48), generator=torch.Generator().manual_seed(2))
    scores, expected = ours(tokens), theirs(tokens).logits
    assert torch.allclose(scores, expected, atol=1e-4)
    assert expected.std() > 0.05
    for result in (scores, expected):
        (total_loss(result, targets) / targets.numel()).backward()
    gradients = as_ours({name: parameter.grad for name, parameter in theirs.named_parameters()}, config)
    for name, parameter in ours.named_parameters():
        assert torch.allclose(parameter.grad, gradients[name], atol=1e-5, rtol=1e-4), name


@pytest.mark.parametrize("size", ["1B", "8B"])
def test_rotations_are_those_of_the_published_models(size: str) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = SIZES[size]
    expected = LlamaRotaryEmbedding(their_config(config)).inv_freq
    assert torch.allclose(Rotary(config).frequencies(), expected, rtol=1e-5, atol=0)
    assert not torch.allclose(Rotary(replace(config, scaling=None)).frequencies(), expected, rtol=1e-2)


@pytest.mark.parametrize(("size", "parameters"), [("1B", 1_235_814_400), ("8B", 8_030_261_248)])
def test_sizes_are_those_of_the_published_models(size: str, parameters: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in Llama3(SIZES[size]).parameters()) == parameters
