"""Who said it: launchers' prefixes, names of logs, and local ranks that are never taken for global ones."""

import pytest

from allranks.checks import judge
from allranks.ledger import Ledger
from allranks.ledger.lines import Line
from allranks.ledger.origin import origin_of
from allranks.ledger.speech import prefix_of
from allranks.plan import Plan
from allranks.result import Judgement, Verdict
from tests.ledger import samples as s

RANKS = range(4)
STEPS = s.seed(4)


def judged(logs: dict[str, str], world: int = 4, plan: Plan | None = None, shaped: bool | None = None) -> Judgement:
    ledger = Ledger(plan or Plan.of_world(world), shaped=shaped)
    for name, text in logs.items():
        reader = ledger.source(name)
        reader.feed(text.encode())
        reader.close()
    return judge(ledger.plan, ledger)


def finding_codes(judgement: Judgement) -> set[str]:
    return {finding.code for finding in judgement.findings if finding.verdict is not Verdict.PASSED}


@pytest.mark.parametrize(
    "tag",
    [
        "[1,{r}]<stdout>:",
        "[1,{r}]<stderr>:",
        "Wed Jan 15 10:00:00 2025[1,{r}]<stdout>:",
        "[prterun-host-17@1,{r}]<stdout>: ",
        "[1,{r}][node-0:123]<stdout>:",
        "{r}: ",
        "   {r}: ",
        "2025-01-15T10:00:00.123456789Z {r}: ",
        "[pod/bert-{r}-x2b4z/main] ",
        "[pod/bert-{r}-x2b4z/main] 2025-01-15T10:00:00.123Z ",
        "bert-{r}-x2b4z main ",
        "[pod/bert-{r}-x2b4z/main] [default0]:",
        "[default{r}]:",
        "[rank{r}]:",
        "[rank{r}]: ",
        "[rank{r}-local_rank0-attempt0]:",
        "\x1b[32m[1,{r}]<stdout>:\x1b[0m",
    ],
)
def test_prefixes_name_the_rank(tag: str):
    log = s.woven(*(s.tagged(STEPS, tag.format(r=rank)) for rank in RANKS))
    assert judged({"all.log": log}).verdict is Verdict.PASSED
    short = s.woven(*(s.tagged(STEPS if r != 2 else s.seed(4, 5), tag.format(r=r)) for r in RANKS))
    assert judged({"all.log": short}).missing == (2,)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r", ""])
def test_prefixes_are_found_however_lines_end(ending: str):
    rows = STEPS.splitlines()
    log = "".join(f"[1,{rank}]<stdout>:{row}{ending}" for row in rows for rank in RANKS)
    assert judged({"all.log": log}).verdict is Verdict.PASSED


@pytest.mark.parametrize(
    "name",
    [
        "rank_{r}.log", "rank{r}.log", "logs/rank-{r}.txt", "log.rank_{r}", "out/1/rank.{r}/stdout",
        "job-{r}-abcde.log", "bert-{r}.log", "pods/default_bert-{r}-x2b4z_8d3f/main/0.log", "pod-{r}/stdout.log",
        "node_{r}.log", "tmp/none_u8/attempt_0/{r}/stdout.log",
    ],
)  # fmt: skip
def test_names_of_logs_tell_the_rank(name: str):
    assert judged({name.format(r=rank): STEPS for rank in RANKS}).verdict is Verdict.PASSED
    assert judged({name.format(r=rank): STEPS for rank in RANKS if rank != 1}).missing == (1,)


@pytest.mark.parametrize("name", ["slurm-2.out", "run-2.log", "train-2025-01-02.log", "attempt-1.log", "step-2.log"])
def test_numbers_in_names_that_are_no_ranks(name: str):
    origin = origin_of(name)
    assert (origin.rank, origin.local, origin.node) == (None, None, None)


def test_one_ranks_log_is_rank_0_whatever_its_name():
    assert judged({"slurm-81234.out": s.seed(1)}, world=1).verdict is Verdict.PASSED


# Local ranks ----------------------------------------------------------------------------------------------------------


def two_nodes(head: str = "") -> dict[str, str]:
    text = s.torchrun(dict.fromkeys(RANKS, s.seed(8)))
    return {f"{name}.log": head.format(node=node) + text for node, name in enumerate(("left", "right"))}


def test_local_ranks_of_unknown_nodes_are_nobodys():
    judgement = judged(two_nodes(), world=8)
    assert judgement.verdict is Verdict.INCOMPLETE
    assert judgement.reported == ()
    assert finding_codes(judgement) == {"unattributed", "missing-rank"}
    assert "a local rank is a global one only together with its node" in judgement.findings[0].message


def test_one_nodes_log_is_not_the_first_half_of_the_world():
    assert judged({"left.log": two_nodes()["left.log"]}, world=8).reported == ()


