"""What makes BERT fast leaves its mathematics alone."""

from __future__ import annotations

import argparse
import math
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from workloads import compiling, memory
from workloads.bert_model import SIZES, Bert
from workloads.data import Ahead, Corpus, Slice
from workloads.device import Device
from workloads.precision import Computing, computing
from workloads.topology import Topology

# PyTorch's compiler warns about itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")


def model() -> Bert:
    torch.manual_seed(0)
    return Bert(replace(SIZES["tiny"], layers=3)).train()


def batch(samples: int = 8) -> Any:
    return Corpus(32).batch(Slice(tuple(range(samples)), samples), 0, samples)


def loss_and_gradients(called: torch.nn.Module, bert: Bert) -> tuple[float, dict[str, torch.Tensor]]:
    bert.zero_grad()
    loss = called(*batch())
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in bert.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_regions_compute_what_the_plain_model_does(dtype: torch.dtype, monkeypatch: Any) -> None:
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")  # everything of compilation but the code at its end
    plain = model()
    expected, gradients = loss_and_gradients(computing(plain, dtype), plain)
    fast = model()
    fast.compile_regions()
    loss, others = loss_and_gradients(computing(fast, dtype), fast)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    assert loss == pytest.approx(expected, abs=tolerance)
    for name, gradient in gradients.items():
        assert (others[name] - gradient).norm() <= tolerance * max(gradient.norm(), 1e-2), name


def test_alike_layers_are_compiled_once(monkeypatch: Any) -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(compiling, "BACKEND", backend)
    bert = model()
    bert.compile_regions()
    called = computing(bert, torch.bfloat16)
    for _ in range(3):  # nor again with the next step's casts
        called(*batch()).backward()
    assert len(graphs) == 3, "embedding, layer, loss"


def test_bfloat16_is_computed_over_float32_parameters() -> None:
    bert = model()
    expected, gradients = loss_and_gradients(bert, bert)
    loss, lower = loss_and_gradients(Computing(bert, torch.bfloat16), bert)
    assert loss != expected
    assert loss == pytest.approx(expected, abs=2e-2)
    assert {parameter.dtype for parameter in bert.parameters()} == {torch.float32}
    for name, gradient in gradients.items():
        assert lower[name].dtype == torch.float32
        assert (lower[name] - gradient).norm() < 0.1 * max(gradient.norm(), 1e-2), name


def test_float32_is_computed_by_the_model_itself() -> None:
    bert = model()
    assert computing(bert, torch.float32) is bert


def test_parameters_are_cast_layer_by_layer() -> None:
    blocks = Computing(model(), torch.bfloat16)._blocks
    assert [len({name.split(".")[1] for name in block if name.startswith("layers.")}) for block in blocks] == [
        0,
        1,
        1,
        1,
    ]
    names = [name for block in blocks for name in block]
    assert sorted(names) == sorted(name for name, _ in model().named_parameters())


def test_the_next_batch_is_made_when_asked_and_none_is_lost() -> None:
    made = []

    def items() -> Any:
        for number in range(3):
            made.append(number)
            yield number

    ahead = Ahead(items())
    assert next(ahead) == 0
    assert made == [0]
    ahead.prepare()
    ahead.prepare()
    assert made == [0, 1]
    assert list(ahead) == [1, 2]
    ahead.prepare()
    assert list(ahead) == []


def test_the_batch_that_would_fit_is_found_from_two_small_ones() -> None:
    tried = []

    def peak_of(samples: int) -> int:
        tried.append(samples)
        return 1_000 + 10 * samples

    assert memory.largest_batch(peak_of, 512, 4_000) == 280  # (4000 · 95 % − 1000) / 10, in eights
    assert tried == [32, 64]
    assert memory.largest_batch(peak_of, 512, 1_120) == 6
    assert memory.largest_batch(peak_of, 512, 1_000) == 0
    assert memory.largest_batch(peak_of, 4, 10_000) == 3, "never what has just failed"


class SmallCard(Device):
    """A CPU that says it is a card of 1 GiB, of which a sample takes 1 MiB."""

    memory = 1 << 30
    peak = 0

    @property
    def peak_memory(self) -> int:
        return self.peak

    def forget_peak_memory(self) -> None:
        self.peak = 0


def test_running_out_of_memory_names_the_batch_size_that_fits() -> None:
    device = SmallCard(Topology())
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight])
    held: list[weakref.ref[torch.Tensor]] = []

    def work() -> None:
        activations = torch.ones(8)
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory")

    def loss_of(samples: int) -> torch.Tensor:
        assert held[0]() is None, "the failed step's tensors still take their memory"
        device.peak = samples << 20
        return weight.sum()

    with pytest.raises(memory.DoesNotFit, match=r"2048 does not fit into the 1 GiB .*--batch-size 968 would"):
        memory.explained(work, loss_of, device, 2048, optimizer)


def test_what_fits_is_not_explained() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])

    def loss_of(samples: int) -> torch.Tensor:
        raise AssertionError("nothing to try out")

    def fail() -> None:
        raise ValueError("other")

    assert memory.explained(lambda: 7, loss_of, Device(Topology()), 1, optimizer) == 7
    with pytest.raises(ValueError, match="other"):
        memory.explained(fail, loss_of, Device(Topology()), 1, optimizer)


def test_the_loss_of_the_first_batch_is_that_of_guessing() -> None:
    loss, _ = loss_and_gradients(bert := model(), bert)
    assert loss == pytest.approx(math.log(64) + math.log(2), abs=0.3)


@pytest.mark.parametrize(
    ("choice", "kind", "operations", "on"),
    [("auto", "cpu", 1e18, False), ("on", "cpu", 1.0, True), ("off", "cpu", 1e18, False), ("auto", "xla", 1e18, False)],
)
def test_compilation_is_decided_before_the_first_step(choice: str, kind: str, operations: float, on: bool) -> None:
    device = Device(Topology())
    device.kind = kind
    decision = compiling.decide(choice, device, Topology(), operations=operations)
    assert decision.on is on
    assert decision.why
    assert decision.fields["compile"] == ("on" if on else "off")


class Hopper(Device):
    kind = "cuda"
    model_name = "NVIDIA H200"


@pytest.mark.parametrize(("seconds", "on"), [(1.0, False), (100.0, True)])
def test_compilation_has_to_earn_back_what_it_costs(seconds: float, on: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(compiling, "available", lambda: True)
    decision = compiling.decide("auto", Hopper(Topology()), Topology(), operations=0.4 * 989.4e12 * seconds)
    assert decision.on is on
    assert "earn" in decision.why


def test_tensor_parallel_blocks_are_left_uncompiled_however_long_they_train(monkeypatch: Any) -> None:
    monkeypatch.setattr(compiling, "available", lambda: True)
    decision = compiling.decide("auto", Hopper(Topology()), Topology(), operations=1e18, divided_tensors=True)
    assert not decision.on
    assert "tensor-parallel" in decision.why


def test_an_image_without_a_compiler_is_no_error(monkeypatch: Any) -> None:
    monkeypatch.setattr(compiling, "available", lambda: False)
    decision = compiling.decide("auto", Hopper(Topology()), Topology(), operations=1e18)
    assert not decision.on
    assert "compiler" in decision.why


def test_the_options_say_what_they_do() -> None:
    parser = argparse.ArgumentParser()
    compiling.add_option(parser)
    assert parser.parse_args([]).compile == "auto"
