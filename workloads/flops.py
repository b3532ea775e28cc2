"""How much arithmetic a model's training is, and what share of the device's peak that makes (MFU).

Model FLOPs utilisation (Chowdhery et al., "PaLM", 2022, appendix B): the arithmetic that the *model* needs, as if
nothing were computed twice and no vocabulary padded, over the peak of the device's matrix units. Each weight of a
matrix costs 2 operations forward and 4 backward per token that passes it; attention's two products cost
12 · s² · hidden per sequence and layer, and half of that where it is causal. Embeddings are looked up, not multiplied.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import torch

from workloads.device import Device


def attention(layers: int, hidden: int, length: int, *, causal: bool) -> float:
    """Operations of the attention products of one sequence, forward and backward; not those of the projections."""
    return (6.0 if causal else 12.0) * layers * length**2 * hidden


def bert(*, layers: int, hidden: int, vocabulary: int, length: int, predictions: int) -> float:
    """Operations of BERT's pre-training per sample of `length` tokens, `predictions` of them masked."""
    encoder = 12 * hidden**2 * layers * length
    heads = (hidden**2 + hidden * vocabulary) * predictions + hidden**2 + 2 * hidden
    return 6.0 * (encoder + heads) + attention(layers, hidden, length, causal=False)


def decoder(*, matrices: int, layers: int, hidden: int, length: int) -> float:
    """Operations of a decoder's training per sequence; `matrices`: weights in projections, the last one's included."""
    return 6.0 * matrices * length + attention(layers, hidden, length, causal=True)


# Dense (no sparsity) TFLOP/s by the vendors' datasheets: bfloat16 on the matrix units, float32 outside of them. The
# first name that is part of what the driver calls the device counts. Neuron: the chip's figure divided by its
# NeuronCores, times those that make a logical one (LNC).
# nvidia.com/en-us/data-center/{gb200-nvl72,h200,h100,a100,l40s,l4,…} and the Ampere and Ada architecture papers;
# awsdocs-neuron.readthedocs-hosted.com, "Trainium (2, 3) architecture", "Inferentia2 architecture".
PEAKS: tuple[tuple[str, float, float], ...] = (
    ("GB200", 2500.0, 80.0),
    ("B200", 2250.0, 75.0),
    ("GH200", 989.4, 66.9),
    ("H200 NVL", 835.5, 60.0),
    ("H200", 989.4, 66.9),
    ("H100 PCIe", 756.4, 51.2),
    ("H100 NVL", 835.5, 60.0),
    ("H100", 989.4, 66.9),
    ("H20", 148.0, 44.0),
    ("A100", 311.9, 19.5),
    ("A30", 165.1, 10.3),
    ("A40", 149.7, 37.4),
    ("A10G", 70.0, 35.0),
    ("A10", 125.0, 31.2),
    ("L40S", 362.0, 91.6),
    ("L40", 181.0, 90.5),
    ("L4", 121.0, 30.3),
    ("NEURON trn1", 95.0, 23.75),
    ("NEURON inf2", 95.0, 23.75),
    ("NEURON trn2 LNC1", 83.4, 22.6),
    ("NEURON trn2 LNC2", 166.8, 45.2),
    ("NEURON trn3 LNC1", 83.9, 22.9),
    ("NEURON trn3 LNC2", 167.8, 45.8),
)


@dataclass(frozen=True)
class Peak:
    """What a device can do at most."""

    tflops: float
    source: str
    """`datasheet`, `measured` or `given`."""


def add_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--peak",
        type=_choice,
        default="table",
        metavar="table|measured|TFLOP/S",
        help="what MFU is a share of: the datasheet's figure, what a large matrix product sustains here, or a number",
    )


def _choice(text: str) -> str:
    if text not in ("table", "measured") and not 0 < float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} TFLOP/s is no peak")
    return text


def fields(operations: float, pace: float, peak: Peak | None) -> dict[str, object]:
    """For the final record: `operations` per sample, `pace` in samples/s of this rank."""
    known: dict[str, object] = {"flops_per_sample": operations, "tflops": operations * pace / 1e12}
    if peak is not None:
        known |= {"mfu": operations * pace / 1e12 / peak.tflops, "peak_tflops": peak.tflops, "peak_from": peak.source}
    return known


def peak_of(choice: str, device: Device, dtype: torch.dtype) -> Peak | None:
    """The peak to hold a training against: `table`, `measured`, or a number of TFLOP/s.

    None where the table does not know the device: no figure is better than a wrong one.
    """
    if choice == "measured":
        return Peak(measure(device, dtype) / 1e12, "measured")
    if choice != "table":
        return Peak(float(choice), "given")
    tflops = datasheet(device.model_name, dtype)
    return None if tflops is None else Peak(tflops, "datasheet")


def datasheet(model_name: str, dtype: torch.dtype) -> float | None:
    """Dense TFLOP/s of the device that the driver calls `model_name`."""
    for name, bfloat16, float32 in PEAKS:
        if name in model_name:
            return float32 if dtype == torch.float32 else bfloat16
    return None


def measure(device: Device, dtype: torch.dtype, *, size: int = 8192, seconds: float = 3.0) -> float:
    """What a large matrix product sustains, in operations/s: the practical peak under this card's power and clocks.

    The median over windows in the second half of `seconds`: in the first the card is cooler than a training finds it.
    Random data: on zeros less power is drawn, and the product runs faster than any real one.
    """
    left, right = (torch.randn(size, size, device=device.torch_device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    torch.mm(left, right, out=out)
    device.synchronize()
    began, rates = time.perf_counter(), []
    while (now := time.perf_counter()) - began < seconds or not rates:
        for _ in range(10):
            torch.mm(left, right, out=out)
            device.end_step()  # where work is only written down, ten equal products would become one
        device.synchronize()
        if now - began >= seconds / 2:
            rates.append(10 * 2.0 * size**3 / (time.perf_counter() - now))
    return statistics.median(rates)
