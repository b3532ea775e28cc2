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


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    return on_nodes(tmp_path_factory.mktemp("one-node"), "nvidia:1x8")


def test_eight_processes_are_all_accounted_for(one_node: TrainingRun) -> None:
    assert one_node.verdict is Verdict.PASSED, one_node.findings
    assert [rank.world for rank in one_node.ranks] == [8] * 8
    curves = losses(one_node)
    assert [len(curve) for curve in curves.values()] == [12] * 8
    assert curves[0][12] < curves[0][1]


@pytest.mark.parametrize(
    ("nodes", "settings"),
    [
        pytest.param("nvidia:2x4", {}, id="2-nodes-4-processes"),
        pytest.param("nvidia:1x8", {"processes_per_node": 1, "threads_per_process": 8}, id="1-process-8-threads"),
    ],
)
def test_the_losses_do_not_depend_on_the_layout(
    one_node: TrainingRun, tmp_path: Path, nodes: str, settings: dict[str, Any]
) -> None:
    other = on_nodes(tmp_path, nodes, **settings)
    assert other.verdict is Verdict.PASSED, other.findings
    assert other.plan.world_size == 8
    expected = losses(one_node)[0]
    for rank, curve in losses(other).items():
        assert curve == pytest.approx(expected, abs=1e-5), f"rank {rank}"


def test_bert_under_torchrun_accounts_for_every_rank(tmp_path: Path) -> None:
    judged = on_nodes(tmp_path, "nvidia:2x2", launcher="torchrun")
    assert judged.verdict is Verdict.PASSED, judged.findings
    assert [rank.source for rank in judged.ranks] == ["log"] * 4
    RunStatements().test_job_succeeds(judged)
