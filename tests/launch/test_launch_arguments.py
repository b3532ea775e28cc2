"""The command line, as values."""

from __future__ import annotations

import signal
import sys

import pytest

from workloads.launch.args import ERR, OUT, HelpAsked, Launch, parse
from workloads.launch.options import OPTIONS, UsageError

TWO = ("--nnodes", "2", "--node-rank", "1", "--rdzv-id", "r", "--rdzv-endpoint", "master:1234")


def of(*words: str, **environ: str) -> Launch:
    return parse([*words], environ)


def refusal(*words: str, **environ: str) -> str:
    with pytest.raises(UsageError) as caught:
        of(*words, **environ)
    return str(caught.value)


def test_the_missions_own_line_with_underscores_and_separator() -> None:
    words = (
        "--nnodes 2 --nproc_per_node 8 --node_rank 1 --rdzv_endpoint 10.0.0.1:29500 --rdzv_id run7 -- x.py --nnodes 3"
    )
    launch = of(*words.split())
    assert (launch.nodes, launch.processes_per_node, launch.node_rank, launch.run_id) == (2, 8, 1, "run7")
    assert (launch.master_addr, launch.master_port) == ("10.0.0.1", 29500)
    assert launch.command == [sys.executable, "-u", "x.py", "--nnodes", "3"]


def test_a_program_after_the_separator_that_is_not_python_is_executed_itself() -> None:
    assert of("--", "sh", "-c", "x", PATH="/usr/bin:/bin").command == ["sh", "-c", "x"]
    assert of("--", "/bin/sh").command == ["/bin/sh"]
    assert of("--", "train.py").command == [sys.executable, "-u", "train.py"]
    assert of("--", "no-such-program", PATH="/usr/bin:/bin").command == [sys.executable, "-u", "no-such-program"]


def test_the_programs_own_separator_is_left_alone() -> None:
    assert of("x.py", "--", "-m").command[2:] == ["x.py", "--", "-m"]
    assert of("--", "x.py", "--", "-m").command[2:] == ["x.py", "--", "-m"]


def test_module_no_python_and_run_path() -> None:
    assert of("-m", "workloads.bert", "--size", "tiny").command == [
        sys.executable, "-u", "-m", "workloads.bert", "--size", "tiny"
    ]  # fmt: skip
    assert of("--no-python", "train.sh").command == ["train.sh"]
    assert of("--run-path", "/x.py", "1").command[-2:] == ["/x.py", "1"]
    assert "absolute" in refusal("--run-path", "x.py")
    assert "--no-python" in refusal("--no-python", "-m", "x")
    assert of("x.py", PYTHON_EXEC="/opt/python").command[0] == "/opt/python"


def test_dashes_underscores_equals_signs_abbreviations_and_short_forms() -> None:
    for words in (
        ("--nproc-per-node", "4"),
        ("--nproc_per_node=4",),
        ("--nproc-per_node", "4"),
        ("--nproc", "4"),
    ):
        assert of(*words, "x.py").processes_per_node == 4
    assert of("-t3", "x.py").tee == of("-t", "3", "x.py").tee == of("--tee=3", "x.py").tee == {None: OUT | ERR}
    assert "could be any of" in refusal("--n", "4", "x.py")
    assert "unknown option --nope" in refusal("--nope", "x.py")
    assert "takes no value" in refusal("--standalone=1", "x.py")
    assert "--nnodes needs a value" in refusal("--nnodes")
    assert "no program" in refusal("--nnodes", "1")


def test_pet_variables_are_defaults_that_the_command_line_overrides() -> None:
    environ = {"PET_NPROC_PER_NODE": "3", "PET_MODULE": "1", "PET_STANDALONE": "0", "PET_RDZV_ID": "e"}
    launch = of("x", **environ)
    assert (launch.processes_per_node, launch.run_id) == (3, "e")
    assert launch.command[2:] == ["-m", "x"]
    assert of("--nproc-per-node", "5", "x", **environ).processes_per_node == 5
    assert "a switch is 0 or 1" in refusal("x", PET_MODULE="yes")


