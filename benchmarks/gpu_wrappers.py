"""What DDP and FSDP cost where there is nobody to talk to: BERT-base at world size 1.

    python -m benchmarks.gpu_wrappers [--seconds 4]
    python -m benchmarks.gpu_wrappers --rehearse       # on a CPU, to see that all of it runs; the figures mean nothing

The same compiled model and step, called bare, through DDP with the programs' own hook, and through FSDP2.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.gpu_windows import Windows
from workloads import bert
from workloads.bert_model import SIZES, Bert
from workloads.data import Corpus
from workloads.device import CudaDevice, Device
from workloads.groups import Overlapped
from workloads.optimizer import adamw
from workloads.precision import computing
from workloads.topology import Topology

BATCH = 512


def bare(model: Bert, device: Device) -> tuple[nn.Module, nn.Module]:
    return computing(model, torch.bfloat16), model


def ddp(model: Bert, device: Device) -> tuple[nn.Module, nn.Module]:
    return Overlapped(computing(model, torch.bfloat16), device).model, model


def fsdp(model: Bert, device: Device) -> tuple[nn.Module, nn.Module]:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model, model


def pace(wrap: Callable[[Bert, Device], tuple[nn.Module, nn.Module]], device: Device, seconds: float) -> float:
    """Samples/s."""
    cuda = device.kind == "cuda"
    torch.manual_seed(0)
    model = Bert(replace(SIZES["base" if cuda else "tiny"], dropout=0.0)).to(device.torch_device).train()
    if cuda:
        model.compile_regions()
    called, owner = wrap(model, device)
    optimizer: Any = adamw([{"params": list(owner.parameters())}], device)
    batch = bert.some_batch(Corpus(128), BATCH if cuda else 8, device)
    windows = Windows(seconds, 10)
    with device.attention("auto"):
        while True:
            called(*batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            if not windows.step():
                return len(batch.is_next) / statistics.median(windows.times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rehearse", action="store_true", help="the tiny model on a CPU, uncompiled")
    args = parser.parse_args()
    device = Device(Topology()) if args.rehearse else CudaDevice(Topology())
    card = None if args.rehearse else device.torch_device
    dist.init_process_group(device.backend, store=dist.HashStore(), rank=0, world_size=1, device_id=card)
    base = pace(bare, device, args.seconds)
    print(f"{'BERT-base, world size 1':<28} {'samples/s':>10} {'overhead':>9}")
    for name, wrap in (("bare", bare), ("DDP", ddp), ("FSDP2", fsdp), ("bare, again", bare)):
        rate = base if name == "bare" else pace(wrap, device, args.seconds)
        print(f"{name:<28} {rate:>10,.0f} {base / rate - 1:>9.1%}", flush=True)
    if args.rehearse:
        print("rehearsed on a CPU: the figures mean nothing")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
