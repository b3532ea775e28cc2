"""Counted arithmetic and the peaks it is held against."""

from __future__ import annotations

import argparse

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from workloads import flops, gpt2_model, llama3_model, lm
from workloads.bert import operations_of
from workloads.bert_model import SIZES, Bert
from workloads.data import Corpus, Slice
from workloads.decoder import total_loss
from workloads.device import Device
from workloads.topology import Topology


def test_berts_operations_are_those_that_pytorch_counts() -> None:
    bert = Bert(SIZES["tiny"])
    # Attention as plain matrix products, which the counter sees.
    batch = Corpus(32).batch(Slice(tuple(range(4)), 4), 0, 4)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        bert(*batch).backward()
    # The vocabulary is padded from 36 to 64 there, which is a large part of so small a model.
    padding = 6 * SIZES["tiny"].hidden * (64 - 36) * 4
    assert counted.get_total_flops() / 4 == pytest.approx(operations_of(SIZES["tiny"], 32) + padding, rel=0.02)


@pytest.mark.parametrize("family", [(gpt2_model.Gpt2, gpt2_model.SIZES), (llama3_model.Llama3, llama3_model.SIZES)])
def test_a_decoders_operations_are_those_that_pytorch_counts(family: tuple[type, dict[str, object]]) -> None:
    new, sizes = family
    model, length = new(sizes["tiny"]), 64
    tokens = torch.randint(0, 128, (2, length))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        total_loss(model(tokens), tokens).backward()
    config = sizes["tiny"]
    # As plain products, the half of attention that the mask takes away is computed as well.
    masked = flops.attention(config.layers, config.hidden, length, causal=True)
    assert counted.get_total_flops() / 2 == pytest.approx(lm.operations_of(new, config, length) + masked, rel=0.01)


def test_bert_base_takes_what_its_paper_says_it_has() -> None:
    """85 M weights in the encoder, 6 operations each per token, and the rest a few percent."""
    assert 6 * 85e6 * 128 < operations_of(SIZES["base"], 128) < 1.08 * 6 * 85e6 * 128


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA H200", torch.bfloat16, 989.4),
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989.4),
        ("NVIDIA H100 PCIe", torch.bfloat16, 756.4),
        ("NVIDIA A10G", torch.bfloat16, 70.0),
        ("NVIDIA L40S", torch.float32, 91.6),
        ("NVIDIA A100-SXM4-80GB", torch.float32, 19.5),
        ("NEURON trn1", torch.bfloat16, 95.0),
        ("NEURON trn2 LNC2", torch.float32, 45.2),
        ("NEURON trn3", torch.bfloat16, None),
        ("x86_64", torch.bfloat16, None),
    ],
)
def test_the_first_name_that_fits_gives_the_peak(name: str, dtype: torch.dtype, tflops: float | None) -> None:
    assert flops.datasheet(name, dtype) == tflops


def test_no_peak_no_share() -> None:
    device = Device(Topology())
    assert flops.peak_of("table", device, torch.bfloat16) is None
    assert "mfu" not in flops.fields(1e9, 100.0, None)


def test_a_share_is_operations_per_second_over_the_peak() -> None:
    peak = flops.peak_of("0.5", Device(Topology()), torch.float32)
    assert peak == flops.Peak(0.5, "given")
    assert flops.fields(1e9, 100.0, peak)["mfu"] == pytest.approx(0.2)


def test_the_probe_measures_a_matrix_product() -> None:
    rate = flops.measure(Device(Topology()), torch.float32, size=128, seconds=0.2)
    assert 1e8 < rate < 1e14


@pytest.mark.parametrize("text", ["fast", "0", "-1", "nan", "inf"])
def test_what_is_no_peak_is_refused(text: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    flops.add_option(parser)
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parser.parse_args(["--peak", text])
