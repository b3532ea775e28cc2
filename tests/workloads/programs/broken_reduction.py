"""A language model's training on a cluster that reduces wrongly: python broken_reduction.py FAULT MODULE ARGS…"""

from __future__ import annotations

import importlib
import sys

import workloads.early  # noqa: F401

import torch.distributed as dist  # isort: skip

from workloads import lm
from workloads.groups import Overlapped

honest = Overlapped._sum


def sum_for_mean(self, state, bucket):
    """As if nobody had divided by the number of ranks."""
    return honest(self, state, bucket).then(lambda done: done.value() * dist.get_world_size())


def left_out(self, state, bucket):
    """The last rank's gradients do not arrive; nobody notices anything."""
    if dist.get_rank() == dist.get_world_size() - 1:
        bucket.buffer().zero_()
    return honest(self, state, bucket)


if __name__ == "__main__":
    _, fault, module, *rest = sys.argv
    sys.argv = [module, *rest]
    Overlapped._sum = {"none": honest, "sum-for-mean": sum_for_mean, "left-out": left_out}[fault]
    lm.main(importlib.import_module(f"workloads.{module}").FAMILY)
