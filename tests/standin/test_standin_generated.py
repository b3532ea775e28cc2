"""Pods without processes: followed, entered and judged as any other."""

from pathlib import Path

from allranks.plan import Accelerator
from allranks.result import Verdict
from allranks.run import run
from allranks.settings import Settings, Workload
from allranks.standin_process import start_standin
from tests.standin.kit import Client, running


def test_generated_pods_are_followed_to_a_verdict_with_every_rank(tmp_path: Path):
    """More pods than the manifest names one by one, so that they are pinned by one term."""
    nodes = 70
    with start_standin(tmp_path / "standin", (f"nvidia:{nodes}x4",)) as kubeconfig:
        settings = Settings(Accelerator.NVIDIA, "standin", kubeconfig, artefacts=tmp_path / "runs")
        speech = ("--lines-per-second", "20", "--seconds", "2", "--step-every", "0.5")
        result = run(settings, Workload("generated", "standin.generate", speech))
    assert result.verdict is Verdict.PASSED, [finding.message for finding in result.findings]
    assert result.judgement.reported == tuple(range(4 * nodes))
    assert {rank.exit_code for rank in result.ranks} == {0}
    assert len({rank.node for rank in result.ranks}) == nodes
    logs = list(Path(result.artefacts or "", "logs").iterdir())
    assert len(logs) == nodes
    lines = sum(log.read_bytes().count(b"\n") for log in logs)
    assert lines >= nodes * 4 * 2, "the start and the end of each rank at the least"


def test_a_generated_pod_ends_when_it_is_deleted(standin: Client):
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    command = ["python3", "-m", "workloads.launch", "--rdzv-id", "r", "-m", "standin.generate", "--seconds", "600"]
    container = {"name": "c", "image": "i", "command": command}
    standin.create(path, {"metadata": {"name": "p"}, "spec": {"restartPolicy": "Never", "containers": [container]}})
    standin.until(f"{path}/p", running)
    standin.ask("DELETE", f"{path}/p")
    standin.until_gone(f"{path}/p")
