"""BERT itself as whole jobs on the stand-in: the same losses however eight ranks are laid out; both launchers (L13)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allranks.plan import Accelerator
from allranks.result import TrainingRun, Verdict
from allranks.run import run
from allranks.settings import Settings, Workload
from allranks.standin_process import start_standin
from e2e.statements import RunStatements

SHORT = ("--epochs", "1", "--steps-per-epoch", "12", "--batch-size", "4", "--warmup-steps", "2")
BERT = Workload("bert", "workloads.bert", SHORT)


def on_nodes(directory: Path, nodes: str, **settings: Any) -> TrainingRun:
    with start_standin(directory / "standin", [nodes]) as kubeconfig:
        where = {"cluster": "standin", "kubeconfig": kubeconfig, "artefacts": directory / "runs"}
        return run(Settings(Accelerator.NVIDIA, **where, **settings), BERT)


def losses(judged: TrainingRun) -> dict[int, dict[int, float]]:
    """Rank → step → loss, from the records in the run's logs."""
    assert judged.artefacts is not None
    curves: dict[int, dict[int, float]] = {rank: {} for rank in judged.plan.ranks}
    for path in (Path(judged.artefacts) / "logs").iterdir():
        for line in path.read_text().splitlines():
            _, mark, text = line.partition("ALLRANKS ")
            record = json.loads(text) if mark else {}
            if record.get("event") == "step":
                curves[record["rank"]][record["step"]] = record["loss"]
    return curves


def test_eight_ranks_have_one_loss_curve_however_they_are_laid_out(tmp_path: Path) -> None:
    layouts: dict[str, tuple[str, dict[str, Any]]] = {
        "1 × 8": ("nvidia:1x8", {}),
        "2 × 4": ("nvidia:2x4", {}),
        "1 × 8 threads": ("nvidia:1x8", {"processes_per_node": 1, "threads_per_process": 8}),
    }
    runs = {name: on_nodes(tmp_path / name, nodes, **settings) for name, (nodes, settings) in layouts.items()}
    expected = losses(runs["1 × 8"])[0]
    assert list(expected) == list(range(1, 13))
    assert expected[12] < expected[1]
    for name, judged in runs.items():
        assert judged.verdict is Verdict.PASSED, (name, judged.findings)
        assert [rank.world for rank in judged.ranks] == [8] * 8, name
        for rank, curve in losses(judged).items():
            assert curve == pytest.approx(expected, abs=1e-5), f"{name}, rank {rank}"


def test_bert_under_torchrun_accounts_for_every_rank(tmp_path: Path) -> None:
    judged = on_nodes(tmp_path, "nvidia:2x2", launcher="torchrun")
    assert judged.verdict is Verdict.PASSED, judged.findings
    assert [rank.source for rank in judged.ranks] == ["log"] * 4
    RunStatements().test_job_succeeds(judged)
