"""First abnormal exit, signals, restarts: who is stopped, what is returned, what is said."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.kit import held

LINUX = sys.platform == "linux"
OTHER_USER = 54321


def test_all_ranks_exit_0(launch: Any) -> None:
    ended = launch("--nproc-per-node", "4", "--", "true")
    assert (ended.code, ended.out, ended.err) == (0, b"", "")
    assert ended.status["state"] == "succeeded"
    assert ended.status["codes"] == [[0, 4]]
    assert ended.status["first"] is None


def test_the_first_failing_code_is_returned_and_the_others_are_stopped(launch: Any) -> None:
    ended = launch("--nproc-per-node", "4", "--", "sh", "-c", "echo I am $RANK; [ $RANK = 2 ] && exit 17; sleep 600")
    assert ended.code == 17
    assert ended.seconds < 30
    assert ended.cause == "allranks: FAILED: rank 2 exited with code 17 (local rank 2), node 0"
    assert "allranks: | I am 2" in ended.err.splitlines()
    assert ended.status["codes"] == [[-15, 2], [17, 1], [-15, 1]]
    first = ended.status["first"]
    assert (first["rank"], first["local_rank"], first["code"], first["lines"]) == (2, 2, 17, ["I am 2"])


def test_on_the_second_node_the_global_rank_is_named(launch: Any) -> None:
    words = (
        "--nnodes=2",
        "--node-rank=1",
        "--rdzv-id=r",
        "--rdzv-endpoint=m:1",
        "--rdzv-timeout=0",
        "--nproc-per-node=2",
    )
    env = {"POD_NAME": "bert-1", "NODE_NAME": "ip-10-0-3-7"}
    ended = launch(*words, "--", "sh", "-c", "[ $LOCAL_RANK = 1 ] && exit 3; sleep 600", env=env)
    assert ended.code == 3
    assert ended.cause.endswith("rank 3 exited with code 3 (local rank 1), node 1, pod bert-1, on ip-10-0-3-7")
    assert (ended.status["node"], ended.status["nnodes"], ended.status["first"]["rank"]) == (1, 2, 3)


def test_a_rank_killed_by_a_signal_is_128_plus_n_and_named(launch: Any) -> None:
    ended = launch("--nproc-per-node", "2", "--", "sh", "-c", "[ $RANK = 1 ] && kill -SEGV $$; sleep 600")
    assert ended.code == 128 + signal.SIGSEGV
    assert "rank 1 died of SIGSEGV" in ended.cause
    assert ended.status["first"]["code"] == -signal.SIGSEGV


def test_ranks_that_die_together_are_all_entered_before_any_is_acted_on(
    launch: Any, gone: Any, eventually: Any
) -> None:
    """The launcher is stopped meanwhile, so that it finds them all at once; no reaped pid may be signalled."""
    running = launch.start("--nproc-per-node", "8", "--", "sh", "-c", "echo $RANK $$; read x; exit 1", stdin=held())
    pids = dict(running.line().split() for _ in range(8))
    os.kill(running.pid, signal.SIGSTOP)
    for rank, pid in pids.items():
        os.kill(int(pid), signal.SIGSEGV if rank == "5" else signal.SIGHUP if rank == "6" else signal.SIGKILL)
    for pid in pids.values():
        eventually(lambda pid=int(pid): gone(pid))
    ended = running.end(signal.SIGCONT)
    assert ended.code in (128 + signal.SIGKILL, 128 + signal.SIGSEGV, 128 + signal.SIGHUP)
    assert ended.status["codes"] == [[-9, 5], [-11, 1], [-1, 1], [-9, 1]]
    assert "Traceback" not in ended.err


def test_of_ranks_that_die_together_the_one_killed_by_a_signal_is_the_cause(
    launch: Any, gone: Any, eventually: Any
) -> None:
    """A crash closes connections, and the peers then exit with an error of their own."""
    reader, writer = os.pipe()
    script = "echo $RANK $$; read x; [ $RANK = 2 ] && kill -SEGV $$; exit 1"
    running = launch.start("--nproc-per-node", "4", "--", "sh", "-c", script, stdin=reader)
    os.close(reader)
    pids = [int(running.line().split()[1]) for _ in range(4)]
    os.kill(running.pid, signal.SIGSTOP)
    os.close(writer)
    for pid in pids:
        eventually(lambda pid=pid: gone(pid))
    ended = running.end(signal.SIGCONT)
    assert ended.code == 128 + signal.SIGSEGV
    assert ended.status["first"]["rank"] == 2
    assert ended.status["codes"] == [[1, 2], [-11, 1], [1, 1]]


def test_a_rank_that_ignores_sigterm_gets_sigkill_after_the_deadline(launch: Any) -> None:
    ended = launch(
        "--nproc-per-node", "2", "--shutdown-timeout", "0.5",
        "--", "sh", "-c", "trap '' TERM; [ $RANK = 0 ] && { sleep 0.2; exit 5; }; while :; do sleep 0.05; done",
    )  # fmt: skip
    assert ended.code == 5
    assert ended.status["codes"] == [[5, 1], [-9, 1]]
    assert "SIGTERM was not enough for rank 1" in ended.err


def test_what_the_ranks_started_ends_with_them(launch: Any, gone: Any) -> None:
    program = launch.program("""
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stubborn = "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"
        child = subprocess.Popen([sys.executable, "-c", stubborn])
        loose = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print(child.pid, loose.pid, flush=True)
        ready = os.environ["ALLRANKS_RUN_DIR"] + "/ready"
        if os.environ["RANK"] == "1":
            while not os.path.exists(ready):
                time.sleep(0.01)
            sys.exit(9)
        open(ready, "w").close()
        time.sleep(600)
    """)
    ended = launch("--nproc-per-node", "2", "--shutdown-timeout", "0.3", program)
    assert ended.code == 9
    pids = [[int(word) for word in line.split()] for line in ended.lines]
    assert len(pids) == 2
    assert all(gone(child) for child, _ in pids)
    if LINUX:  # elsewhere nothing tells the launcher of a process that left both group and session
        assert all(gone(loose) for _, loose in pids)


def test_a_healthy_ranks_daemon_does_not_hold_up_the_end(launch: Any, gone: Any) -> None:
    ended = launch("--nproc-per-node", "2", "--", "sh", "-c", "sleep 600 & echo $!")
    assert ended.code == 0
    assert ended.seconds < 30
    assert all(gone(int(line)) for line in ended.lines)
    assert "ranks 0-1 exited 0 but left a process behind" in ended.err


def test_late_output_of_a_process_that_a_rank_left_behind_is_not_lost(launch: Any) -> None:
    ended = launch("--", "sh", "-c", "(sleep 0.5; echo late) & echo early")
    assert (ended.code, ended.lines) == (0, ["early", "late"])


def test_a_program_that_does_not_exist_is_127_and_not_executable_126(launch: Any) -> None:
    ended = launch("--no-python", "/no/such/program")
    assert ended.code == 127
    assert ended.status["first"]["lines"] == ["allranks: cannot execute /no/such/program: No such file or directory"]
    plain = launch.program("pass")
    assert launch("--no-python", plain).code == 126


def test_a_rank_that_cannot_be_started_stops_those_already_started(launch: Any) -> None:
    """Here for want of descriptors: enough for the launcher itself and a rank or two."""
    ended = launch("--nproc-per-node", "40", "--", "sleep", "600", preexec_fn=_few_descriptors)
    assert ended.code == 1
    assert "could not be started: Too many open files" in ended.cause
    (stopped, stopped_count), (never, never_count) = ended.status["codes"]
    assert (stopped, never, stopped_count + never_count) == (-15, None, 40)
    assert ended.status["first"]["rank"] is None
    assert list(launch.temporary.iterdir()) == []


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))


def test_a_fork_that_fails_stops_those_already_started(launch: Any) -> None:
    """The kernel's own limit on processes: under a fresh user id, room for launcher, guard and two ranks."""
    python = _python_for(OTHER_USER)
    if python is None:
        pytest.skip("only root can start a process under a user id that owns no others")
    run_id = f"fork-{os.urandom(4).hex()}"
    ended = launch(
        "--rdzv-id", run_id, "--nproc-per-node", "4", "--", python, "-S", "-c", "import time; time.sleep(600)",
        python=python, user=OTHER_USER, preexec_fn=_four_processes, cwd="/",
        env={"ALLRANKS_TERMINATION_LOG": "", "TMPDIR": "/tmp"},
    )  # fmt: skip
    assert ended.code == 1
    assert "rank 2 could not be started: Resource temporarily unavailable" in ended.cause
    assert "ranks 0-1 died of SIGTERM; ranks 2-3 had not been started" in ended.err
    assert not list(Path("/tmp").glob(f"allranks-{run_id}*"))


