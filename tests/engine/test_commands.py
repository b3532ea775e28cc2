"""The commands as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def allranks(*args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    import os

    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER", "KUBECONFIG")}
    return subprocess.run(
        [sys.executable, "-m", "allranks", *map(str, args)],
        cwd=ROOT, env={**clean, **env}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_render_prints_objects_without_a_cluster() -> None:
    done = allranks(
        "render", "bert", "--accelerator", "nvidia", "--nodes", "2", "--nproc-per-node", "8", "--", "--size", "base"
    )
    assert done.returncode == 0, done.stderr
    kinds = [thing["kind"] for thing in yaml.safe_load_all(done.stdout)]
    assert kinds == ["Namespace", "Job", "Service", "ConfigMap"]
    assert "--size" in done.stdout


def test_render_of_an_unknown_workload_lists_the_known_ones() -> None:
    done = allranks("render", "brt", "--accelerator", "nvidia")
    assert done.returncode == 2
    assert "no workload 'brt'; there are: bert" in done.stderr


@pytest.mark.parametrize("option", ["--nodes", "--nproc-per-node", "--nthread-per-process"])
def test_none_of_something_is_not_all_of_it(option: str) -> None:
    """0 is no number of nodes: it must not be taken for the default."""
    ran = allranks("render", "bert", "--accelerator", "nvidia", option, "0")
    assert ran.returncode == 2
    assert f"argument {option}: invalid number" in ran.stderr


def test_run_in_ci_without_a_kubeconfig_is_unusable(tmp_path: Path) -> None:
    done = allranks("run", "bert", "--accelerator", "nvidia", CI="true", HOME=str(tmp_path))
    assert done.returncode == 2
    assert "CI is set, where the stand-in is never chosen silently" in done.stderr


def test_run_without_such_nodes_is_unusable(cluster: Any, tmp_path: Path) -> None:
    done = allranks(
        "run", "bert", "--accelerator", "neuron", "--kubeconfig", cluster.kubeconfig, "--artefacts", tmp_path
    )
    assert done.returncode == 2
    assert "the cluster has no usable neuron nodes" in done.stderr


def test_inventory_lists_nodes(cluster: Any) -> None:
    done = allranks("inventory", "--kubeconfig", cluster.kubeconfig)
    assert done.returncode == 0, done.stderr
    assert "standin-nvidia-0: 2 nvidia.com/gpu" in done.stdout
    assert "stand-in" in done.stdout
    listed = json.loads(allranks("inventory", "--json", "--kubeconfig", cluster.kubeconfig).stdout)
    assert [node["name"] for node in listed["nvidia"]["pools"][0]["nodes"]] == ["standin-nvidia-0", "standin-nvidia-1"]


def test_clean_removes_expired_namespaces_of_ours_only(cluster: Any) -> None:
    def namespace(name: str, expires: str, label: str = "allranks") -> None:
        metadata = {
            "name": name,
            "labels": {"app.kubernetes.io/managed-by": label, "allranks.dev/run": name},
            "annotations": {"allranks.dev/expires": expires},
        }
        cluster.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    namespace("old", "2020-01-01T00:00:00Z")
    namespace("new", "2999-01-01T00:00:00Z")
    namespace("theirs", "2020-01-01T00:00:00Z", "somebody")
    try:
        done = allranks("clean", "--kubeconfig", cluster.kubeconfig)
        assert done.stdout == "namespace old removed\n", done.stderr
    finally:
        cluster.delete_namespace("new")
        cluster.delete_namespace("theirs")


def test_replay_of_a_directory_that_is_no_run(tmp_path: Path) -> None:
    done = allranks("replay", tmp_path)
    assert done.returncode == 2
    assert "plan.json cannot be read" in done.stderr


def test_replay_of_another_versions_run_says_so(cluster: Any, tmp_path: Path) -> None:
    run = cluster.run("--steps", "2")
    result = Path(run.artefacts) / "result.json"
    result.write_text(result.read_text().replace('"schema": 1', '"schema": 99'))
    done = allranks("replay", run.artefacts)
    assert done.returncode == 2
    assert "is not the evidence of a run as this version keeps it: result schema 99" in done.stderr


def test_artefacts_that_cannot_be_kept_leave_nothing_on_the_cluster(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    where = ("--cluster", "standin", "--kubeconfig", cluster.kubeconfig, "--artefacts", tmp_path / "file")
    done = allranks("run", "bert", "--accelerator", "nvidia", *where)
    assert done.returncode == 2
    assert f"artefacts cannot be kept in {tmp_path / 'file'}" in done.stderr
    assert cluster.left() == []


def test_replay_prints_the_report_and_the_verdict_again(cluster: Any) -> None:
    run = cluster.run("--fault", "silent")
    done = allranks("replay", str(run.artefacts))
    assert done.returncode == 1
    assert done.stdout.rstrip().splitlines()[-1] == run.sentence()
