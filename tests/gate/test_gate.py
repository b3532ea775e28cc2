"""verdict.json and `judge --references`: what a pipeline decides by."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from allranks import cli
from allranks.checks import judge
from allranks.checks.references import hold
from allranks.gate import Session, Skip
from allranks.plan import Accelerator
from allranks.references import References
from allranks.result import TrainingRun, Verdict
from allranks.standin_process import start_standin
from tests.ledger.speech import ledger_of, log, plan_of, rank_lines, world_lines

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "verdict.schema.json").read_text())
REFERENCES = """
[[reference]]
name = "all"
[reference.metrics]
throughput_sum = { value = 200, lower = -0.05, unit = "samples/s" }
startup_pulled = { value = 60, upper = 0, unit = "s" }
"""


def run_of(*logs: bytes) -> TrainingRun:
    plan = plan_of(workload="bert", accelerator=Accelerator.NVIDIA)
    return TrainingRun(plan, judge(plan, ledger_of(*logs, plan=plan)), cluster="logs")


@pytest.fixture
def good() -> TrainingRun:
    return run_of(log(*world_lines(standin="nvidia")))


def document(session: Session, path: Path) -> dict:
    session.write(path / "verdict.json")
    assert [found.name for found in path.iterdir()] == ["verdict.json"]
    written = json.loads((path / "verdict.json").read_text())
    jsonschema.validate(written, SCHEMA)
    return written


def test_a_green_session(good: TrainingRun, tmp_path: Path):
    told = document(Session("PASSED: …", True, [good]), tmp_path)
    assert (told["verdict"], told["green"], told["skipped"]) == ("passed", True, [])
    (run,) = told["runs"]
    assert run["subject"] == {"workload": "bert", "size": "tiny", "accelerator": "nvidia", "world_size": "4"}
    assert run["figures"]["throughput_sum"] == pytest.approx(199.88)
    assert run["ranks"] == {"expected": 4, "reported": 4, "missing": [], "duplicate": [], "foreign": []}
    assert (run["cause"], len(run["attempts"])) == (None, 1)


def test_a_violated_and_an_unmeasured_reference(good: TrainingRun, tmp_path: Path):
    slow = run_of(log(*world_lines(standin="nvidia")[:3], rank_lines(3, standin="nvidia", throughput=1.0)))
    run = hold(slow, References.parse(REFERENCES, "references.toml"))
    told = document(Session(run.sentence(), False, [good, run]), tmp_path)
    assert told["verdict"] == "failed"
    failed = told["runs"][1]
    assert (failed["phase"], failed["cause"]["code"]) == ("check", "reference")
    assert [(each["metric"], each["outcome"]) for each in failed["references"]] == [
        ("throughput_sum", "violated"),
        ("startup_pulled", "missing"),
    ]


def test_nan_is_written_as_json_can_say_it(tmp_path: Path):
    run = run_of(log(*world_lines(standin="nvidia")[:3], rank_lines(3, standin="nvidia", throughput="nan")))
    told = document(Session("", False, [hold(run, References.parse(REFERENCES, "references.toml"))]), tmp_path)
    assert told["runs"][0]["figures"]["throughput_sum"] == "nan"
    assert told["runs"][0]["references"][0]["measured"] == "nan"


def test_earlier_attempts_are_told_oldest_first(good: TrainingRun, tmp_path: Path):
    lost = run_of(log(*world_lines(standin="nvidia")[:3])).judgement
    run = replace(good, judgement=replace(good.judgement, verdict=Verdict.FLAKY), attempts=(lost,))
    told = document(Session("", False, [run]), tmp_path)
    assert told["verdict"] == "flaky"
    assert [(each["verdict"], each["reported"]) for each in told["runs"][0]["attempts"]] == [
        ("incomplete", 3),
        ("flaky", 4),
    ]


def test_no_run_is_no_pass_and_runs_that_passed_do_not_hide_a_failed_test(good: TrainingRun, tmp_path: Path):
    none = document(Session("no training run was judged", False, skipped=[Skip("t", "no such nodes")]), tmp_path)
    assert (none["verdict"], none["skipped"]) == ("none", [{"what": "t", "why": "no such nodes"}])
    failed = document(Session("FAILED: 1 of 8 tests failed", False, [good], ["e2e/test_bert.py::t"]), tmp_path)
    assert failed["verdict"] == "failed"


# allranks judge ------------------------------------------------------------------------------------------------------


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "pod.log").write_bytes(log(*world_lines()))
    return tmp_path / "logs"


def judged(logs: Path, references: str | None, *arguments: str) -> int:
    given = []
    if references is not None:
        file = logs.parent / "references.toml"
        file.write_text(references)
        given = ["--references", str(file)]
    return cli.main(["judge", str(logs), "--world-size", "4", *given, *arguments])


def test_judge_passes_what_meets_its_reference_and_shows_the_table(logs: Path, capsys: pytest.CaptureFixture[str]):
    met = "[[reference]]\n[reference.metrics]\nepoch_time = { value = 300, upper = 0.1, unit = 'ms' }"
    assert judged(logs, met) == 0
    out = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["epoch_time", "0.31", "–", "0.33", "s", "ok", "reference", "1"] for line in out), out
    assert out[-1] == "PASSED: all 4 ranks accounted for"


def test_judge_fails_what_violates_its_reference(logs: Path, capsys: pytest.CaptureFixture[str]):
    assert judged(logs, REFERENCES.replace("200", "300")) == 1
    out = capsys.readouterr().out
    assert "NOT MEASURED" in out
    assert out.splitlines()[-1].startswith(
        "FAILED in check: throughput_sum is 199.88 samples/s, less than 285 samples/s"
    )


def test_judge_is_told_what_the_logs_do_not_say(logs: Path, capsys: pytest.CaptureFixture[str]):
    for_p5 = REFERENCES.replace("[reference.metrics]", 'instance_type = "p5*"\n[reference.metrics]')
    assert judged(logs, for_p5) == 0
    assert "no reference in" in capsys.readouterr().out
    assert judged(logs, for_p5, "--describe", "instance_type=p5.48xlarge") == 1
    assert judged(logs, for_p5, "--require-reference") == 1
    assert "and one is required" in capsys.readouterr().out.splitlines()[-1]
    assert judged(logs, None, "--require-reference") == 1
    assert "no references were given" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("references", "says"),
    [
        ("[[reference", "references.toml: not valid TOML"),
        (REFERENCES.replace("samples/s", "furlongs"), "references.toml: reference 1: metrics.throughput_sum.unit"),
        (REFERENCES + REFERENCES.replace("[reference.m", "size = '*'\n[reference.m"), "fit this run equally well"),
    ],
)
def test_judge_exits_2_for_a_file_that_cannot_be_used(
    logs: Path, capsys: pytest.CaptureFixture[str], references: str, says: str
):
    assert judged(logs, references) == 2
    assert says in capsys.readouterr().err


def test_judge_exits_2_for_a_references_file_that_is_not_there(logs: Path, capsys: pytest.CaptureFixture[str]):
    assert judged(logs, None, "--references", "nowhere.toml") == 2
    assert "nowhere.toml: No such file" in capsys.readouterr().err


# pytest e2e ----------------------------------------------------------------------------------------------------------


def session(*arguments: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "e2e", "-k", "bert", "-q", *arguments],
        cwd=ROOT,
        env={**kept, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", **env},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def last_line(ran: subprocess.CompletedProcess[str]) -> str:
    return ran.stdout.rstrip().splitlines()[-1]


def told_by(path: Path) -> dict:
    told = json.loads(path.read_text())
    jsonschema.validate(told, SCHEMA)
    return told


def test_a_session_that_cannot_begin_replaces_yesterdays_verdict(tmp_path: Path):
    verdict = tmp_path / "new" / "verdict.json"
    verdict.parent.mkdir()
    verdict.write_text('{"green": true}')
    ran = session("--verdict-json", str(verdict), home=tmp_path, KUBECONFIG=str(tmp_path / "gone"))
    assert ran.returncode == 1
    told = told_by(verdict)
    assert (told["green"], told["verdict"], told["sentence"]) == (False, "none", last_line(ran))


def test_references_that_cannot_be_used_end_the_session_before_anything_is_deployed(tmp_path: Path):
    (tmp_path / "references.toml").write_text(REFERENCES.replace("throughput_sum", "throughput"))
    ran = session("--cluster", "standin", "--references", str(tmp_path / "references.toml"), home=tmp_path)
    assert ran.returncode == 4
    assert "references.toml: reference 1: metrics: unknown key 'throughput'" in ran.stderr + ran.stdout


def test_a_required_accelerator_makes_its_skip_a_failure(tmp_path: Path):
    verdict = tmp_path / "verdict.json"
    with start_standin(tmp_path / "standin", ("cpu:1",)) as kubeconfig:
        ran = session(
            *("--kubeconfig", str(kubeconfig), "--require-accelerator", "nvidia", "--verdict-json", str(verdict)),
            *("--artefacts", str(tmp_path / "artefacts")),
            home=tmp_path,
        )
    assert ran.returncode == 1, ran.stdout
    assert "--require-accelerator nvidia: " in ran.stdout
    told = told_by(verdict)
    assert not told["green"]
    assert any("[nvidia]" in test for test in told["failed_tests"])
    assert {skip["what"].partition("[")[2] for skip in told["skipped"]} == {"neuron]"}
    assert all("neuron" in skip["why"] for skip in told["skipped"])


def test_a_run_on_another_accelerator_does_not_stand_for_the_required_one(tmp_path: Path):
    """And, in the same real run: references are compared, kept with the run, and its replay comes to the same."""
    verdict, artefacts = tmp_path / "verdict.json", tmp_path / "artefacts"
    references = tmp_path / "references.toml"
    references.write_text(
        "[[reference]]\nworkload = 'bert'\nsize = 'tiny'\naccelerator = 'neuron'\nworld_size = 1\n"
        "[reference.metrics]\nstartup_total = { value = 600, upper = 0, unit = 's' }\n"
        "throughput_slowest = { value = 1, lower = -0.9, unit = 'samples/s' }\n"
        "step_time_p99 = { value = 1, upper = 99, unit = 'min' }\n"
    )
    with start_standin(tmp_path / "standin", ("neuron:1x1",)) as kubeconfig:
        ran = session(
            *("--kubeconfig", str(kubeconfig), "--accelerator", "neuron", "--require-accelerator", "nvidia"),
            *("--references", str(references), "--require-reference", "--verdict-json", str(verdict)),
            *("--artefacts", str(artefacts)),
            home=tmp_path,
        )
    assert ran.returncode == 1, ran.stdout
    assert last_line(ran).startswith("FAILED: no run on nvidia was judged, and one is required"), ran.stdout
    told = told_by(verdict)
    assert (told["verdict"], told["failed_tests"]) == ("failed", [])
    (run,) = told["runs"]
    assert run["verdict"] == "passed"
    assert {each["metric"]: each["outcome"] for each in run["references"]} == dict.fromkeys(
        ("throughput_slowest", "step_time_p99", "startup_total"), "met"
    )
    references.unlink()
    again = subprocess.run(
        [sys.executable, "-m", "allranks", "replay", run["artefacts"], "--json"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(again.stdout)["references"] == run["references"]
