"""Trains a small sharded model (FSDP2) on slices of global batches: argv is steps, save directory or -, load or -."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from workloads import checkpoints
from workloads.data import GlobalBatches


def main() -> None:
    steps, save, load = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 1))  # 17: shards of unequal size
    data = torch.randn(50, 6)
    target = data.sum(dim=1, keepdim=True).sin()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches, consumed = GlobalBatches(50, 12), 0
    if load != "-":
        consumed = checkpoints.load(load, model, optimizer)["consumed"]
    losses = {}
    for step in range(consumed, steps):
        mine = batches.slice(step, rank, world)
        loss = ((model(data[mine]) - target[mine]) ** 2).sum() / 12
        (loss * world).backward()  # gradients are averaged over ranks
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses[step + 1] = total.item()
        if save != "-" and (step + 1) % 5 == 0:
            checkpoints.save(save, step + 1, model, optimizer, {"consumed": step + 1}, keep=2)
    if rank == 0:
        print(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