@pytest.mark.parametrize(
    "head",
    [
        "+ torchrun --nnodes 2 --nproc-per-node 4 --node-rank {node} train.py\n",
        "torchrun --nnodes=2 --nproc_per_node=4 --node_rank={node} train.py\n",
        "GROUP_RANK={node}\nLOCAL_WORLD_SIZE=4\n",
        "[default] Rendezvous complete for workers. Result:\n  group_rank={node}\n  local_ranks=[0, 1, 2, 3]\n",
        "export NODE_RANK={node}\n",
    ],
)
def test_what_a_log_says_of_its_node_places_local_ranks(head: str):
    judgement = judged(two_nodes(head), world=8)
    assert judgement.verdict is Verdict.PASSED
    assert judgement.ranks[5].where is not None
    assert judgement.ranks[5].where.startswith("right.log:")


def test_torchruns_global_ranks_place_local_ones_even_against_the_order():
    logs = {}
    for name, first in (("left", 4), ("right", 0)):
        ranks = ", ".join(str(first + local) for local in RANKS)
        head = f"  local_ranks=[0, 1, 2, 3]\n  role_ranks=[{ranks}]\n  global_ranks=[{ranks}]\n"
        logs[f"{name}.log"] = head + two_nodes()["left.log"]
    judgement = judged(logs, world=8)
    assert judgement.verdict is Verdict.PASSED
    assert str(judgement.ranks[0].where).startswith("right.log:")


def test_ranks_that_name_themselves_place_their_later_lines():
    logs = {
        name: "".join(f"[default{local}]:RANK={4 * node + local} LOCAL_RANK={local} WORLD_SIZE=8\n" for local in RANKS)
        + text
        for node, (name, text) in enumerate(two_nodes().items())
    }
    assert judged(logs, world=8).verdict is Verdict.PASSED


def test_a_node_that_contradicts_itself_is_not_believed():
    head = "torchrun --node_rank=0 --nproc_per_node=4\ntorchrun --node_rank=1 --nproc_per_node=4\n"
    assert judged({"all.log": head + two_nodes()["left.log"]}, world=8).reported == ()


def test_the_jobs_shape_and_pods_place_local_ranks():
    text = s.torchrun(dict.fromkeys(range(2), s.seed(8)))
    logs = {f"job-{pod}-abcde.log": text for pod in range(2)}
    assert judged(logs, world=8).reported == (), "2 × 4 or 4 × 2: nobody says"
    shaped = judged(logs, plan=Plan(nodes=2, processes_per_node=4))
    assert shaped.reported == (0, 1, 4, 5)


def test_one_node_is_one_when_it_is_said_or_follows():
    local = s.torchrun(dict.fromkeys(range(2), STEPS))
    assert judged({"x.log": local}).reported == (), "1 × 4 or 2 × 2: nobody says"
    assert judged({"x.log": local}, shaped=True).missing == (2, 3)
    assert judged({"x.log": s.torchrun({rank: STEPS for rank in RANKS if rank != 1})}).missing == (1,)


def test_a_node_label_of_srun_with_torchrun_below_it():
    log = s.woven(*(s.tagged(STEPS, f"{rank // 2}: [default{rank % 2}]:") for rank in RANKS))
    assert judged({"slurm-7.out": log}).verdict is Verdict.PASSED


def test_log_dirs_attempts_are_attempts():
    logs = {
        f"tmp/none_u8/attempt_{attempt}/{rank}/stdout.log": s.seed(4, 10 if attempt else 4)
        for rank in RANKS
        for attempt in range(2)
    }
    judgement = judged(logs)
    assert (judgement.verdict, judgement.attempt) == (Verdict.FLAKY, 1)


def test_stdout_and_stderr_of_one_process_are_one_speaker():
    logs = {f"t/attempt_0/{rank}/stdout.log": STEPS for rank in RANKS}
    logs |= {f"t/attempt_0/{rank}/stderr.log": s.NOISE for rank in RANKS}
    assert judged(logs).verdict is Verdict.PASSED


def test_one_log_given_twice_is_two_speakers():
    judgement = judged({"a.log": s.mpirun(dict.fromkeys(RANKS, STEPS)), "b.log": s.mpirun({2: STEPS})})
    assert judgement.duplicate == (2,)
    assert finding_codes(judgement) == {"duplicate-rank"}


def test_a_rank_beyond_the_plan_is_foreign():
    assert judged({"a.log": s.mpirun(dict.fromkeys(range(5), STEPS))}).foreign == (4,)


@pytest.mark.parametrize(
    "text", [b"INFO: x", b"[WARNING] y", b"12:30:01 z", b"2025-01-15 10:00:00,123 - root - INFO - w", b"[1, 2] v", b""]
)
def test_ordinary_beginnings_of_lines_are_no_ranks(text: bytes):
    prefix = prefix_of(Line(1, text, 0, len(text)), len(text))
    assert (prefix.pod, prefix.task, prefix.local, prefix.rank, prefix.node) == (None,) * 5
