"""The command `allranks standin`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from allranks.standin.cli import main
from allranks.standin.nodes import NodesError, Pool, make_nodes
from tests.standin.kit import Start


def test_pools_are_read_and_wrong_ones_explained() -> None:
    assert Pool.parse("nvidia:2x8") == Pool("nvidia", 2, 8)
    assert Pool.parse("cpu:3") == Pool("cpu", 3, 0)
    for wrong in ("nvidia:2", "gpu:1x1", "nvidia", "cpu:x"):
        with pytest.raises(NodesError, match="wanted KIND:COUNTxDEVICES"):
            Pool.parse(wrong)


def test_real_gpus_are_dealt_out_only_when_there_are_enough() -> None:
    def bound(pools: list[Pool], gpus: list[str]) -> list[str | None]:
        return [n["metadata"]["annotations"].get("standin.allranks.dev/devices") for n in make_nodes(pools, gpus)]

    gpus = ["NVIDIA H200"] * 4
    assert bound([Pool("nvidia", 2, 2)], gpus) == ["0,1", "2,3"]
    assert bound([Pool("nvidia", 2, 2)], gpus[:3]) == [None, None]
    (node,) = make_nodes([Pool("nvidia", 1, 4)], gpus)
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H200"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"


def test_unusable_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--nodes", "nvidia:2"], ["--log-max-size", "much"], ["--log-max-files", "1"]):
        with pytest.raises(SystemExit) as refused:
            main(arguments)
        assert refused.value.code == 2
    assert "wanted KIND:COUNTxDEVICES" in capsys.readouterr().err


def test_a_port_in_use_is_said(start: Start, tmp_path: Path) -> None:
    client = start("--nodes", "cpu:1")
    command = [
        sys.executable,
        "-m",
        "allranks.standin",
        "--port",
        str(client.address[1]),
        "--root",
        str(tmp_path / "x"),
    ]
    second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 1
    assert f"cannot serve on 127.0.0.1:{client.address[1]}" in second.stderr


def test_it_does_not_import_the_kubernetes_client(start: Start) -> None:
    begun = time.monotonic()
    client = start("--nodes", "cpu:1")
    assert time.monotonic() - begun < 5, "seconds until ready; a fraction of one where the machine is free"
    maps = Path(f"/proc/{client.process.pid}/maps")
    if maps.exists():
        assert "pydantic_core" not in maps.read_text()


def test_the_kubeconfig_is_private_and_goes_with_the_stand_in(start: Start) -> None:
    client = start("--nodes", "cpu:1")
    assert client.kubeconfig.stat().st_mode & 0o077 == 0
    assert client.stop() == 0
    assert not client.kubeconfig.exists()
