"""The log endpoint and the files behind it."""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standin.kit import Client, Start, finished, launch, pod, running

TIME = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z "


def logged(standin: Client, code: str) -> str:
    """Runs a pod to its end. Returns the path of its log."""
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.create(path, pod(code))
    standin.until(f"{path}/p", finished)
    return f"{path}/p/log"


@pytest.fixture(scope="module")
def ten_lines(standin: Client) -> str:
    return logged(standin, "for i in range(10): print('line', i)")


def test_tail_and_limit(standin: Client, ten_lines: str) -> None:
    assert standin.get(ten_lines).splitlines()[::9] == [b"line 0", b"line 9"]
    assert standin.get(ten_lines, tailLines=2) == b"line 8\nline 9\n"
    assert standin.get(ten_lines, tailLines=0) == b""
    assert standin.get(ten_lines, tailLines=99).count(b"\n") == 10
    assert standin.get(ten_lines, limitBytes=10) == b"line 0\nlin"


def test_timestamps_and_since(standin: Client, ten_lines: str) -> None:
    stamped = standin.get(ten_lines, timestamps="true").splitlines()
    assert all(re.fullmatch(TIME + rb"line \d", line) for line in stamped)
    moment = stamped[0][:30].decode()
    assert standin.get(ten_lines, sinceTime=moment).count(b"\n") == 10, "the fraction of sinceTime does not count"
    assert standin.get(ten_lines, sinceTime="2099-01-01T00:00:00Z") == b""
    assert standin.get(ten_lines, sinceSeconds=3600).count(b"\n") == 10


def test_wrong_questions_are_refused(standin: Client, ten_lines: str) -> None:
    assert standin.ask("GET", ten_lines, tailLines="x")[0] == 400
    assert standin.ask("GET", ten_lines, sinceTime="yesterday")[0] == 400
    assert standin.ask("GET", ten_lines, container="other")[1]["message"] == "container other is not valid for pod p"
    refused = standin.ask("GET", ten_lines, previous="true")[1]["message"]
    assert refused == 'previous terminated container "main" in pod "p" not found'
    assert standin.ask("GET", ten_lines.replace("/p/", "/q/"))[0] == 404


def test_a_last_line_without_its_end_and_any_bytes(standin: Client) -> None:
    path = logged(standin, "import os; os.write(1, bytes(range(256)) + b'\\n\\r\\nno end')")
    assert standin.get(path) == bytes(range(256)) + b"\n\r\nno end\n"


def test_long_lines_are_pieces_in_the_file_and_whole_for_the_client(standin: Client) -> None:
    path = logged(
        standin, "import sys; sys.stdout.write('a\\n' + 'x' * 40000 + '\\nb\\n' + 'y' * 16384 + '\\n'); print('z')"
    )
    assert standin.get(path) == b"a\n" + b"x" * 40000 + b"\nb\n" + b"y" * 16384 + b"\nz\n"
    stamped = standin.get(path, timestamps="true")
    assert len(re.findall(TIME, stamped)) == 5
    (file,) = (standin.root / "root" / "logs").glob(f"{path.split('/')[4]}_p_*/main/0.log")
    tags = [line[38:39] for line in file.read_bytes().splitlines()]
    assert tags == [b"F", b"P", b"P", b"F", b"F", b"F", b"F"]


def test_standard_error_is_in_the_same_log(standin: Client) -> None:
    path = logged(standin, "import os; os.write(1, b'out\\n'); os.write(2, b'err\\n')")
    assert sorted(standin.get(path).splitlines()) == [b"err", b"out"]


def test_the_log_is_complete_when_the_status_says_terminated(standin: Client) -> None:
    for _ in range(5):
        path = f"/api/v1/namespaces/{standin.namespace()}/pods"
        standin.create(path, pod("import os\nfor i in range(3000): os.write(1, b'%d\\n' % i)"))
        standin.until(f"{path}/p", finished)
        assert standin.get(f"{path}/p/log", tailLines=1) == b"2999\n"


def test_following_ends_with_the_container_and_misses_nothing(standin: Client) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.create(path, pod("import time\nfor i in range(50):\n    print(i, flush=True)\n    time.sleep(0.005)"))
    standin.until(f"{path}/p", lambda p: running(p) or finished(p))
    with standin.open("GET", f"{path}/p/log", follow="true") as response:
        assert response.read() == b"".join(b"%d\n" % i for i in range(50))


