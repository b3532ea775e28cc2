"""The second channel: 4096 bytes, whatever happens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from workloads.launch.status import LIMIT, Figures, FirstFailure, TerminationLog, encode


def status(codes: Sequence[int | None], **more: Any) -> dict[str, Any]:
    data = encode(run_id="bert-nvidia-3f9a1c", attempt=0, node=1, nodes=2, state="failed", codes=codes, **more)
    assert len(data) <= LIMIT
    message: dict[str, Any] = json.loads(data)
    return message


def failure(lines: int = 0, width: int = 100, why: str = "rank 35 exited with code 17") -> FirstFailure:
    first = FirstFailure(35, 3, 17, 1764497325.123456, why)
    first.lines = [f"{index:04d}" + "x" * (width - 4) for index in range(lines)]
    return first


def many(ranks: int) -> dict[int, tuple[float, float]]:
    return {rank: (49.9712 + rank, 0.310123) for rank in range(128, 128 + ranks)}


def test_codes_are_run_lengths_over_local_ranks() -> None:
    assert status([0] * 30 + [17, -15])["codes"] == [[0, 30], [17, 1], [-15, 1]]
    assert status([None, None, 0])["codes"] == [[None, 2], [0, 1]]


def test_everything_that_the_contract_names_is_there() -> None:
    message = status([0, 17], first=failure(2), figures={3: (49.97, 0.31), 2: (50.01, "nan"), 7: (1, None)})
    assert message == {
        "v": 1, "run": "bert-nvidia-3f9a1c", "attempt": 0, "node": 1, "nnodes": 2, "nproc": 2, "state": "failed",
        "codes": [[0, 1], [17, 1]],
        "first": {"rank": 35, "local_rank": 3, "code": 17, "at": 1764497325.123, "why": "rank 35 exited with code 17",
                  "lines": failure(2).lines},
        "figures": {"ranks": [[2, 2], [7, 1]], "throughput": [50.01, 49.97, 1], "epoch_time": ["nan", 0.31, None]},
    }  # fmt: skip


def test_128_ranks_fit_with_all_figures() -> None:
    message = status([0] * 128, figures=many(128))
    assert message["figures"]["ranks"] == [[128, 128]]
    assert len(message["figures"]["throughput"]) == len(message["figures"]["epoch_time"]) == 128


def test_last_lines_give_way_to_figures_the_newest_staying_longest() -> None:
    message = status([0] * 127 + [17], first=failure(20, 300), figures=many(128))
    assert message["figures"] is not None
    kept = message["first"]["lines"]
    assert 0 < len(kept) < 20
    assert kept == failure(20, 300).lines[-len(kept) :]


def test_figures_give_way_to_codes() -> None:
    codes: list[int | None] = [17 if rank % 2 else -15 for rank in range(240)]
    message = status(codes, first=failure(20), figures=dict.fromkeys(range(240), (49.9712, 0.310123)))
    assert message["figures"] is None
    assert message["codes"] == [[code, 1] for code in codes]
    assert message["first"]["lines"] == []


def test_a_long_reason_is_shortened_before_codes_are_touched() -> None:
    message = status([17 if rank % 2 else -15 for rank in range(470)], first=failure(why="w" * 500))
    assert len(message["codes"]) == 470
    assert message["first"]["why"] == "w" * 77 + "…"


def test_beyond_what_can_be_listed_codes_are_counted() -> None:
    message = status([17 if rank % 2 else -15 for rank in range(2000)], first=failure(20), figures=many(128))
    assert message["codes"] is None
    assert sorted(message["counts"]) == [[-15, 1000], [17, 1000]]


@pytest.mark.parametrize("text", ["\udcff\ud800", "\x00\x1b[31m", "ü" * 400, '"\\' * 200])
def test_any_text_makes_valid_utf8_json(text: str) -> None:
    first = failure(20)
    first.lines = [text] * 20
    assert status([1], first=first)["first"]["rank"] == 35


END = '{"v":1,"run":"r1","rank":3,"world":4,"attempt":0,"seq":9,"event":"end","throughput":49.971234,"epoch_time":0.31}'


@pytest.mark.parametrize(
    "line",
    [
        f"ALLRANKS {END}\n",
        f"step 5 loss 2.3ALLRANKS {END}\n",
        f"[default3]:ALLRANKS {END} trailing\n",
        f'ALLRANKS {{"event":"step","run":"r1"}}ALLRANKS {END}ALLRANKS {{"event":"st\n',
        f"before\n\xff\xfe\nALLRANKS {END}\nafter\n",
    ],
)
def test_an_end_record_is_found_anywhere_in_a_line(line: str) -> None:
    figures = Figures("r1")
    assert figures.hear(line.encode("latin-1"))
    assert figures.by_rank == {3: (49.9712, 0.31)}


@pytest.mark.parametrize(
    "line",
    [
        'loss "event":"end"\n',
        'ALLRANKS {"event":"end"\n',
        'ALLRANKS {"event":"end","rank":3}\n',
        'ALLRANKS {"run":"other","event":"end","rank":3}\n',
        'ALLRANKS {"run":"r1","event":"end","rank":-1}\n',
        'ALLRANKS {"run":"r1","event":"end","rank":"3"}\n',
        'ALLRANKS {"run":"r1","event":"step","x":{"event":"end"},"rank":3}\n',
    ],
)
def test_what_is_not_an_end_record_of_this_run_is_not_one(line: str) -> None:
    figures = Figures("r1")
    assert not figures.hear(line.encode())
    assert figures.by_rank == {}


def test_several_ranks_in_one_block() -> None:
    figures = Figures("r1")
    block = "".join(f"x\nALLRANKS {END}\n".replace('"rank":3', f'"rank":{rank}') for rank in range(64))
    assert figures.hear(block.encode())
    assert sorted(figures.by_rank) == list(range(64))


def test_numbers_that_are_none_are_kept_as_they_were_said() -> None:
    figures = Figures("r1")
    figures.hear(b'ALLRANKS {"run":"r1","rank":0,"event":"end","throughput":"nan","epoch_time":"fast"}\n')
    assert figures.by_rank == {0: ("nan", None)}


def test_the_log_is_rewritten_in_place(tmp_path: Any) -> None:
    path = tmp_path / "log"
    path.write_text("a longer text from before")
    inode = path.stat().st_ino
    log = TerminationLog(str(path))
    log.write(b"first message")
    log.write(b"second")
    assert path.read_bytes() == b"second"
    assert path.stat().st_ino == inode
    assert log.error is None


def test_a_device_without_a_length_is_no_trouble() -> None:
    log = TerminationLog("/dev/null")
    log.write(b"a message")
    assert log.error is None


def test_a_log_that_cannot_be_opened_is_an_error_told_not_raised(tmp_path: Any) -> None:
    log = TerminationLog(str(tmp_path / "no" / "such"))
    assert not log.wanted
    assert isinstance(log.error, FileNotFoundError)