def _four_processes() -> None:
    resource.setrlimit(resource.RLIMIT_NPROC, (4, 4))


def _python_for(user: int) -> str | None:
    """An interpreter that another user may execute."""
    if os.getuid() != 0:
        return None
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            subprocess.run([python, "-c", ""], user=user, cwd="/", check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    return None


def test_an_early_exit_0_is_noticed_and_named(launch: Any) -> None:
    running = launch.start(
        "--nproc-per-node", "3", "--early-exit-notice", "0.2", "--", "sh", "-c", "[ $RANK = 1 ] || sleep 600"
    )
    notice = running.process.stderr.readline().decode()
    assert notice.startswith("allranks: rank 1 exited 0 up to 0 s ago while ranks 0,2 still run")
    assert running.status()["codes"] == [[None, 1], [0, 1], [None, 1]]
    running.end(signal.SIGTERM)


def test_an_early_exit_0_is_part_of_the_cause_when_another_fails_later(launch: Any) -> None:
    ended = launch("--nproc-per-node", "2", "--", "sh", "-c", "[ $RANK = 1 ] && exit 0; sleep 0.5; exit 4")
    assert ended.code == 4
    assert "rank 0 exited with code 4; rank 1 had already exited 0" in ended.status["first"]["why"]


def test_a_failed_group_is_started_again_as_a_numbered_attempt(launch: Any) -> None:
    program = launch.program("""
        import os, sys
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        most, folder = os.environ["TORCHELASTIC_MAX_RESTARTS"], os.environ["ALLRANKS_RUN_DIR"]
        print(os.environ["RANK"], attempt, most, folder, flush=True)
        sys.exit(8 if attempt in "01" and os.environ["RANK"] == "1" else 0)
    """)
    ended = launch("--nproc-per-node", "2", "--max-restarts", "3", program)
    assert ended.code == 0
    seen = [line.split() for line in ended.lines]
    assert {(words[0], words[1]) for words in seen if words[0] == "1"} == {("1", "0"), ("1", "1"), ("1", "2")}
    assert {words[2] for words in seen} == {"3"}
    assert len({words[3] for words in seen}) == 3
    assert ended.err.count("FAILED: rank 1 exited with code 8") == 2
    assert (ended.status["attempt"], ended.status["state"], ended.status["codes"]) == (2, "succeeded", [[0, 2]])
    assert list(launch.temporary.iterdir()) == []


def test_restarts_come_to_an_end(launch: Any) -> None:
    ended = launch("--max-restarts", "2", "--", "sh", "-c", "echo again; exit 8")
    assert (ended.code, ended.lines) == (8, ["again"] * 3)
    assert ended.status["attempt"] == 2


def test_a_signal_is_not_answered_with_a_restart(launch: Any) -> None:
    running = launch.start("--max-restarts", "5", "--", "sh", "-c", "echo ready; exec sleep 600")
    assert running.line() == "ready"
    ended = running.end(signal.SIGTERM)
    assert (ended.code, ended.lines) == (143, [])  # "ready" once, and that has been read


def test_the_status_says_running_before_anything_has_ended(launch: Any) -> None:
    running = launch.start("--nproc-per-node", "2", "--", "sh", "-c", "echo ready; exec sleep 600")
    assert running.line() == "ready"
    assert running.status()["state"] == "running"
    assert running.status()["codes"] == [[None, 2]]
    running.end(signal.SIGTERM)


def test_figures_are_in_the_status_before_their_rank_has_ended(launch: Any, eventually: Any) -> None:
    record = '{"v":1,"run":"r1","rank":%s,"world":2,"event":"end","throughput":49.97,"epoch_time":0.31}'
    script = f"printf 'loss 2.3ALLRANKS {record}\\n' $RANK; exec sleep 600"
    running = launch.start("--rdzv-id", "r1", "--nproc-per-node", "2", "--", "sh", "-c", script)
    expected = {"ranks": [[0, 2]], "throughput": [49.97, 49.97], "epoch_time": [0.31, 0.31]}
    eventually(lambda: (running.status() or {}).get("figures") == expected)
    running.end(signal.SIGKILL)


def test_a_usage_error_is_2_with_the_reason_and_starts_nothing(launch: Any) -> None:
    ended = launch("--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "m:1", "--", "sh", "-c", "echo started")
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.startswith("allranks: --rdzv-id is required with --nnodes 2: an id made up on each node")


def test_closed_standard_descriptors_do_no_harm(launch: Any) -> None:
    command = f"exec {sys.executable} -m workloads.launch -- sh -c 'exit 9' <&- >&- 2>&-"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(launch.temporary)}
    assert subprocess.run(["sh", "-c", command], env=environ, check=False).returncode == 9


def test_descriptors_of_whoever_started_the_launcher_are_not_for_the_ranks(launch: Any) -> None:
    reader, writer = os.pipe()
    program = launch.program("""
        import os
        print(sorted(int(name) for name in os.listdir("/dev/fd"))[:3], os.path.exists(f"/dev/fd/{os.environ['HELD']}"))
    """)
    ended = launch(program, pass_fds=(writer,), env={"HELD": str(writer)})
    os.close(reader)
    os.close(writer)
    assert ended.lines == ["[0, 1, 2] False"]


def test_nothing_heavy_is_imported(launch: Any) -> None:
    ended = launch("--nproc-per-node", "2", "--", "true", python_options=["-X", "importtime"])
    imported = {line.rpartition("|")[2].strip() for line in ended.err.splitlines() if line.startswith("import time:")}
    assert "workloads.launch.supervise" in imported
    heavy = {"argparse", "asyncio", "dataclasses", "inspect", "logging", "pathlib", "subprocess", "tempfile", "typing"}
    assert not imported & (heavy | {"threading", "shutil", "torch", "numpy"})


def test_help_goes_to_stdout(launch: Any) -> None:
    ended = launch("--help")
    assert ended.code == 0
    assert ended.lines[0].startswith("usage: python -m workloads.launch")


def test_as_pid_1_it_reaps_and_forwards(launch: Any) -> None:
    """In a PID namespace of its own, as in a container."""
    unshare = shutil.which("unshare")
    wrap = [unshare, "-Urpf", "--mount-proc", "--kill-child"] if unshare else []
    if not wrap or subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no PID namespaces to be had here")
    script = "setsid sleep 600 & echo pid 1 is my parent: $PPID; exec sleep 600"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(launch.temporary)}
    command = [
        *wrap,
        "sh",
        "-c",
        'echo "$$"; exec "$@"',
        "sh",
        sys.executable,
        "-m",
        "workloads.launch",
        "--",
        "sh",
        "-c",
        script,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as outer:
        assert outer.stdout is not None
        assert outer.stdout.readline() == b"1\n"
        assert outer.stdout.readline() == b"pid 1 is my parent: 1\n"
        inner = subprocess.run(["pgrep", "-P", str(outer.pid)], capture_output=True, text=True, check=True)
        os.kill(int(inner.stdout.split()[0]), signal.SIGTERM)
        assert outer.wait(timeout=60) == 143
    assert list(launch.temporary.iterdir()) == []


def test_200_runs_in_a_row_leave_no_process_no_file_and_no_zombie(launch: Any) -> None:
    """One shell runs them, so that whatever they leave would be its child or somebody's orphan."""
    script = f"""
        i=0
        while [ $i -lt 200 ]; do
            {sys.executable} -m workloads.launch --nproc-per-node 2 --no-python sh -c 'exit 0' || exit 1
            i=$((i + 1))
        done
        ps -e -o ppid=,stat=,args= | awk -v me=$$ '($1 == me && $2 ~ /Z/) || (/no-python sh/ && !/awk/ && !/while/)'
    """
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(launch.temporary)}
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=environ, timeout=300, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert list(launch.temporary.iterdir()) == []
