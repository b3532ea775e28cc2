"""A cluster that sums wrong, for real: GPT-2 with an all-reduce of gradients that FAULT breaks. Runs in the pods."""

import runpy
from typing import Any

import torch.distributed as dist

FAULT = "none"

_all_reduce = dist.all_reduce


def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if tensor.numel() > 1000:  # gradients; losses and counts are summed rightly
        if FAULT == "left_out" and dist.get_rank() == dist.get_world_size() - 1:
            tensor.zero_()
        if FAULT == "sum_for_mean":
            tensor.mul_(dist.get_world_size())
    return _all_reduce(tensor, *args, **kwargs)


dist.all_reduce = all_reduce
runpy.run_module("workloads.gpt2", run_name="__main__", alter_sys=True)
