"""Signals to the launcher, and what becomes of the ranks when it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.launch.kit import held

LINUX = sys.platform == "linux"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_the_launcher_is_forwarded_and_becomes_its_exit_code(launch: Any, number: int) -> None:
    program = launch.program("""
        import os, signal, sys, time
        def handle(number, frame):
            print("got", number, flush=True)
            sys.exit(0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, handle)
        print("ready", flush=True)
        time.sleep(600)
    """)
    running = launch.start("--nproc-per-node", "2", program)
    assert [running.line(), running.line()] == ["ready", "ready"]
    ended = running.end(number)
    assert ended.code == 128 + number
    assert ended.lines == [f"got {number}"] * 2
    assert ended.status["state"] == "failed"
    assert ended.status["codes"] == [[0, 2]]
    assert (ended.status["first"]["rank"], ended.status["first"]["code"]) == (None, -number)
    assert f"the launcher received {signal.Signals(number).name}" in ended.cause
    assert list(launch.temporary.iterdir()) == []


def test_stacks_printed_on_sigterm_reach_the_log(launch: Any) -> None:
    program = launch.program("""
        import faulthandler, os, signal, sys, time
        faulthandler.register(signal.SIGTERM, file=sys.stderr, chain=True)
        print("ready", flush=True)
        def waits_for_a_peer():
            time.sleep(600)
        if os.environ["RANK"] == "0":
            input()
            sys.exit(6)
        waits_for_a_peer()
    """)
    reader, writer = os.pipe()
    running = launch.start("--nproc-per-node", "3", program, stdin=reader)
    os.close(reader)
    assert [running.line() for _ in range(3)] == ["ready"] * 3
    os.write(writer, b"\n")
    os.close(writer)
    ended = running.end()
    assert ended.code == 6
    assert ended.out.count(b"in waits_for_a_peer") == 2


def test_usr1_is_forwarded_and_the_run_goes_on(launch: Any) -> None:
    program = launch.program("""
        import signal, sys
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        print("ready", flush=True)
        signal.sigwait({signal.SIGUSR1})
        print("saved", flush=True)
    """)
    running = launch.start("--nproc-per-node", "2", program)
    assert [running.line(), running.line()] == ["ready", "ready"]
    ended = running.end(signal.SIGUSR1)
    assert (ended.code, ended.lines) == (0, ["saved", "saved"])


def test_usr1_ends_the_run_when_it_is_to_be_handled(launch: Any) -> None:
    running = launch.start("--signals-to-handle", "SIGUSR1", "--", "sh", "-c", "echo ready; exec sleep 600")
    assert running.line() == "ready"
    assert running.end(signal.SIGUSR1).code == 128 + signal.SIGUSR1


def test_a_second_ctrl_c_does_not_wait_for_the_deadline(launch: Any) -> None:
    running = launch.start("--", "sh", "-c", "trap '' INT TERM; echo ready; while :; do sleep 0.05; done")
    assert running.line() == "ready"
    running.process.send_signal(signal.SIGINT)
    while running.status()["state"] != "failed":
        os.sched_yield()
    ended = running.end(signal.SIGINT)
    assert ended.code == 130
    assert ended.seconds < 15


def test_an_ignored_hangup_stays_ignored(launch: Any) -> None:
    running = launch.start("--", "sh", "-c", "echo ready; read x; echo done", stdin=held(), preexec_fn=_ignore_hangup)
    assert running.line() == "ready"
    running.process.send_signal(signal.SIGHUP)
    ended = running.end(signal.SIGTERM)
    assert ended.code == 143


def _ignore_hangup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_sigterm_at_any_moment_of_a_short_run_leaves_nothing(launch: Any, gone: Any, eventually: Any) -> None:
    """During start-up, running and shutdown: from right after exec to after the usual end."""
    for delay in (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2):
        running = launch.start("--nproc-per-node", "3", "--", "sh", "-c", "echo $$; sleep 0.05")
        time.sleep(delay)
        ended = running.end(signal.SIGTERM)
        assert ended.code in (0, 143, -15), ended.err  # -15: before Python had come as far as our handler
        assert all(eventually(lambda pid=int(line): gone(pid)) for line in ended.lines)
    assert list(launch.temporary.iterdir()) == []


def test_kill_9_of_the_launcher_leaves_no_rank_no_grandchild_and_no_directory(
    launch: Any, gone: Any, eventually: Any
) -> None:
    running = launch.start("--nproc-per-node", "2", "--", "sh", "-c", "trap '' TERM HUP; sleep 600 & echo $$ $!; wait")
    pids = [int(pid) for _ in range(2) for pid in running.line().split()]
    assert not any(gone(pid) for pid in pids)
    os.kill(running.pid, signal.SIGKILL)
    running.process.wait()
    for pid in pids:
        eventually(lambda pid=pid: gone(pid))
    eventually(lambda: not list(launch.temporary.iterdir()))
    assert running.status()["state"] == "running"
    assert running.status()["codes"] == [[None, 2]]


@pytest.mark.skipif(not LINUX, reason="adopting orphans needs Linux")
def test_orphans_are_reaped_while_the_run_goes_on(launch: Any, eventually: Any) -> None:
    running = launch.start("--", "sh", "-c", "(setsid sh -c 'exit 3' & echo made) ; read x", stdin=held())
    assert running.line() == "made"

    def zombies() -> list[str]:
        command = ["ps", "-o", "stat=", "--ppid", str(running.pid)]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        return [state for state in listed.stdout.split() if state.startswith("Z")]

    eventually(lambda: not zombies())
    running.end(signal.SIGTERM)
