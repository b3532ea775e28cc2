"""What keeps an XLA device from compiling a step twice, as far as a CPU can show it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from workloads import flops
from workloads.device import Device, _neuron_names
from workloads.optimizer import adamw, set_rate
from workloads.topology import Topology


class Lazy(Device):
    """Says that it is one, and counts how often work is handed over."""

    kind = "xla"
    handed_over = 0

    def end_step(self) -> None:
        self.handed_over += 1


def test_the_optimizer_begins_with_the_state_that_its_first_step_would_make() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 2))
    device = Lazy(Topology())
    begun = adamw([{"params": [weight]}], device).state[weight]
    usual = adamw([{"params": [weight]}], Device(Topology()))
    weight.grad = torch.zeros_like(weight)
    usual.step()
    made = usual.state[weight]
    assert device.handed_over == 1
    assert list(begun) == list(made)
    for name, value in made.items():
        assert (begun[name].shape, begun[name].dtype) == (value.shape, value.dtype), name
        assert not begun[name].any(), name


@pytest.mark.parametrize("rate", [0.0, 1.0, 3e-4])
def test_a_rate_is_part_of_a_tensor_with_a_dimension_whatever_it_is(rate: float) -> None:
    optimizer = adamw([{"params": [torch.nn.Parameter(torch.ones(2))]}], Lazy(Topology()))
    set_rate(optimizer, rate, Lazy(Topology()))
    (value,) = (group["lr"] for group in optimizer.param_groups)
    assert value.dim() == 0
    assert value.item() == pytest.approx(rate)
    assert value._base.dim() == 1


def test_the_probe_hands_over_each_product_by_itself() -> None:
    device = Lazy(Topology())
    flops.measure(device, torch.float32, size=16, seconds=0.0)
    assert device.handed_over == 10


@pytest.mark.parametrize(
    ("chip", "cores", "names"),
    [
        ("trn1", "", ["trn1"]),
        ("trn2", "", ["trn2", "LNC2"]),
        ("trn2", "1", ["trn2", "LNC1"]),
        ("trn3", "", ["trn3", "LNC2"]),
    ],
)
def test_neuron_devices_are_named_by_chip_and_cores(
    chip: str, cores: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torch_neuronx"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "utils.py").write_text(f"def get_platform_target():\n    return {chip!r}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", cores)
    for module in ("torch_neuronx", "torch_neuronx.utils"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert _neuron_names() == names
    for module in ("torch_neuronx", "torch_neuronx.utils"):
        sys.modules.pop(module, None)
