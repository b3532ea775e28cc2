"""Which network NCCL uses, from its own lines; and the nodes' clocks, from the times in their logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allranks.artefacts import replay
from allranks.checks import PodEvidence, judge
from allranks.keeplog import KeptLog
from allranks.ledger import Ledger
from allranks.ledger.status import parse_status
from allranks.plan import Plan
from allranks.result import Verdict
from allranks.transport import EFA, NodeLog, networks_of_ranks, wrong_network

PLAN = Plan(nodes=2, processes_per_node=1, run_id="bert-x-1", resources=((EFA, "4"),))


def start(rank: int, pid: int, at: float = 1796037906.5) -> bytes:
    fields = {"v": 1, "run": "bert-x-1", "rank": rank, "world": 2, "attempt": 0, "seq": 0, "event": "start", "t": at}
    fields |= {"pid": pid, "node": f"node-{rank}", "pod": f"pod-{rank}", "backend": "nccl", "device": "cuda:0"}
    return b"ALLRANKS " + json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def said(rank: int, text: str) -> bytes:
    return start(rank, 40 + rank) + f"node-{rank}:{40 + rank}:99 [0] NCCL INFO {text}\n".encode()


def heard(*logs: bytes, step: int = 1 << 20) -> tuple[Ledger, dict[str, NodeLog]]:
    ledger, told = Ledger(PLAN), {}
    for index, log in enumerate(logs):
        name = f"pod-{index}.log"
        reader, told[name] = ledger.source(name, pod_index=index), NodeLog()
        for at in range(0, len(log), step):
            reader.feed(log[at : at + step])
            told[name].feed(log[at : at + step])
        reader.close()
    return ledger, told


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_network_is_known_by_the_process_that_names_it(step: int) -> None:
    ledger, told = heard(said(0, "Using network AWS Libfabric"), said(1, "Using network Socket"), step=step)
    assert networks_of_ranks(ledger, told) == {0: ("AWS Libfabric",), 1: ("Socket",)}


def test_sockets_where_efa_is_planned_fail_and_name_ranks_and_nodes() -> None:
    ledger, told = heard(said(0, "Using network AWS Libfabric"), said(1, "Using network Socket"))
    finding = wrong_network(PLAN, ledger, networks_of_ranks(ledger, told), 5.0)
    assert finding is not None
    assert (finding.ranks, finding.node, finding.phase) == ((1,), "node-1", "rendezvous")
    assert "EFA is planned, but NCCL of rank 1 on node-1 uses Socket" in finding.message


def test_sockets_are_right_where_efa_is_not_planned_or_there_is_one_node() -> None:
    ledger, told = heard(said(0, "Using network Socket"), said(1, "Using network Socket"))
    networks = networks_of_ranks(ledger, told)
    assert wrong_network(Plan(nodes=2, processes_per_node=1, run_id="bert-x-1"), ledger, networks, 5.0) is None
    single = Plan(nodes=1, processes_per_node=2, run_id="bert-x-1", resources=((EFA, "4"),))
    assert wrong_network(single, ledger, networks, 5.0) is None


def test_forged_line_of_another_process_changes_nothing() -> None:
    forged = start(0, 40) + b"node-0:77:99 [0] NCCL INFO Using network Socket\n"
    ledger, told = heard(forged, said(1, "Using network AWS Libfabric"))
    assert networks_of_ranks(ledger, told) == {1: ("AWS Libfabric",)}


def test_first_failure_is_told_by_one_clock_not_by_the_nodes_own() -> None:
    """Node 1's clock is an hour behind: by its own times it failed first, in truth 2 s after node 0."""

    def pod(index: int, at: float, clock: float) -> PodEvidence:
        first = {"rank": index, "local_rank": 0, "code": 1, "at": at, "why": "", "lines": []}
        status = {"v": 1, "run": "bert-x-1", "attempt": 0, "node": index, "nnodes": 2, "nproc": 1, "state": "failed"}
        message = json.dumps({**status, "codes": [[1, 1]], "first": first, "figures": {}})
        parsed = parse_status(message)
        assert parsed is not None
        return PodEvidence(index, f"pod-{index}", f"node-{index}", parsed, "Failed", 1, "Error", message, clock=clock)

    pods = [pod(0, 10_000.0, 0.1), pod(1, 10_002.0 - 3600, 3600.1)]
    cause = judge(PLAN, Ledger(PLAN), pods=pods).cause
    assert cause is not None
    assert cause.ranks == (0,)


def test_clock_that_is_off_is_noted_and_changes_no_cause(cluster: Any) -> None:
    cluster.fault(kind="clock-skew", path="standin-nvidia-1", seconds=-3600)
    run = cluster.run("--fault", "exit", "--rank", "0", "--step-time", "0.2")
    assert run.judgement.cause is not None
    assert run.judgement.cause.ranks == (0,)


def test_log_beyond_its_limit_keeps_records_and_the_verdict(cluster: Any) -> None:
    run = cluster.run("--chatter", "300", log_limit=64 * 1024)
    assert run.verdict is Verdict.PASSED, run.findings
    assert run.artefacts is not None
    sizes = [path.stat().st_size for path in (Path(run.artefacts) / "logs").iterdir()]
    assert max(sizes) < 80 * 1024
    notes = [finding.message for finding in run.findings if finding.code == "note-log-truncated"]
    assert len(notes) == 2
    assert replay(Path(run.artefacts)).verdict is Verdict.PASSED


def test_kept_log_is_whole_below_its_limit_and_bounded_above(tmp_path: Path) -> None:
    record = b'ALLRANKS {"v":1}\n'
    for step in (1, 100, 5000):
        log = KeptLog(tmp_path / f"{step}.log", 1000)
        content = b"first\n" + b"x" * 900 + b"\n" + b"noise\n" * 500 + record + b"more noise\n" + record
        for at in range(0, len(content), step):
            log.write(content[at : at + step])
        log.close()
        kept = (tmp_path / f"{step}.log").read_bytes()
        assert kept.startswith(b"first\n" + b"x" * 900 + b"\n")
        assert kept.count(record) == 2
        assert len(kept) < 1300
        assert log.dropped > 2000


def test_line_without_an_end_does_not_fill_the_disk(tmp_path: Path) -> None:
    log = KeptLog(tmp_path / "endless.log", 1000)
    for _ in range(64):
        log.write(b"x" * 65536)
    log.close()
    assert (tmp_path / "endless.log").stat().st_size < 2 << 20
    assert log.dropped > 1 << 20
