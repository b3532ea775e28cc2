"""Every byte that a rank prints, once, in order, in whole lines."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections import defaultdict
from typing import Any

import pytest

CHATTER = """
    import os, sys
    rank, count = os.environ["RANK"], int(sys.argv[1])
    block = b"".join(b"%s %d some text of a usual length, loss 2.345\\n" % (rank.encode(), i) for i in range(count))
    for start in range(0, len(block), 7777):  # pieces that end anywhere but at a line's end
        os.write(1, block[start:start + 7777])
"""


def counted(lines: list[str]) -> dict[str, list[int]]:
    seen = defaultdict(list)
    for line in lines:
        rank, number, *_ = line.split(" ", 2)
        seen[rank].append(int(number))
    return dict(seen)


def test_64_children_lose_nothing_and_keep_their_order(launch: Any) -> None:
    ended = launch("--nproc-per-node", "64", "--no-python", sys.executable, "-S", launch.program(CHATTER), "5000")
    assert ended.code == 0
    assert counted(ended.lines) == {str(rank): list(range(5000)) for rank in range(64)}


def test_unbuffered_prints_of_many_ranks_do_not_merge(launch: Any) -> None:
    """Text and newline are two writes then; on one shared pipe some would come out as one line."""
    program = launch.program("""
        import os
        for index in range(300):
            print(os.environ["RANK"], index, "end")
    """)
    ended = launch("--nproc-per-node", "8", program)
    assert all(re.fullmatch(r"\d+ \d+ end", line) for line in ended.lines)
    assert counted(ended.lines) == {str(rank): list(range(300)) for rank in range(8)}


def test_stdout_and_stderr_keep_their_order(launch: Any) -> None:
    ended = launch("--", "sh", "-c", "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done")
    assert ended.lines == [f"{stream} {i}" for i in range(1, 6) for stream in ("out", "err")]


def test_any_bytes_pass_and_only_newline_ends_a_line(launch: Any) -> None:
    content = bytes(byte for byte in range(256) if byte != 10) + b"\r 10%|\xe2\x96\x88 | 1/10\r"
    program = launch.program(f"import os; os.write(1, {content!r} + b'\\n' + b'last')")
    ended = launch("--line-prefix", "[${rank}]", program)
    assert ended.out == b"[0]" + content + b"\n[0]last\n"


def test_the_last_line_without_newline_gets_one(launch: Any) -> None:
    assert launch("--nproc-per-node", "2", "--", "printf", "no end").out == b"no end\nno end\n"


def test_a_longer_line_is_cut_with_a_mark_and_the_reader_keeps_up(launch: Any) -> None:
    program = launch.program("""
        import os, sys
        sys.stdout.write("a" * (1 << 20) + "\\n")
        sys.stdout.write("b" * (5 << 20) + "\\nafter\\n")
    """)
    ended = launch(program)
    whole, cut, after = ended.lines
    assert whole == "a" * (1 << 20)
    assert cut == "b" * (1 << 20) + " [allranks: line cut here, it is longer than 1 MiB]"
    assert after == "after"


def test_nothing_is_lost_when_a_child_dies_with_a_full_pipe(launch: Any) -> None:
    """The reader of our own output is stopped until the rank has filled its pipe and been killed."""
    program = launch.program("""
        import fcntl, os, signal
        size = fcntl.fcntl(1, 1032) if hasattr(fcntl, "F_GETPIPE_SZ") or os.uname().sysname == "Linux" else 16384
        line = b"x" * 63 + b"\\n"
        os.write(1, line * (size // 64))
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    ended = launch("--nproc-per-node", "4", program)
    assert ended.code == 137
    assert set(ended.lines) == {"x" * 63}
    first = ended.status["first"]
    assert first["lines"] == ["x" * 63] * 20


def test_the_crashing_ranks_last_words_are_in_the_status_and_at_the_end(launch: Any) -> None:
    program = launch.program("""
        print("ALLRANKS {}")
        print("[Rank 0] - local_samples=1")
        raise ValueError("the loss is made of cheese")
    """)
    ended = launch(program)
    assert ended.code == 1
    assert ended.status["first"]["lines"][-1] == "ValueError: the loss is made of cheese"
    quoted, cause = ended.err.splitlines()[-2:]
    assert quoted == "allranks: | ValueError: the loss is made of cheese"
    assert cause.startswith("allranks: FAILED: rank 0 exited with code 1")
    # Repeated, they would look like a rank that reported twice.
    assert "ALLRANKS {" not in ended.err
    assert "[Rank 0]" not in ended.err


def test_a_stopped_reader_does_not_stop_supervision(launch: Any, eventually: Any) -> None:
    """Nobody reads our output while a rank fails: the others still end, the status is still written."""
    program = launch.program("""
        import os, sys, threading
        line = b"y" * 99 + b"\\n"
        if os.environ["RANK"] == "1":
            threading.Timer(1.0, lambda: os._exit(7)).start()
        while True:
            os.write(1, line * 100)
    """)
    running = launch.start("--nproc-per-node", "3", program)
    eventually(
        lambda: (running.status() or {}).get("codes") in ([[-15, 1], [7, 1], [-15, 1]], [[-9, 1], [7, 1], [-9, 1]])
    )
    ended = running.end()
    assert ended.code == 7
    assert sum(line != "y" * 99 for line in ended.lines) <= 3  # each rank may have been stopped inside a line


def test_a_reader_that_goes_away_does_not_end_the_training(launch: Any) -> None:
    reader, writer = os.pipe()
    running = launch.start("--", "sh", "-c", "echo one; sleep 0.3; echo two; sleep 0.1; echo three", stdout=writer)
    os.close(writer)
    assert os.read(reader, 100) == b"one\n"
    os.close(reader)
    ended = running.end()
    assert ended.code == 0
    assert "output was lost, stdout cannot be written" in ended.err


@pytest.mark.parametrize("kind", ["pipe", "file", "socket", "terminal"])
def test_every_kind_of_stdout_gets_everything(launch: Any, kind: str, tmp_path: Any) -> None:
    words = ("--nproc-per-node", "4", "--no-python", sys.executable, "-S", launch.program(CHATTER), "3000")
    if kind == "pipe":
        out = launch(*words).out
    elif kind == "file":
        path = tmp_path / "out"
        with path.open("wb") as file:
            file.write(b"0 -1 before\n")
            file.flush()
            launch(*words, stdout=file)
        assert path.read_bytes().startswith(b"0 -1 before\n")
        out = path.read_bytes().partition(b"\n")[2]
    else:
        out = _through(launch, words, kind)
    seen = counted(out.decode().splitlines())
    assert seen == {str(rank): list(range(3000)) for rank in range(4)}


def _through(launch: Any, words: tuple[str, ...], kind: str) -> bytes:
    import pty
    import socket

    if kind == "socket":
        ours, theirs = (end.detach() for end in socket.socketpair())
    else:
        ours, theirs = pty.openpty()
    running = launch.start(*words, stdout=theirs)
    os.close(theirs)
    out = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # a terminal whose other side has gone
            piece = b""
        if not piece:
            break
        out += piece
    os.close(ours)
    assert running.end().code == 0
    return out


def test_stdout_and_stderr_on_one_pipe_do_not_break_into_each_others_lines(launch: Any) -> None:
    program = launch.program("""
        import os
        os.write(1, b"".join(b"%d out\\n" % i for i in range(20000)))
        os._exit(3)
    """)
    reader, writer = os.pipe()
    running = launch.start(program, stdout=writer, stderr=writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        lines = file.read().decode().splitlines()
    assert running.process.wait() == 3
    assert [line for line in lines if not line.startswith("allranks: ")] == [f"{i} out" for i in range(20000)]
    assert lines[-1].startswith("allranks: FAILED: rank 0 exited with code 3")


def test_the_default_prefix_with_tee_is_torchruns(launch: Any, tmp_path: Any) -> None:
    ended = launch(
        "--tee",
        "3",
        "--log-dir",
        str(tmp_path / "logs"),
        "--nproc-per-node",
        "2",
        "--",
        "sh",
        "-c",
        "echo a; echo b >&2",
    )
    assert sorted(ended.lines) == ["[default0]:a", "[default1]:a"]
    assert sorted(line for line in ended.err.splitlines() if line.startswith("[")) == ["[default0]:b", "[default1]:b"]


def files(folder: Any) -> dict[str, str]:
    (run,) = folder.iterdir()
    return {str(path.relative_to(run)): path.read_text() for path in run.rglob("*.log")}


def test_log_dir_alone_keeps_what_each_rank_printed(launch: Any, tmp_path: Any) -> None:
    ended = launch(
        "--log-dir", str(tmp_path / "logs"), "--rdzv-id", "r7", "--nproc-per-node", "2",
        "--", "sh", "-c", "echo out $RANK; echo err $RANK >&2; printf partial",
    )  # fmt: skip
    assert ended.code == 0
    assert files(tmp_path / "logs") == {
        "attempt_0/0/output.log": "out 0\nerr 0\npartial",
        "attempt_0/1/output.log": "out 1\nerr 1\npartial",
    }
    (run,) = (tmp_path / "logs").iterdir()
    assert run.name.startswith("r7_")
    assert str(run) in ended.err
    assert len(ended.lines) == 6


def test_redirects_and_tee_per_rank(launch: Any, tmp_path: Any) -> None:
    ended = launch(
        "--log-dir", str(tmp_path / "logs"), "--redirects", "0:3,1:1", "--tee", "2:2", "--line-prefix", "",
        "--nproc-per-node", "4", "--", "sh", "-c", "echo out $RANK; echo err $RANK >&2",
    )  # fmt: skip
    assert sorted(ended.lines) == ["err 3", "out 2", "out 3"]
    assert sorted(line for line in ended.err.splitlines() if line.startswith("err")) == ["err 1", "err 2"]
    kept = files(tmp_path / "logs")
    assert kept["attempt_0/0/stdout.log"] == "out 0\n"
    assert kept["attempt_0/0/stderr.log"] == "err 0\n"
    assert kept["attempt_0/1/stdout.log"] == "out 1\n"
    assert kept["attempt_0/2/stderr.log"] == "err 2\n"


def test_records_are_heard_from_redirected_ranks_too(launch: Any, tmp_path: Any) -> None:
    record = 'ALLRANKS {"v":1,"run":"r1","rank":0,"event":"end","throughput":5.5,"epoch_time":0.5}'
    ended = launch("--rdzv-id", "r1", "--redirects", "3", "--log-dir", str(tmp_path / "l"), "--", "echo", record)
    assert ended.out == b""
    assert ended.status["figures"] == {"ranks": [[0, 1]], "throughput": [5.5], "epoch_time": [0.5]}


def test_only_the_ranks_asked_for_are_shown(launch: Any) -> None:
    ended = launch("--local-ranks-filter", "1,3", "--nproc-per-node", "4", "--", "sh", "-c", "echo $RANK")
    assert sorted(ended.lines) == ["1", "3"]


def test_a_hanging_ranks_output_is_there_before_it_ends(launch: Any) -> None:
    running = launch.start("--nproc-per-node", "2", "--", "sh", "-c", "echo hello; exec sleep 600")
    began = time.monotonic()
    assert [running.line(), running.line()] == ["hello", "hello"]
    assert time.monotonic() - began < 30
    running.end(signal.SIGTERM)
