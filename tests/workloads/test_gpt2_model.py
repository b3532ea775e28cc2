"""GPT-2 against an implementation that is not ours."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from workloads.decoder import DecoderConfig, Part, total_loss
from workloads.gpt2_model import SIZES, Gpt2

SMALL = DecoderConfig(vocabulary=128, hidden=32, layers=2, heads=4, max_sequence_length=64)


@pytest.fixture(scope="module")
def theirs() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(1)
        config = GPT2Config(
            vocab_size=128, n_positions=64, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
        model = GPT2LMHeadModel(config)
    for name, parameter in model.named_parameters():  # biases and normalisations are zeros and ones at first
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=float("ln_" in name), std=0.1)
    return model.train()


def as_ours(name: str, tensor: Tensor) -> Tensor:
    """Their projections are transposed, and their queries, keys and values stand apart, not grouped by head."""
    if tensor.dim() == 2 and ".h." in name:
        tensor = tensor.t()
    if "c_attn" in name:
        tensor = tensor.unflatten(0, (3, SMALL.heads, -1)).transpose(0, 1).flatten(0, 2)
    return tensor.detach().clone()


def test_scores_and_gradients_are_those_of_the_other_implementation(theirs: Any) -> None:
    ours = Gpt2(SMALL)
    translated = {name: as_ours(name, parameter) for name, parameter in theirs.named_parameters()}
    assert set(translated) == {name for name, _ in ours.named_parameters()}
    ours.load_state_dict({**translated, "lm_head.weight": translated["transformer.wte.weight"]})
    tokens, targets = torch.randint(0, 128, (2, 3, 48), generator=torch.Generator().manual_seed(2))
    scores, expected = ours(tokens), theirs(tokens).logits
    assert torch.allclose(scores, expected, atol=1e-4)
    assert expected.std() > 0.05
    for result in (scores, expected):
        (total_loss(result, targets) / targets.numel()).backward()
    gradients = {name: as_ours(name, parameter.grad) for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert torch.allclose(parameter.grad, gradients[name], atol=1e-5, rtol=1e-4), name


def test_124m_is_gpt2_small() -> None:
    with torch.device("meta"):
        model = Gpt2(SIZES["124M"])
    padding = (SIZES["124M"].padded_vocabulary - 50257) * 768
    assert sum(p.numel() for p in model.parameters()) - padding == 124_439_808


def test_stages_in_turn_are_the_whole() -> None:
    """Parameters are named as in the whole model, and the embedding is on both ends."""
    torch.manual_seed(0)
    whole = Gpt2(SMALL)
    stages = [Gpt2(SMALL, Part([0], last=False)), Gpt2(SMALL, Part([1], first=False))]
    names = [name for stage in stages for name in stage.state_dict()]
    assert set(names) == set(whole.state_dict())
    assert {name for name in names if names.count(name) > 1} == {"transformer.wte.weight"}
    for stage in stages:
        stage.load_state_dict({name: whole.state_dict()[name] for name in stage.state_dict()})
    tokens = torch.randint(0, 128, (2, 16))
    assert torch.equal(stages[1](stages[0](tokens)), whole(tokens))
