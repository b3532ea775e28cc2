"""What a process is told, as values and as processes see it."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from workloads.launch.args import parse
from workloads.launch.environment import Placement, free_port, rank_environment
from workloads.launch.options import UsageError

CONTRACT = """
RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE
MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS
TORCHELASTIC_USE_AGENT_STORE OMP_NUM_THREADS TORCH_NCCL_ASYNC_ERROR_HANDLING NNODES NPROC_PER_NODE GLOBAL_PROC_RANK
LOCAL_PROC_RANK PROC_WORLD_SIZE ALLRANKS_RUN_DIR
""".split()  # noqa: SIM905


def placed(*words: str, processes: int, **environ: str) -> Placement:
    placement = Placement(parse([*words, "x.py"], environ), processes, "run1")
    placement.master_port, placement.run_dir = 12345, "/tmp/r"
    return placement


def test_the_contract_is_complete_and_nothing_else_is_set() -> None:
    environment = rank_environment(placed(processes=2), 1, {"HOME": "/h"})
    assert sorted(environment) == sorted([*CONTRACT, "HOME"])


def test_ranks_on_the_second_of_three_nodes() -> None:
    words = ("--nnodes=3", "--node-rank=1", "--rdzv-id=run1", "--rdzv-endpoint=m:12345", "--role=trainer")
    environment = rank_environment(placed(*words, processes=4), 2, {})
    expected = {
        "RANK": "6", "LOCAL_RANK": "2", "WORLD_SIZE": "12", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3", "ROLE_NAME": "trainer", "ROLE_RANK": "6", "ROLE_WORLD_SIZE": "12",
        "MASTER_ADDR": "m", "MASTER_PORT": "12345", "TORCHELASTIC_RUN_ID": "run1", "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_USE_AGENT_STORE": "False", "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "NNODES": "3", "NPROC_PER_NODE": "4", "GLOBAL_PROC_RANK": "6",
        "LOCAL_PROC_RANK": "2", "PROC_WORLD_SIZE": "12", "ALLRANKS_RUN_DIR": "/tmp/r",
    }  # fmt: skip
    assert environment == expected


def test_what_the_user_has_set_is_kept_where_it_is_a_default() -> None:
    base = {"OMP_NUM_THREADS": "4", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "RANK": "99"}
    environment = rank_environment(placed(processes=1), 0, base)
    assert (environment["OMP_NUM_THREADS"], environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"]) == ("4", "3")
    assert environment["RANK"] == "0"


def test_virtual_local_ranks_see_one_gpu_each() -> None:
    placement = placed("--virtual-local-rank", processes=2)
    told = [rank_environment(placement, local, {"CUDA_VISIBLE_DEVICES": "4, 6"}) for local in (0, 1)]
    assert [(e["LOCAL_RANK"], e["LOCAL_PROC_RANK"], e["RANK"], e["CUDA_VISIBLE_DEVICES"]) for e in told] == [
        ("0", "0", "0", "4"),
        ("0", "0", "1", "6"),
    ]
    assert rank_environment(placement, 1, {})["CUDA_VISIBLE_DEVICES"] == "1"
    with pytest.raises(UsageError, match="local rank 1 has no GPU"):
        rank_environment(placement, 1, {"CUDA_VISIBLE_DEVICES": "4"})


def test_a_local_rank_in_the_arguments_is_filled_in() -> None:
    placement = Placement(parse(["--no-python", "run", "--gpu=${local_rank}", "$$"], {}), 2, "r")
    assert placement.command(1) == ["run", "--gpu=1", "$$"]


def test_a_port_that_is_taken_is_not_free() -> None:
    port = free_port("127.0.0.1")
    assert 20000 <= port < 32000
    with socket.socket() as taken:
        taken.bind(("", port))
        with socket.socket() as second, pytest.raises(OSError, match="in use"):
            second.bind(("", port))


def test_processes_really_see_it_and_share_port_id_and_directory(launch: Any) -> None:
    names = " ".join(f"${name}" for name in CONTRACT)
    ended = launch("--nproc-per-node", "3", "--", "sh", "-c", f'[ -d "$ALLRANKS_RUN_DIR" ] && echo {names}')
    assert ended.code == 0
    seen = sorted((dict(zip(CONTRACT, line.split(), strict=True)) for line in ended.lines), key=lambda e: e["RANK"])
    assert [(e["RANK"], e["LOCAL_RANK"], e["WORLD_SIZE"]) for e in seen] == [
        ("0", "0", "3"),
        ("1", "1", "3"),
        ("2", "2", "3"),
    ]
    for shared in ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "ALLRANKS_RUN_DIR"):
        assert len({e[shared] for e in seen}) == 1
    assert list(launch.temporary.iterdir()) == []


def test_the_run_directory_is_private_and_named_for_the_run(launch: Any) -> None:
    script = 'cd "$ALLRANKS_RUN_DIR"; pwd; ls -ld "$PWD"; mkdir -p x/y; ln -s / x/l; touch x/y/z'
    ended = launch("--rdzv-id", "a/b 7", "--", "sh", "-c", script)
    assert ended.code == 0, ended.err
    assert ended.lines[0].startswith(f"{launch.temporary}/allranks-a_b_7-0-")
    assert ended.lines[1].startswith("drwx------")
    assert list(launch.temporary.iterdir()) == []
