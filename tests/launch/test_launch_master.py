"""Finding the master: real names, real ports."""

from __future__ import annotations

import signal
import socket
from typing import Any

import pytest

from workloads.launch.master import is_name

NOWHERE = "bert-0.bert.invalid"  # RFC 2606: this name never resolves


def node(rank: int, endpoint: str, *more: str) -> tuple[str, ...]:
    return ("--nnodes", "2", "--node-rank", str(rank), "--rdzv-id", "r", "--rdzv-endpoint", endpoint, *more)


def unanswered() -> str:
    """An address of this machine on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_name_that_does_not_resolve_within_the_deadline_is_named(launch: Any, rank: int) -> None:
    ended = launch(*node(rank, f"{NOWHERE}:29500", "--rdzv-timeout", "0.5"), "--", "echo", "started")
    assert (ended.code, ended.out) == (1, b"")
    assert f"the master {NOWHERE}:29500 was not reached within 0.5 s: the name does not resolve" in ended.cause
    assert ended.status["first"]["rank"] is None
    assert ended.status["state"] == "failed"
    assert ended.status["codes"] == [[None, 1]]


def test_a_port_that_does_not_answer_within_the_deadline_ends_the_ranks(launch: Any) -> None:
    """They have been started all the same: waiting for node 0 is the program's business until then."""
    endpoint = unanswered()
    ended = launch(*node(1, endpoint, "--rdzv-timeout", "1"), "--", "sh", "-c", "echo started; exec sleep 600")
    assert (ended.code, ended.lines) == (1, ["started"])
    assert f"the master {endpoint} was not reached within 1 s: 127.0.0.1 does not answer" in ended.cause
    assert ended.status["codes"] == [[-15, 1]]


def test_once_the_master_has_answered_the_deadline_is_off(launch: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        words = node(1, f"localhost:{port}", "--rdzv-timeout", "1")
        ended = launch(*words, "--", "sleep", "1.5")
    assert ended.code == 0


def test_a_program_that_needs_no_master_may_end_before_the_deadline(launch: Any) -> None:
    assert launch(*node(1, unanswered()), "--", "echo", "hi").lines == ["hi"]


def test_sigterm_while_waiting_for_the_name(launch: Any, eventually: Any) -> None:
    running = launch.start(*node(1, f"{NOWHERE}:29500"), "--", "echo", "started")
    eventually(running.status)
    ended = running.end(signal.SIGTERM)
    assert (ended.code, ended.out) == (143, b"")
    assert list(launch.temporary.iterdir()) == []


def test_what_is_a_name() -> None:
    assert is_name("bert-0.bert")
    assert not is_name("10.0.0.1")
    assert not is_name("fd00::1")
