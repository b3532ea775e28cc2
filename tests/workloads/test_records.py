from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.records import MAX_BYTES, Outlet, RankLog


def log_to(path: Path, **identity: Any) -> tuple[RankLog, Outlet]:
    outlet = Outlet(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    return RankLog(outlet, **{"run": "r", "rank": 3, "world": 4, **identity}), outlet


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line.partition("ALLRANKS ")[2]) for line in path.read_text().splitlines()]


def test_records_are_numbered_without_gaps_and_the_last_says_how_many(tmp_path: Path) -> None:
    log, _ = log_to(tmp_path / "log", attempt=2)
    log.record("start", pod="p")
    log.record("step", step=1, loss=0.5)
    log.end(steps=1)
    read = records(tmp_path / "log")
    assert [r["seq"] for r in read] == [0, 1, 2]
    assert [r["event"] for r in read] == ["start", "step", "end"]
    assert read[-1]["records"] == 3
    assert {(r["v"], r["run"], r["rank"], r["world"], r["attempt"]) for r in read} == {(1, "r", 3, 4, 2)}
    assert all(isinstance(r["t"], float) for r in read)


def test_numbers_that_json_does_not_know_become_strings(tmp_path: Path) -> None:
    log, _ = log_to(tmp_path / "log")
    log.record("step", a=math.nan, b=math.inf, c=-math.inf, d=1e-30, absent=None)
    (read,) = records(tmp_path / "log")
    assert (read["a"], read["b"], read["c"], read["d"]) == ("nan", "inf", "-inf", 1e-30)
    assert "absent" not in read


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float32_survives_exactly(value: float) -> None:
    read, write = os.pipe()
    try:
        RankLog(Outlet(write), run="r", rank=0).record("step", loss=value)
        record = json.loads(os.read(read, MAX_BYTES).removeprefix(b"ALLRANKS "))
    finally:
        os.close(read)
        os.close(write)
    import struct

    assert struct.pack("f", record["loss"]) == struct.pack("f", value)


@pytest.mark.parametrize(
    "message", ["x" * 10_000, "é" * 10_000, "\N{GRINNING FACE}\n" * 5_000, '"\\' * 9_000, "\udcff" * 9000]
)
def test_a_long_error_is_cut_to_one_write(tmp_path: Path, message: str) -> None:
    log, _ = log_to(tmp_path / "log")
    log.error(RuntimeError(message))
    (line,) = (tmp_path / "log").read_bytes().splitlines()
    assert MAX_BYTES // 2 < len(line) < MAX_BYTES
    (read,) = records(tmp_path / "log")
    assert read["type"] == "RuntimeError"
    assert read["message"].endswith("…")
    assert message.startswith(read["message"][:-1])


def test_a_record_that_does_not_fit_is_refused_and_not_counted(tmp_path: Path) -> None:
    log, _ = log_to(tmp_path / "log")
    with pytest.raises(ValueError, match="cannot be written whole"):
        log.record("start", pod="x" * MAX_BYTES)
    log.record("start", pod="x")
    assert [r["seq"] for r in records(tmp_path / "log")] == [0]


def test_the_line_for_people_has_the_form_that_the_field_parses(tmp_path: Path) -> None:
    log, _ = log_to(tmp_path / "log")
    log.people(samples=78.1, total_time=1.56, throughput=49.97, epoch_time=0.31)
    assert (tmp_path / "log").read_text() == (
        "[Rank 3] - local_samples=78.1, total_time=1.56s, local_throughput=49.97 samples/s, "
        "local_avg_epoch_time=0.31s\n"
    )


SPEAKER = """
import sys
from workloads.records import Outlet, RankLog
outlet = Outlet()
outlet.watch()
log = RankLog(outlet, run="r", rank=0, world=1)
log.record("start")
print("progress: 10 %", end="")
log.record("step")
print("whole line")
log.record("step")
print("warning, no line break", end="", file=sys.stderr)
log.record("step")
sys.stdout.writelines(["a\\n", "b"])
print(end="")
log.end()
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_record_after_half_a_line_begins_with_a_line_break(unbuffered: str) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        [sys.executable, "-c", SPEAKER],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=True,
    )
    lines = done.stdout.decode().splitlines()
    assert [line for line in lines if not line.startswith("ALLRANKS ")] == [
        "progress: 10 %",
        "whole line",
        "warning, no line break",
        "a",
        "b",
    ]
    spoken = [json.loads(line.removeprefix("ALLRANKS ")) for line in lines if line.startswith("ALLRANKS ")]
    assert [record["seq"] for record in spoken] == [0, 1, 2, 3, 4]
    assert "" not in lines


def test_a_stream_that_ends_elsewhere_does_not_matter() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPEAKER],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert b"" not in done.stdout.splitlines()
    assert done.stderr == b"warning, no line break"


def test_lines_of_many_threads_and_a_full_nonblocking_pipe_stay_whole() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    outlet = Outlet(write)
    logs = [RankLog(outlet, run="r", rank=rank, world=8) for rank in range(8)]

    def speak(log: RankLog) -> None:
        for number in range(100):
            log.record("step", step=number, filling="x" * (number * 37 % 3800))

    threads = [threading.Thread(target=speak, args=(log,)) for log in logs]
    received = bytearray()

    def listen() -> None:
        while chunk := os.read(read, 65536):
            received.extend(chunk)

    listener = threading.Thread(target=listen)
    for thread in [*threads, listener]:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(write)
    listener.join()
    os.close(read)
    spoken = [json.loads(line.removeprefix(b"ALLRANKS ")) for line in bytes(received).splitlines()]
    for rank in range(8):
        assert [r["seq"] for r in spoken if r["rank"] == rank] == list(range(100))