def test_the_run_id_is_required_for_several_nodes_and_none_counts_as_absent() -> None:
    for given in ((), ("--rdzv-id", "none"), ("--rdzv-id", "")):
        sentence = refusal("--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "m:1", *given, "x.py")
        assert sentence.startswith("--rdzv-id is required with --nnodes 2")
        assert "could not agree" in sentence
    assert of("x.py").run_id is None


def test_the_node_rank_comes_from_the_indexed_job_only_where_there_are_several_nodes() -> None:
    words = ("--nnodes", "4", "--rdzv-id", "r", "--rdzv-endpoint", "m:1", "x.py")
    assert of(*words, JOB_COMPLETION_INDEX="3").node_rank == 3
    assert of(*words, JOB_COMPLETION_INDEX="3", PET_NODE_RANK="2").node_rank == 2
    assert of("x.py", JOB_COMPLETION_INDEX="3").node_rank == 0
    assert "--node-rank is required" in refusal(*words)
    assert "0 … 3" in refusal(*words, JOB_COMPLETION_INDEX="4")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nnodes", "1:4"), "--nnodes 1:4"),
        (("--nnodes", "0"), "at least 1"),
        (("--nproc-per-node", "0"), "at least 1"),
        (("--nproc-per-node", "many"), "--nproc-per-node many"),
        (("--nproc-per-node", "xpu"), "xpu"),
        ((*TWO, "--max-restarts", "1"), "--max-restarts 1 is not supported with several nodes"),
        ((*TWO, "--standalone"), "--standalone is for one node"),
        ((*TWO, "--local-addr", "10.0.0.2"), "--local-addr"),
        (("--rdzv-backend", "etcd-v2"), "--rdzv-backend etcd-v2"),
        (("--start-method", "fork"), "--start-method fork"),
        (("--event-log-handler", "console"), "--event-log-handler console"),
        (("--logs-specs", "mine"), "--logs-specs mine"),
        (("--duplicate-stdout-filters", "loss"), "--duplicate-stdout-filters loss"),
        (("--duplicate-stderr-filters", "loss"), "--duplicate-stderr-filters loss"),
        (("--rdzv-conf", "is_host=1"), "--rdzv-conf is_host=1"),
        (("--numa-binding", "moon"), "--numa-binding moon"),
        (("--redirects", "7"), "--redirects 7"),
        (("--tee", "0:1,x:3"), "--tee 0:1,x:3"),
        (("--local-ranks-filter", "a"), "--local-ranks-filter a"),
        (("--signals-to-handle", "SIGKILL"), "SIGKILL"),
        (("--signals-to-handle", "TERM"), "TERM"),
        (("--shutdown-timeout", "soon"), "--shutdown-timeout soon"),
        (("--monitor-interval", "-1"), "--monitor-interval -1"),
        (("--rdzv-endpoint", "m:1", "--master-addr", "n"), "contradicts"),
        (("--rdzv-endpoint", "m:1", "--master-port", "2"), "contradicts"),
        (("--rdzv-endpoint", "m:99999"), "port 99999"),
        (("--rdzv-endpoint", ":1"), "HOST:PORT"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(words: tuple[str, ...], said: str) -> None:
    assert said in refusal(*words, "x.py")


def test_several_nodes_need_an_address() -> None:
    words = ("--nnodes", "2", "--node-rank", "0", "--rdzv-id", "r")
    assert "--rdzv-endpoint HOST:PORT is required" in refusal(*words, "x.py")
    assert of(*words, "--master-addr", "localhost", "x.py").master_addr == "localhost"


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ((*TWO,), ("master", 1234)),
        ((*TWO[:-1], "master"), ("master", 29500)),
        ((*TWO[:-1], "master", "--rdzv-backend", "c10d"), ("master", 29400)),
        ((*TWO[:-1], "[fd00::1]:77"), ("fd00::1", 77)),
        ((*TWO[:-1], "fd00::1"), ("fd00::1", 29500)),
        ((*TWO[:-2], "--master-addr", "m", "--master-port", "9"), ("m", 9)),
        ((), ("127.0.0.1", None)),
        (("--standalone",), ("127.0.0.1", None)),
        (("--standalone", "--rdzv-endpoint", "m:1"), ("127.0.0.1", None)),
        (("--rdzv-endpoint", "localhost:0"), ("localhost", None)),
        (("--master-port", "29511"), ("127.0.0.1", 29511)),
        (("--local-addr", "10.0.0.2"), ("10.0.0.2", None)),
    ],
)
def test_where_the_master_is(words: tuple[str, ...], address: tuple[str, int | None]) -> None:
    launch = of(*words, "x.py")
    assert (launch.master_addr, launch.master_port) == address


def test_output_options() -> None:
    launch = of("-r", "0:1,12:3", "--tee", "2", "--local-ranks-filter", "0,2", "x.py")
    assert launch.redirects == {None: 0, 0: OUT, 12: OUT | ERR}
    assert launch.tee == {None: ERR}
    assert launch.shown == frozenset({0, 2})
    assert launch.prefix == "[${role_name}${local_rank}]:"
    assert of("x.py").prefix == ""
    assert of("x.py", TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="[${rank}] ").prefix == "[${rank}] "
    assert of("--line-prefix", "", "--tee", "3", "x.py").prefix == ""


def test_times_and_signals() -> None:
    launch = of("x.py")
    assert (launch.shutdown_timeout, launch.rdzv_timeout) == (20, 600)
    assert launch.signals == (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    assert of("x.py", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="7").shutdown_timeout == 7
    assert of("--rdzv-conf", "join_timeout=5", "x.py").rdzv_timeout == 5
    assert of("--signals-to-handle", "SIGTERM,SIGUSR1", "x.py").signals == (signal.SIGTERM, signal.SIGUSR1)


def test_help_names_every_option() -> None:
    with pytest.raises(HelpAsked) as caught:
        of("--nnodes", "2", "--help")
    assert all(f"--{name}" in str(caught.value) for name in OPTIONS)
