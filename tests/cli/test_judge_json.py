"""`allranks judge --json` keeps to its published schema, whatever the log; `--pattern` and the job's shape."""

# ruff: noqa: E501

import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from allranks import cli
from allranks.result import TrainingRun
from tests.ledger import samples as s
from tests.ledger.speech import log, rank_lines, world_lines

SCHEMA = json.loads(Path("docs/judge.schema.json").read_text())
ALL4 = range(4)
LOGS = {
    "records": (4, log(*world_lines()).decode()),
    "records of a bad run": (
        4,
        log(rank_lines(0, losses=[1.0, "nan"]), rank_lines(0, pid=9, t=1.0), rank_lines(9)).decode(),
    ),
    "restarted": (4, log(*(rank[:3] for rank in world_lines()), *world_lines(attempt=1)).decode()),
    "neuron": (4, "".join(map(s.neuron, ALL4))),
    "nvidia": (4, "".join(map(s.nvidia, ALL4))),
    "seed": (4, s.mpirun(dict.fromkeys(ALL4, s.seed(4)))),
    "trainer": (4, s.trainer()),
    "megatron nan": (8, s.megatron(8, nan=1)),
    "nemo": (1, s.nemo()),
    "titan": (4, s.torchrun(dict.fromkeys(ALL4, s.titan()), "rank")),
    "lightning": (4, s.lightning(4)),
    "nccl": (8, s.nccl(range(8))),
    "mlperf": (1, s.mllog("aborted")),
    "nothing": (4, "nothing at all\n"),
}


def judge(*arguments: object) -> int:
    return cli.main(["judge", *map(str, arguments)])


def judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], world: int, text: str, *options: object
) -> dict[str, Any]:
    path = tmp_path / "train.log"
    path.write_text(text)
    judge(path, "--world-size", world, "--json", *options)
    data: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return data


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", LOGS)
def test_real_output_follows_the_schema(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = judged(tmp_path, capsys, *LOGS[name])
    jsonschema.Draft202012Validator(SCHEMA).validate(data)
    assert TrainingRun.from_dict(data).to_dict() == data
    ranks = data["ranks"]
    assert ranks["expected"] == LOGS[name][0]
    assert ranks["reported"] + len(ranks["missing"]) == ranks["expected"]
    for listed in ("missing", "duplicate", "foreign"):
        assert ranks[listed] == sorted(ranks[listed])


def test_the_schema_refuses_another_roll_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = judged(tmp_path, capsys, *LOGS["neuron"])
    data["ranks"]["missing"] = ["3"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(data)


# --pattern ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"rank (?P<rank>\d+) done: (?P<throughput>[\d.,e]+) img/s in (?P<epoch_time>[\d.]+ ?\w+)", "rank {r} done: 1,250.5 img/s in 310 ms"),
        (r"(?P<throughput>[\d.]+k) img/s", "[1,{r}]<stdout>:1.2k img/s"),
        (r"worker(?P<rank>\d+)/(?P<world>\d+) ips=(?P<throughput>\S+)", "worker{r}/4 ips=5.8e3"),
    ],
)  # fmt: skip
def test_a_pattern_reads_what_no_format_knows(
    pattern: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    data = judged(tmp_path, capsys, 4, "".join(line.format(r=r) + "\n" for r in ALL4), "--pattern", pattern)
    assert data["verdict"] == "passed"
    assert all(rank["throughput"] > 1000 for rank in data["rank_results"])
    data = judged(tmp_path, capsys, 4, "".join(line.format(r=r) + "\n" for r in (0, 1, 3)), "--pattern", pattern)
    assert data["ranks"]["missing"] == [2]


def test_a_pattern_of_steps_needs_the_last_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lines = [f"r{rank} it {step} loss {9 - step}\n" for step in range(5) for rank in ALL4]
    pattern = r"r(?P<rank>\d+) it (?P<step>\d+) loss (?P<loss>[\d.]+)"
    assert judged(tmp_path, capsys, 4, "".join(lines), "--pattern", pattern)["verdict"] == "passed"
    assert judged(tmp_path, capsys, 4, "".join(lines[:-1]), "--pattern", pattern)["ranks"]["missing"] == [3]


def test_a_pattern_finds_another_world_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = "".join(f"{rank}/8 5.5\n" for rank in ALL4)
    data = judged(tmp_path, capsys, 4, text, "--pattern", r"(?P<rank>\d+)/(?P<world>\d+) (?P<throughput>[\d.]+)")
    assert (data["verdict"], data["cause"]["code"]) == ("failed", "world-size")


def test_a_catastrophic_pattern_ends_in_an_error_that_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.log").write_text("rank 1" + ",a" * 4000 + "\n")
    pattern = r"rank (?P<rank>\d+)(.*?,){25}(?P<loss>x)"
    begun = time.process_time()
    assert judge(tmp_path / "a.log", "--world-size", 4, "--pattern", pattern) == 2
    captured = capsys.readouterr()
    assert "rank (?P<rank>" in captured.err
    assert "takes too long" in captured.err
    assert captured.out == ""
    assert time.process_time() - begun < 20


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(?P<rank>", "missing"),
        (r"rank \d+", "no named group"),
        (r"(?P<speed>\d+)", "no such group: speed"),
        ("", "no named"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_an_error(
    pattern: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "a.log").write_text("x\n")
    assert judge(tmp_path / "a.log", "--world-size", 4, "--pattern", pattern) == 2
    assert says in capsys.readouterr().err


def test_processes_per_node_alone_give_the_jobs_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for node in range(2):
        (tmp_path / f"job-{node}-abcde.log").write_text(s.torchrun(dict.fromkeys(range(2), s.seed(4))))
    assert judge(tmp_path, "--world-size", 4, "--nproc-per-node", 2) == 0
    assert judge(tmp_path, "--world-size", 4, "--nproc-per-node", 3) == 2
    assert "no multiple" in capsys.readouterr().err
