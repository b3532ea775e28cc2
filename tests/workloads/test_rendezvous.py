from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from workloads.rendezvous import RendezvousError, unique_id, withdraw
from workloads.topology import Topology


def test_root_publishes_and_all_others_get_the_same_id(tmp_path: Path) -> None:
    got: list[str] = []
    others = [
        threading.Thread(target=lambda: got.append(unique_id(tmp_path, "0", root=False, timeout=30))) for _ in range(8)
    ]
    for thread in others:
        thread.start()
    identity = unique_id(tmp_path, "0", root=True, timeout=30)
    for thread in others:
        thread.join()
    assert got == [identity] * 8
    assert [path.name for path in tmp_path.iterdir()] == ["unique-id-0"]
    assert (tmp_path / "unique-id-0").stat().st_mode & 0o777 == 0o600


def publish_in_a_process_that_ends(directory: Path) -> str:
    code = (
        "import sys, pathlib; from workloads.rendezvous import unique_id;"
        "print(unique_id(pathlib.Path(sys.argv[1]), '0', root=True, timeout=1))"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code, str(directory)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_an_older_runs_file_is_never_accepted_though_the_run_id_is_used_again(tmp_path: Path) -> None:
    publish_in_a_process_that_ends(tmp_path)
    with pytest.raises(RendezvousError, match="which is gone"):
        unique_id(tmp_path, "0", root=False, timeout=0.2)


def test_the_root_replaces_an_older_runs_file(tmp_path: Path) -> None:
    older = publish_in_a_process_that_ends(tmp_path)
    identity = unique_id(tmp_path, "0", root=True, timeout=1)
    assert identity != older
    assert unique_id(tmp_path, "0", root=False, timeout=1) == identity


def test_a_process_id_used_again_does_not_revive_an_older_file(tmp_path: Path) -> None:
    content = {"id": "old", "pid": os.getpid(), "started": "1"}
    (tmp_path / "unique-id-0").write_text(json.dumps(content))
    with pytest.raises(RendezvousError, match="which is gone"):
        unique_id(tmp_path, "0", root=False, timeout=0.1)


def test_a_second_root_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    unique_id(tmp_path, "0", root=True, timeout=1)
    with pytest.raises(RendezvousError, match="two processes were told to be rank 0"):
        unique_id(tmp_path, "0", root=True, timeout=1)
    assert [path.name for path in tmp_path.iterdir()] == ["unique-id-0"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"id": 1}', "\x00\xff"])
def test_a_damaged_file_is_not_an_id(tmp_path: Path, content: str) -> None:
    (tmp_path / "unique-id-0").write_text(content)
    with pytest.raises(RendezvousError, match="none was published"):
        unique_id(tmp_path, "0", root=False, timeout=0.1)


def test_attempts_have_files_of_their_own_and_the_root_withdraws_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLRANKS_RUN_DIR", str(tmp_path))
    first = unique_id(tmp_path, "0-1", root=True, timeout=1)
    assert unique_id(tmp_path, "1-1", root=True, timeout=1) != first
    withdraw(Topology(processes_per_node=2, process_rank=1, visible_local_rank=1))
    assert len(list(tmp_path.iterdir())) == 2
    withdraw(Topology(processes_per_node=2))
    assert list(tmp_path.iterdir()) == []
