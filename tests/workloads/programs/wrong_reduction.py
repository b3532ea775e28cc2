"""A language model's training on a cluster that reduces wrongly: python wrong_reduction.py FAULT MODULE ARGS…

`left_out`: what the last rank of a group adds does not arrive. `sum_for_mean`: nobody has divided by the number of
ranks. Only large tensors, that is gradients and activations, are hit; losses and counts of ranks are summed rightly.
"""

import workloads.early  # noqa: F401

import functools  # isort: skip
import inspect  # isort: skip
import runpy  # isort: skip
import sys  # isort: skip

import torch.distributed as dist  # isort: skip
import torch.distributed._functional_collectives as functional  # isort: skip

LARGE = 1000


def left_out(tensor, group):
    return tensor * (dist.get_rank(group) < dist.get_world_size(group) - 1)


def sum_for_mean(tensor, group):
    return tensor * dist.get_world_size(group)


def wrong(collective, fault):
    """`collective` with that fault."""
    known = inspect.signature(collective)

    @functools.wraps(collective)
    def reduce(*args, **kwargs):
        told = known.bind(*args, **kwargs)
        group = told.arguments.get("group")
        if isinstance(group, tuple):  # a mesh and one of its dimensions
            group = group[0].get_group(group[1])
        summand = next(name for name in ("self", "input", "tensor") if name in told.arguments)
        tensor = told.arguments[summand]
        if tensor.numel() > LARGE:
            # In place, as a collective of c10d is; a functional one leaves its argument as it is.
            wrong = fault(tensor, group)
            told.arguments[summand] = wrong if summand == "self" else tensor.copy_(wrong)
        return collective(*told.args, **told.kwargs)

    return reduce


def plant(fault):
    for module in (dist, functional):
        for name in ("all_reduce", "reduce_scatter_single", "reduce_scatter_tensor"):  # the last before 2.13
            if hasattr(module, name):
                setattr(module, name, wrong(getattr(module, name), fault))


if __name__ == "__main__":
    _, fault, module, *rest = sys.argv
    sys.argv[1:] = rest
    if fault != "none":
        plant({"left_out": left_out, "sum_for_mean": sum_for_mean}[fault])
    runpy.run_module(f"workloads.{module}", run_name="__main__", alter_sys=True)
