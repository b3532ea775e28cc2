from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from workloads import checkpoints
from workloads.checkpoints import CheckpointError, load, plain_name, save
from workloads.lora import ADAPTERS, Lora, adapt

PROGRAM = Path(__file__).parent / "programs" / "sharded.py"
Start = Callable[..., subprocess.Popen[str]]


def model_of(value: float) -> nn.Module:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def trained(model: nn.Module, steps: int = 3) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def test_model_optimizer_state_and_random_numbers_come_back(tmp_path: Path) -> None:
    model = model_of(1.0)
    optimizer = trained(model)
    path = save(tmp_path, 30, model, optimizer, {"consumed": 30, "note": "x"})
    assert path == tmp_path / "checkpoint_step_000030"
    drawn = torch.rand(3)
    other = model_of(0.0)
    fresh = torch.optim.AdamW(other.parameters(), lr=0.1)
    state = load(tmp_path, other, fresh)
    assert state == {"consumed": 30, "note": "x", "step": 30, "world": 1, "optimizer": True, "base": False}
    assert torch.equal(torch.rand(3), drawn)
    assert torch.equal(other.weight, model.weight)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        kept, restored = optimizer.state[mine], fresh.state[theirs]
        assert kept.keys() == restored.keys()
        assert all(torch.equal(kept[name], restored[name]) for name in kept)
    assert fresh.param_groups[0]["lr"] == 0.1


def test_without_optimizer_state_the_optimizer_stays_fresh_and_it_is_said(tmp_path: Path) -> None:
    save(tmp_path, 1, model_of(1.0), None, {})
    model = model_of(0.0)
    optimizer = torch.optim.AdamW(model.parameters())
    assert load(tmp_path, model, optimizer)["optimizer"] is False
    assert not optimizer.state


def test_the_latest_is_loaded_or_the_one_that_is_named(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step, model_of(float(step)), None, {})
    model = model_of(0.0)
    assert load(tmp_path, model)["step"] == 30
    assert load(tmp_path / "checkpoint_step_000020", model)["step"] == 20
    assert model.weight[0, 0] == 20
    with pytest.raises(CheckpointError, match=r"checkpoint_step_000040: no checkpoint there; there are .*_000010"):
        load(tmp_path / "checkpoint_step_000040", model)
    with pytest.raises(CheckpointError, match="no checkpoint there"):
        load(tmp_path / "elsewhere", model)


def test_only_the_last_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step, model_of(1.0), None, {}, keep=2)
    assert sorted(place.name for place in tmp_path.iterdir()) == ["checkpoint_step_000003", "checkpoint_step_000004"]
    save(tmp_path, 1, model_of(1.0), None, {}, keep=2)  # set back: what was just saved is not the oldest
    assert sorted(place.name for place in tmp_path.iterdir()) == ["checkpoint_step_000001", "checkpoint_step_000004"]


def test_another_model_is_told_with_names_and_shapes(tmp_path: Path) -> None:
    save(tmp_path, 1, nn.Sequential(nn.Linear(3, 2)), None, {})
    with pytest.raises(CheckpointError, match=r"it lacks model\.bias, model\.weight"):
        load(tmp_path, nn.Linear(3, 2))
    with pytest.raises(CheckpointError, match=r"model\.0\.weight is \(2, 3\) there, \(2, 4\) here"):
        load(tmp_path, nn.Sequential(nn.Linear(4, 2)))


def adapted(targets: list[str]) -> nn.Module:
    model = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)})
    adapt(model, Lora(2, 2.0, targets))
    return model


def test_a_finished_model_s_weights_come_under_fresh_adapters(tmp_path: Path) -> None:
    base = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)})
    save(tmp_path, 7, base, torch.optim.AdamW(base.parameters()), {})
    model = adapted(["a"])
    first, drawn = model["a"].lora_A.clone(), torch.get_rng_state()
    optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    state = load(tmp_path, model, optimizer, adapters=ADAPTERS)
    assert (state["base"], state["optimizer"], optimizer.state) == (True, False, {})
    assert torch.equal(model["a"].weight, base["a"].weight)
    assert torch.equal(model["a"].lora_A, first)
    assert torch.equal(torch.get_rng_state(), drawn)
    save(tmp_path, 8, model, None, {})
    again = adapted(["a"])
    assert load(tmp_path, again, adapters=ADAPTERS)["base"] is False
    assert torch.equal(again["a"].lora_A, first)


