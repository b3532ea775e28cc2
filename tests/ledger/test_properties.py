"""What must not matter: how a stream is cut, how lines merge, what stands before them, which rank is first."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.checks import judge
from allranks.ledger import Ledger
from allranks.plan import Plan
from tests.ledger import samples as s
from tests.ledger.speech import log, world_lines

W = 4
BY_RANK = {
    "neuron": {rank: s.neuron(rank) for rank in range(W)},
    "nvidia": {rank: s.nvidia(rank) for rank in range(W)},
    "seed": {rank: s.tagged(s.seed(W), f"[1,{rank}]<stdout>:") for rank in range(W)},
    "titan": {rank: s.tagged(s.titan(), f"{rank}: ") for rank in range(W)},
    "deepspeed": {rank: s.tagged(s.deepspeed(), f"[pod/bert-{rank}-x2b4z/main] ") for rank in range(W)},
    "mlperf": {rank: s.tagged(s.mllog(), f"{rank}: ") for rank in range(W)},
    "local": {rank: s.tagged(s.seed(W), f"[default{rank}]:") for rank in range(W)},
    "records": {rank: log(lines).decode() for rank, lines in enumerate(world_lines())},
}
OF_ONE = {
    "trainer": s.trainer(),
    "megatron": s.megatron(W),
    "nemo": s.nemo(),
    "nemo bar": s.nemo_bar(),
    "nanogpt": s.nanogpt(),
    "lightning": s.lightning(W),
    "nccl": s.nccl(range(W)),
    "traceback": 'Traceback (most recent call last):\n  File "x"\n    [Rank 1] - local_throughput=3\nE: x\n'
    + s.neuron(1),
}
DAMAGE = [
    "\r\n",
    "\r",
    "\0\0",
    "\ufffd",
    "\x1b[32m",
    "\x1b[0m",
    "[Rank 3] - local_thr",
    "ALLRANKS {",
    "{'loss': ",
    "step 3/",
    "\n\n",
]
STREAMS = {name: "".join(parts.values()) for name, parts in BY_RANK.items()} | OF_ONE


def contents(*chunks: bytes, world: int = W) -> Any:
    """All that is concluded, and where each figure stands."""
    ledger = Ledger(Plan.of_world(world))
    reader = ledger.source("log")
    for chunk in chunks:
        reader.feed(chunk)
    reader.close()
    judged = judge(ledger.plan, ledger)
    return judged.ranks, judged.verdict, judged.duplicate, judged.foreign, repr(judged.findings), judged.attempt


def without_places(result: Any) -> Any:
    ranks, verdict, duplicate, foreign, *_ = result
    figures = [
        (rank.rank, rank.stage, rank.throughput, rank.epoch_time, rank.steps, rank.loss_last, rank.world)
        for rank in ranks
    ]
    return figures, verdict, duplicate, foreign


@pytest.mark.parametrize("name", STREAMS)
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_any_split_into_chunks_gives_the_same_judgement(name: str, data: st.DataObject):
    lines = (s.NOISE + STREAMS[name]).splitlines(keepends=True)
    for damage in data.draw(st.lists(st.sampled_from(DAMAGE), max_size=3)):
        lines.insert(data.draw(st.integers(0, len(lines))), damage)
    stream = "".join(lines).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert contents(*chunks) == contents(stream)


@pytest.mark.parametrize("name", STREAMS)
def test_byte_by_byte_is_the_same(name: str):
    stream = STREAMS[name].encode()
    assert contents(*(stream[at : at + 1] for at in range(len(stream)))) == contents(stream)


@pytest.mark.parametrize("name", BY_RANK)
@settings(deadline=None, max_examples=15)
@given(order=st.randoms(use_true_random=False))
def test_the_order_of_lines_between_ranks_changes_nothing(name: str, order: random.Random):
    parts = [part.splitlines(keepends=True) for part in BY_RANK[name].values()]
    turns = [rank for rank, rows in enumerate(parts) for _ in rows]
    order.shuffle(turns)
    rows = [iter(part) for part in parts]
    mixed = "".join(next(rows[rank]) for rank in turns)
    plain = without_places(contents(STREAMS[name].encode()))
    assert without_places(contents(mixed.encode())) == plain
    assert plain[1] == "passed"


@pytest.mark.parametrize("name", ["neuron", "nvidia", "seed", "records"])
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_merged_lines_give_every_rank(name: str, data: st.DataObject):
    """Lines that a break is missing between, as of programs that print it apart."""
    rows = s.woven(*BY_RANK[name].values()).splitlines()
    ends = [data.draw(st.sampled_from(["\n", "", "\r"])) for _ in rows]
    merged = "".join(row + end for row, end in zip(rows, ends, strict=True))
    assert without_places(contents(merged.encode())) == without_places(contents(STREAMS[name].encode()))


@pytest.mark.parametrize("name", BY_RANK)
@pytest.mark.parametrize("prefix", ["2025-01-15T10:00:00.123456789Z ", "\x1b[36m", "\0", "\r"])
def test_what_others_put_before_lines_changes_nothing(name: str, prefix: str):
    prefixed = s.tagged(STREAMS[name], prefix)
    assert without_places(contents(prefixed.encode())) == without_places(contents(STREAMS[name].encode()))