def test_a_log_is_readable_until_the_pod_is_deleted(standin: Client) -> None:
    path = logged(standin, "print('kept')")
    assert standin.get(path) == b"kept\n"
    standin.ask("DELETE", path.removesuffix("/log"))
    assert standin.ask("GET", path)[0] == 404


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A stand-in that rotates logs at 64 KiB and keeps three files."""
    client = launch(
        tmp_path_factory.mktemp("small"), "--nodes", "cpu:1", "--log-max-size", "64Ki", "--log-max-files", "3"
    )
    yield client
    client.stop()


CHATTER = "for i in range(20000): print(i, 'x' * 20)"


def test_what_was_rotated_away_is_lost_at_the_end(small: Client) -> None:
    path = logged(small, CHATTER)
    read = small.get(path)
    assert 0 < len(read) <= 64 * 1024
    assert read.endswith(b"19999 xxxxxxxxxxxxxxxxxxxx\n")
    files = sorted((small.root / "root" / "logs").glob(f"{path.split('/')[4]}_p_*/main/*"))
    assert len(files) == 3
    assert all(file.stat().st_size <= 66 * 1024 for file in files)


KEEPING_UP = """
import sys, time
for number in range(20000):
    if number % 250 == 0:
        sys.stdout.flush()
        while int(open(sys.argv[1]).read() or 0) < number - 250:
            time.sleep(0.005)
    print(number, 'x' * 20)
"""


def test_a_follower_reads_on_through_rotations(small: Client, tmp_path: Path) -> None:
    path = f"/api/v1/namespaces/{small.namespace()}/pods"
    # Never half a file ahead of its follower: a file that came and went unseen would be lost, as with a kubelet.
    read = tmp_path / "read"
    read.write_text("0")
    small.create(path, pod("", container={"command": ["python3", "-c", KEEPING_UP, str(read)]}))
    small.until(f"{path}/p", running)
    with small.open("GET", f"{path}/p/log", follow="true") as response:
        numbers = []
        for line in response:
            numbers.append(int(line.split()[0]))
            if len(numbers) % 50 == 0:
                read.write_text(str(len(numbers)))
    assert numbers == list(range(20000))


def test_a_follower_can_be_made_to_stop_at_a_rotation(small: Client) -> None:
    fault = small.fault(kind="stop-at-rotation")
    path = f"/api/v1/namespaces/{small.namespace()}/pods"
    small.create(path, pod(f"{CHATTER}\nimport time; time.sleep(30)", terminationGracePeriodSeconds=0))
    small.until(f"{path}/p", running)
    with small.open("GET", f"{path}/p/log", follow="true") as response:
        assert len(response.read()) < 20000 * 22, "ends, cleanly, while the container runs"
    small.ask("DELETE", "/standin/faults", id=fault["id"])


def test_a_client_that_does_not_read_stalls_nobody(standin: Client) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.create(path, pod("for i in range(300000): print(i, 'x' * 50)"))
    standin.until(f"{path}/p", lambda p: running(p) or finished(p))
    with socket.create_connection(standin.address) as hung:
        head = f"GET {path}/p/log?follow=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {standin.token}\r\n\r\n"
        hung.sendall(head.encode())
        standin.until(f"{path}/p", finished)
        assert standin.get(f"{path}/p/log", tailLines=1).startswith(b"299999 ")


def test_a_pod_that_waits_has_no_log_yet(standin: Client) -> None:
    path = f"/api/v1/namespaces/{standin.namespace()}/pods"
    standin.create(path, pod("pass", nodeSelector={"no": "where"}))
    code, status = standin.ask("GET", f"{path}/p/log")
    assert (code, status["reason"]) == (400, "BadRequest")
    assert "does not have a host assigned" in status["message"]


def test_a_cut_log_stream_can_be_resumed(standin: Client) -> None:
    path = logged(standin, "for i in range(1000): print('line', i)")
    standin.fault(kind="cut-log", path=path, bytes=1000, times=1)
    with standin.open("GET", path) as response, pytest.raises((http.client.IncompleteRead, ConnectionError)):
        response.read()
    assert standin.get(path).count(b"\n") == 1000


def test_a_log_stream_can_end_early_and_cleanly(standin: Client) -> None:
    path = logged(standin, "for i in range(1000): print('line', i)")
    fault = standin.fault(kind="end-log", path=path, bytes=50)
    assert len(standin.get(path)) == 50
    assert len(standin.get(path)) == 50
    standin.ask("DELETE", "/standin/faults", id=fault["id"])
    assert standin.get(path).count(b"\n") == 1000


def test_log_files_follow_the_kubelets_layout(start: Start) -> None:
    client = start("--nodes", "cpu:1")
    logged(client, "print('hello')")
    (file,) = (client.root / "root" / "logs").glob("test-1_p_*/main/0.log")
    assert re.fullmatch(TIME + rb"stdout F hello\n", Path(file).read_bytes())