@pytest.mark.parametrize("targets", [[], ["a"]])
def test_adapters_that_the_model_has_not_are_not_left_out_unnoticed(tmp_path: Path, targets: list[str]) -> None:
    save(tmp_path, 1, adapted(["a", "b"]), None, {})
    with pytest.raises(CheckpointError, match=r"has adapters that this model has not: .*model\.b\.lora_A, model\.b"):
        load(tmp_path, adapted(targets), adapters=ADAPTERS)
    part = nn.ModuleDict({"b": nn.Linear(3, 2)})  # as on one rank of a pipeline
    adapt(part, Lora(2, 2.0, ["b"]))
    load(tmp_path, part, adapters=ADAPTERS)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("module.layers.0.weight", "layers.0.weight"),
        ("_orig_mod.module.a.b", "a.b"),
        ("layers.0._checkpoint_wrapped_module.a", "layers.0.a"),
        ("submodule.weight", "submodule.weight"),
    ],
)
def test_names_are_those_of_the_plain_model(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def test_parts_of_a_pipeline_make_a_whole_checkpoint(tmp_path: Path) -> None:
    whole = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    parts = [nn.ModuleDict({"a": whole["a"]}), nn.ModuleDict({"b": whole["b"]})]
    optimizer = torch.optim.AdamW(whole.parameters())
    sum(layer(torch.ones(1, 2)).sum() for layer in whole.values()).backward()
    optimizer.step()
    save(tmp_path, 1, parts, optimizer, {})
    other = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    load(tmp_path, other, torch.optim.AdamW(other.parameters()))
    assert torch.equal(other["b"].weight, whole["b"].weight)


def dies_at(event: int, directory: Path, step: int, value: float) -> bool:
    """Save in a child that kills itself before its `event`-th change below the directory; whether it got that far."""
    child = os.fork()
    if not child:
        seen = 0

        def hook(name: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            changes = name in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
            if changes or (name == "open" and str(directory) in str(arguments[0])):
                if seen == event:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1

        sys.addaudithook(hook)
        try:
            save(directory, step, model_of(value), None, {"value": value}, keep=2)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("step", [20, 10], ids=["new", "replacing"])
def test_a_kill_at_any_moment_of_saving_leaves_the_last_good_one(tmp_path: Path, step: int) -> None:
    torch.set_num_threads(1)
    event, outcomes = 0, set()
    while True:
        directory = tmp_path / str(event)
        save(directory, 5, model_of(5.0), None, {"value": 5.0})
        save(directory, 10, model_of(1.0), None, {"value": 1.0})
        killed = dies_at(event, directory, step, 2.0)
        model = model_of(0.0)
        value = load(directory, model)["value"]
        assert value in (1.0, 2.0)
        assert set(model.weight.flatten().tolist()) == {value}  # whole, and of one save
        outcomes.add((killed, value))
        save(directory, 30, model_of(3.0), None, {"value": 3.0})  # what the dead one left is in nobody's way
        assert load(directory, model)["value"] == 3.0
        assert not [place for place in directory.iterdir() if place.name.startswith(".")]
        if not killed:
            break
        event += 1
    assert {(True, 1.0), (True, 2.0), (False, 2.0)} <= outcomes
    assert event > 5


def run(start: Start, tmp_path: Path, world: int, *arguments: str) -> dict[str, float]:
    store = tmp_path / f"store-{world}-{len(list(tmp_path.iterdir()))}"
    ranks = [
        start(str(PROGRAM), *arguments, RANK=str(rank), WORLD_SIZE=str(world), STORE=str(store))
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=120) for process in ranks]
    assert [process.returncode for process in ranks] == [0] * world, outputs
    losses: dict[str, float] = json.loads(outputs[0][0].splitlines()[-1])
    return losses


def test_four_processes_resume_as_two_with_the_same_loss_curve(start: Start, tmp_path: Path) -> None:
    directory = str(tmp_path / "checkpoints")
    whole = run(start, tmp_path, 1, "10", "-", "-")
    four = run(start, tmp_path, 4, "5", directory, "-")
    two = run(start, tmp_path, 2, "10", directory, directory)
    assert four == pytest.approx({step: whole[step] for step in four}, abs=1e-6)
    assert two == pytest.approx({step: whole[step] for step in map(str, range(6, 11))}, abs=1e-6)
    assert checkpoints.resolve(directory).name == "checkpoint_step_000010"
