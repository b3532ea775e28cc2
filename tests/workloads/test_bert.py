"""Real training in real processes."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workloads.device import open_device
from workloads.topology import Topology

Start = Callable[..., subprocess.Popen[str]]
SHORT = ("--epochs", "2", "--steps-per-epoch", "5", "--seq-len", "16")


def losses(outcome: Any) -> list[float]:
    return [record["loss"] for record in outcome.records("step")]


def assert_complete(outcome: Any, world: int) -> None:
    """Every rank in this process: records without gaps, all saying the same world, the end saying how many."""
    assert outcome.code == 0, outcome.err
    for rank in {record["rank"] for record in outcome.records()}:
        records = [record for record in outcome.records() if record["rank"] == rank]
        assert [record["seq"] for record in records] == list(range(len(records)))
        assert records[0]["event"] == "start"
        assert records[-1]["event"] == "end"
        assert records[-1]["records"] == len(records)
        assert {record["world"] for record in records} == {world}
        human = [line for line in outcome.out.splitlines() if line.startswith(f"[Rank {rank}] - local_samples=")]
        assert len(human) == 1


def test_the_default_run_learns(bert: Any) -> None:
    (alone,) = bert()
    assert_complete(alone, 1)
    (start,), (end,) = alone.records("start"), alone.records("end")
    curve = losses(alone)
    assert sum(curve[-5:]) / 5 < 0.9 * sum(curve[:5]) / 5
    assert (end["loss_first"], end["loss_last"]) == (curve[0], curve[-1])
    assert start["steps"] == end["steps"] == 60
    assert start["warmup_steps"] == end["warmup_steps"] == 3
    assert end["samples"] == 57 * 8
    assert end["throughput"] == pytest.approx(end["samples"] / end["total_time"], rel=1e-6)
    assert end["epoch_time"] == pytest.approx(end["total_time"] / 57 * 20, rel=1e-6)
    assert (start["device"], start["backend"]) == ("cpu", "gloo")
    assert "standin" not in start
    steps = alone.records("step")
    assert [record["warmup"] for record in steps] == [True] * 3 + [False] * 57
    assert all(0 < record["local_time"] <= record["step_time"] for record in steps)
    assert alone.err == ""


def test_two_processes_train_as_one_does(bert: Any, reference: Any) -> None:
    two = bert(*SHORT, "--batch-size", "4", processes=2)
    for outcome in two:
        assert_complete(outcome, 2)
        assert losses(outcome) == pytest.approx(losses(reference), abs=1e-5)
        assert all(0 < record["local_time"] <= record["step_time"] for record in outcome.records("step"))
    assert [record["rank"] for outcome in two for record in outcome.records("end")] == [0, 1]
    assert len({record["fingerprint"] for outcome in two for record in outcome.records("end")}) == 1
    assert {record["global_batch"] for outcome in [reference, *two] for record in outcome.records("start")} == {8}


def test_an_uneven_dataset_is_visited_once_and_trains_the_same(bert: Any) -> None:
    args = ("--samples", "11", "--epochs", "2", "--seq-len", "16", "--warmup-steps", "1")
    (alone,) = bert(*args, "--batch-size", "4")
    two = bert(*args, "--batch-size", "2", processes=2)
    for outcome in two:
        assert_complete(outcome, 2)
        assert losses(outcome) == pytest.approx(losses(alone), abs=1e-5)
    by_epoch = [[record["samples"] for record in outcome.records("epoch")] for outcome in two]
    assert [sum(both) for both in zip(*by_epoch, strict=True)] == [11, 11]


def test_threads_of_one_process_train_as_processes_do(bert: Any, reference: Any) -> None:
    (threads,) = bert(*SHORT, "--batch-size", "2", "--nthread_per_process", "4")
    assert_complete(threads, 4)
    ends = threads.records("end")
    assert sorted(record["rank"] for record in ends) == [0, 1, 2, 3]
    assert len({record["fingerprint"] for record in ends}) == 1
    for rank in range(4):
        curve = [record["loss"] for record in threads.records("step") if record["rank"] == rank]
        assert curve == pytest.approx(losses(reference), abs=1e-5)


def test_threads_of_two_processes_are_four_ranks(bert: Any) -> None:
    both = bert(*SHORT, "--batch-size", "2", "--nthread-per-process", "2", processes=2)
    for outcome in both:
        assert_complete(outcome, 4)
    ends = [record for outcome in both for record in outcome.records("end")]
    assert sorted(record["rank"] for record in ends) == [0, 1, 2, 3]
    assert len({record["fingerprint"] for record in ends}) == 1
    assert sorted(r["local_rank"] for outcome in both for r in outcome.records("start")) == [0, 1, 2, 3]


def test_the_world_is_what_the_process_group_says(bert: Any) -> None:
    """N2: processes that are all told to be rank 0 of 1 say so, each, whatever else the environment claims."""
    both = bert(*SHORT, processes=2, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    assert [(r["rank"], r["world"]) for outcome in both for r in outcome.records("end")] == [(0, 1), (0, 1)]


def test_runs_repeat_exactly_and_seeds_differ(bert: Any, reference: Any) -> None:
    again, other = (bert(*SHORT, "--batch-size", "8", "--seed", seed)[0].records("end")[0] for seed in "01")
    assert reference.records("end")[0]["fingerprint"] == again["fingerprint"] != other["fingerprint"]


def test_a_standin_node_says_in_whose_place_it_computes(bert: Any) -> None:
    (outcome,) = bert(*SHORT, "--device", "cuda", ALLRANKS_STANDIN_DEVICE="cpu", POD_NAME="bert-0", NODE_NAME="node-a")
    assert_complete(outcome, 1)
    (start,) = outcome.records("start")
    assert (start["device"], start["standin"], start["size"]) == ("cpu", "nvidia", "tiny")
    assert (start["pod"], start["node"], start["run"]) == ("bert-0", "node-a", "test")


@pytest.mark.parametrize(("asked", "standin"), [("cuda", "nvidia"), ("xla", "neuron"), ("auto", None), ("cpu", None)])
def test_the_cpu_stands_in_for_what_was_asked_by_name(
    asked: str, standin: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLRANKS_STANDIN_DEVICE", "cpu")
    device = open_device(asked, Topology())
    assert (device.kind, device.name, device.standin) == ("cpu", "cpu", standin)


@pytest.mark.parametrize("device", ["cuda", "xla"])
def test_an_absent_device_is_an_error_and_never_the_cpu(bert: Any, device: str) -> None:
    import torch

    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA devices")
    (outcome,) = bert(*SHORT, "--device", device)
    assert outcome.code == 1
    (error,) = outcome.records()
    assert (error["event"], error["type"], error["world"]) == ("error", "DeviceError", None)
    assert f"--device {device}" in error["message"]
    assert "Traceback" in outcome.err


def test_more_warmup_than_steps_exits_2(bert: Any) -> None:
    (outcome,) = bert("--warmup-steps", "99", "--samples", "8")
    assert outcome.code == 2
    assert "leaves nothing to measure" in outcome.err
    assert "Traceback" not in outcome.err


def test_an_impossible_environment_exits_2(bert: Any) -> None:
    (outcome,) = bert(*SHORT, RANK="5")
    assert outcome.code == 2
    assert "process rank 5 is not one of the 1 processes" in outcome.err


def test_a_nan_loss_is_reported_as_it_is(bert: Any) -> None:
    (outcome,) = bert(*SHORT, "--lr", "1e30")
    assert outcome.code == 0, outcome.err
    (end,) = outcome.records("end")
    assert end["loss_last"] == "nan"


def test_a_peer_that_never_comes_is_a_rendezvous_error_with_a_deadline(bert: Any) -> None:
    (outcome,) = bert(
        *SHORT, "--timeout", "1", RANK="1", LOCAL_RANK="1", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_PORT="1"
    )
    assert outcome.code == 1
    (error,) = outcome.records("error")
    assert error["type"] == "RendezvousError"
    assert "no id from the root rank" in error["message"]


def test_nobody_at_the_masters_address_is_named(bert: Any) -> None:
    told = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])  # closed again below, so that nobody answers there
    (outcome,) = bert(*SHORT, "--timeout", "1", **told, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    assert outcome.code == 1
    (error,) = outcome.records("error")
    assert error["type"] == "RendezvousError"
    assert f"process 1 of 2 found no rendezvous at 127.0.0.1:{port} within 1 s" in error["message"]


def test_two_nodes_of_one_process_meet_at_the_masters_address(bert: Any) -> None:
    """L8 for real: one process a node is parallel, though no node has a second process."""
    both = nodes(bert, *SHORT)
    for outcome in both:
        assert_complete(outcome, 2)
    ends = [record for outcome in both for record in outcome.records("end")]
    assert [record["rank"] for record in ends] == [0, 1]
    assert len({record["fingerprint"] for record in ends}) == 1


def nodes(bert: Any, *args: str) -> list[Any]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    told = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return list(bert(*args, processes=2, **told))


def test_sigterm_prints_the_stack_even_inside_a_collective(start: Start, tmp_path: Path) -> None:
    """The rank waits in a collective for a peer that is stopped; a Python handler would never run there."""
    told = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "ALLRANKS_RUN_DIR": str(tmp_path),
        "TORCHELASTIC_RUN_ID": "test",
    }
    ranks = [
        start("-m", "workloads.bert", "--device", "cpu", "--steps-per-epoch", "100000", **told, RANK=r, LOCAL_RANK=r)
        for r in ("0", "1")
    ]
    for process in ranks:
        assert process.stdout is not None
        while '"event":"step"' not in process.stdout.readline():
            assert process.poll() is None
    ranks[1].send_signal(signal.SIGSTOP)
    try:
        assert ranks[0].stdout is not None
        seen = set()
        while "ALLRANKS" in (line := next_line(ranks[0])):
            seen.add(line)
        ranks[0].send_signal(signal.SIGTERM)
        _, err = ranks[0].communicate(timeout=60)
    finally:
        ranks[1].send_signal(signal.SIGCONT)
    assert ranks[0].returncode == -signal.SIGTERM
    assert "most recent call first" in err
    assert "bert.py" in err


def next_line(process: subprocess.Popen[str]) -> str:
    """The next line, or nothing once the process has been silent for a second: it is stuck."""
    import select

    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 1.0)
    return process.stdout.readline() if ready else ""


def test_sigterm_while_torch_is_imported_prints_the_stack_too(start: Start, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import signal\nprint('importing', flush=True)\nsignal.pause()\n")
    process = start("-c", "import sys; sys.path.insert(0, '.'); import workloads.bert", PYTHONSAFEPATH="")
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert "torch.py" in err
