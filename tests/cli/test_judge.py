"""`allranks judge` as it is called."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from allranks import cli
from allranks.result import TrainingRun
from tests.ledger import samples
from tests.ledger.speech import log, rank_lines, record, world_lines


@pytest.fixture
def good(tmp_path: Path) -> Path:
    (tmp_path / "pod-0.log").write_bytes(log(*world_lines()[:2]))
    (tmp_path / "pod-1.log").write_bytes(log(*world_lines()[2:]))
    return tmp_path


def judge(*arguments: object) -> int:
    return cli.main(["judge", *map(str, arguments)])


def test_exit_0_and_the_fields_summary_when_every_rank_is_there(good: Path, capsys: pytest.CaptureFixture[str]):
    assert judge(good, "--world-size", 4) == 0
    out = capsys.readouterr().out.splitlines()
    assert "4 planned · 4 launched · 4 heard · 4 finished · 4 measured" in out
    assert "Parsed throughput from 4 ranks. Total=199.88 samples/s, Average=49.97 samples/s" in out
    assert "Average Throughput: 49.97 samples/second" in out
    assert "Parsed average epoch time from 4 ranks. Sum=1.24s, Average=0.31s" in out
    assert out[-1] == "PASSED: all 4 ranks accounted for"


def test_exit_1_when_a_rank_is_missing(good: Path, capsys: pytest.CaptureFixture[str]):
    assert judge(good / "pod-0.log", "--world-size", 4) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("INCOMPLETE: ranks 2-3 never reported")


def test_the_jobs_shape_names_pods_of_silent_ranks(good: Path, capsys: pytest.CaptureFixture[str]):
    (good / "pod-1.log").write_bytes(log(rank_lines(2)))
    assert judge(good, "--nodes", 2, "--nproc-per-node", 2) == 1
    assert "rank 3 (pod bert-1 on node node-1) never reported" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.log", "--world-size", "4"], "nowhere.log: no such file"),
        (["empty.log", "--world-size", "4"], "empty.log: empty"),
        (["pod-0.log"], "--world-size"),
        (["pod-0.log", "--world-size", "0"], "at least one"),
        (["pod-0.log", "--world-size", "99999999999999999999"], "more than can be judged"),
        (["pod-0.log", "--nodes", "99999999", "--nproc-per-node", "8"], "more than can be judged"),
        (["pod-0.log", "--world-size", "4", "--nodes", "3", "--nproc-per-node", "2"], "is not 3 nodes × 2"),
        (["pod-0.log", "--world-size", "4", "--nodes", "2"], "go together"),
    ],
)
def test_exit_2_and_one_sentence_when_it_cannot_be_judged(
    good: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
):
    monkeypatch.chdir(good)
    (good / "empty.log").touch()
    assert judge(*arguments) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""


def test_json_has_the_roll_call_and_can_be_read_back(good: Path, capsys: pytest.CaptureFixture[str]):
    (good / "more.log").write_bytes(log(rank_lines(1, pid=7, t=1.0), rank_lines(9)))
    (good / "pod-1.log").write_bytes(log(rank_lines(2, losses=[9.0, "nan"])))
    assert judge(good, "--world-size", 4, "--json") == 1
    text = capsys.readouterr().out
    data = json.loads(text, parse_constant=pytest.fail)
    assert data["verdict"] == "failed"
    assert data["ranks"] == {"expected": 4, "reported": 3, "missing": [3], "duplicate": [1], "foreign": [9]}
    assert [rank["rank"] for rank in data["rank_results"]] == [0, 1, 2, 3]
    assert data["rank_results"][2]["where"].endswith("pod-1.log:4")
    assert TrainingRun.from_dict(data).to_dict() == data


def test_standard_input(good: Path, monkeypatch: pytest.MonkeyPatch):
    class Stdin:
        buffer = io.BytesIO(log(*world_lines()))

    monkeypatch.setattr("sys.stdin", Stdin)
    assert judge("-", "--world-size", 4) == 0


def test_a_format_of_tokens_heads_its_column_with_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "job.log").write_text(WHOLE)
    assert judge(tmp_path, "--world-size", 4) == 0
    out = capsys.readouterr().out
    assert "Total=169928.00 tokens/s, Average=42482.00 tokens/s" in out
    assert "Average Throughput: 42482.00 tokens/second" in out
    assert any("tokens/s" in line.split() and "rank" in line.split() for line in out.splitlines())
    assert "samples" not in out
    assert judge(tmp_path, "--world-size", 4, "--json") == 0
    assert json.loads(capsys.readouterr().out)["throughput_unit"] == "tokens/s"


def test_a_restarted_job_is_green_only_when_that_is_allowed(good: Path):
    (good / "again.log").write_bytes(log(*world_lines(attempt=1)))
    assert judge(good, "--world-size", 4) == 1
    assert judge(good, "--world-size", 4, "--allow-flaky") == 0


PART, WHOLE = (samples.mpirun(dict.fromkeys(range(4), samples.seed(4, last))) for last in (4, 10))
FIRST = log(*world_lines()[:3], rank_lines(3)[:2], record(3, 2, "error", type="RuntimeError", message="NCCL error"))


@pytest.mark.parametrize(
    ("text", "verdict", "code"),
    [
        (FIRST + log(*world_lines(attempt=1)), "failed", "rank-error"),
        ((PART + WHOLE).encode(), "incomplete", "log-ends-early"),
        ((PART.replace("4.700000", "nan") + WHOLE).encode(), "failed", "not-finite"),
        ((WHOLE + WHOLE).encode(), "passed", None),
    ],
    ids=["our records", "cut short", "nan", "twice"],
)
def test_json_lists_the_attempts_before_the_one_that_counts(
    text: bytes, verdict: str, code: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "job.log").write_bytes(text)
    assert judge(tmp_path, "--world-size", 4, "--json", "--allow-flaky") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["verdict"], said["attempt"], said["ranks"]["missing"]) == ("flaky", 1, [])
    [earlier] = said["attempts"]
    assert (earlier["verdict"], earlier["attempt"]) == (verdict, 0)
    assert code in {finding["code"] for finding in earlier["findings"]} | {None}
    assert said["sentence"] == "FLAKY: all 4 ranks accounted for at attempt 2"
    assert TrainingRun.from_dict(said).attempts[0].ranks[0].rank == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_terminal_can_show_the_verdict(good: Path, encoding: str, monkeypatch: pytest.MonkeyPatch):
    (good / "pod-2.log").write_bytes(log(rank_lines(2, node="nœud-█")))
    for option in ([], ["--json"]):
        out = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, encoding=encoding))
        assert judge(good, "--world-size", 4, *option) == 1
        text = out.getvalue().decode(encoding)
        assert json.loads(text)["verdict"] == "incomplete" if option else "INCOMPLETE" in text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_verdict_that_cannot_be_written_is_no_verdict(good: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    with io.TextIOWrapper(Path("/dev/full").open("wb", buffering=0), write_through=True) as full:
        monkeypatch.setattr("sys.stdout", full)
        assert judge(good, "--world-size", 4) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_one_of_two_runs_can_be_named(good: Path):
    (good / "other.log").write_bytes(log(*world_lines(run="other")))
    assert judge(good, "--world-size", 4) == 1
    assert judge(good, "--world-size", 4, "--run-id", "other") == 0


def test_control_characters_of_a_log_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    evil = "\x1b]0;title\x07\x1b[2Jnode\r\n\u202eevil"
    (tmp_path / "a.log").write_bytes(log(rank_lines(0, world=2, node=evil, pod=evil, fingerprint=evil)))
    assert judge(tmp_path, "--world-size", 2) == 1
    out = capsys.readouterr().out
    assert not [c for c in out if not c.isprintable() and c != "\n"]


def test_a_closed_pipe_is_no_traceback(good: Path):
    command = f"{sys.executable} -m allranks judge {good} --world-size 4 | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_help_and_judge_do_not_import_what_is_slow():
    code = (
        "import sys, allranks.cli as cli\n"
        "try: cli.main(['judge', '--help'])\n"
        "except SystemExit: pass\n"
        "slow = {'kubernetes', 'aiohttp', 'torch', 'jinja2', 'yaml', 'pytest', 'asyncio', 'hyperscan', 'regex'}\n"
        "assert not slow & set(sys.modules), slow & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_no_command_prints_the_list_and_is_wrong_usage(capsys: pytest.CaptureFixture[str]):
    assert cli.main([]) == 2
    out = capsys.readouterr().out
    assert all(name in out for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_there_and_helps(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        cli.main([name, "--help"])
    assert left.value.code == 0
    assert f"allranks {name}" in capsys.readouterr().out


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("allranks ")
