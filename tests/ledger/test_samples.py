"""Real-shaped logs of every format, and what is to be concluded from each."""

# ruff: noqa: E501

from dataclasses import dataclass, field

import pytest

from allranks.checks import judge
from allranks.plan import Plan
from allranks.result import Judgement, Verdict
from tests.ledger import samples as s
from tests.ledger.speech import ledger_of

ALL4 = range(4)


def judged(world: int, *logs: str, plan: Plan | None = None) -> Judgement:
    plan = plan or Plan.of_world(world)
    return judge(plan, ledger_of(*(log.encode() for log in logs), plan=plan))


def codes(judgement: Judgement) -> set[str]:
    return {finding.code for finding in judgement.findings if finding.verdict is not Verdict.PASSED}


@dataclass(frozen=True)
class Case:
    name: str
    world: int
    log: str
    verdict: str
    missing: tuple[int, ...] = ()
    codes: frozenset[str] = frozenset()
    throughput: float | None = None
    """Of rank 0."""
    overall: dict[str, float] = field(default_factory=dict)
    duplicate: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.name


def case(name: str, world: int, log: str, verdict: str, *found: str, **more: object) -> Case:
    return Case(name, world, s.NOISE * 3 + log + s.NOISE, verdict, codes=frozenset(found), **more)  # type: ignore[arg-type]


def each(lines: str) -> dict[int, str]:
    return dict.fromkeys(ALL4, lines)


FORMATS = [
    case("neuron", 4, "".join(map(s.neuron, ALL4)), "passed", throughput=49.97),
    case("neuron scaled", 4, "".join(s.neuron(r, "1.2k", "310ms") for r in ALL4), "passed", throughput=1200.0),
    case("neuron lacks one", 4, "".join(map(s.neuron, [0, 1, 3])), "incomplete", "missing-rank", missing=(2,)),
    case("neuron nan", 4, "".join(s.neuron(r, "nan" if r else "1") for r in ALL4), "failed", "not-finite"),
    case("nvidia", 4, "".join(map(s.nvidia, ALL4)), "passed", throughput=49.97),
    case("nvidia minutes", 4, "".join(s.nvidia(r, "1,234.5 samples/s", "2 min") for r in ALL4), "passed", throughput=1234.5),
    case("nvidia average alone", 4, "Average Throughput: 5e1 samples/second\n", "incomplete", "missing-rank",
         missing=(0, 1, 2, 3), overall={"throughput_average": 50.0}),
    case("nvidia one twice", 4, "".join(map(s.nvidia, [0, 1, 1, 2, 3])), "incomplete", "duplicate-rank", duplicate=(1,)),
    case("seed", 4, s.mpirun(each(s.seed(4))), "passed", throughput=42482.0),
    case("seed one short", 4, s.mpirun({**each(s.seed(4)), 2: s.seed(4, 7)}), "incomplete", "missing-rank",
         "log-ends-early", missing=(2,)),
    case("seed world", 4, s.mpirun(each(s.seed(8))), "failed", "world-size"),
    case("seed alone", 1, s.seed(1), "passed", throughput=42482.0),
    case("seed unattributed", 4, s.seed(4), "incomplete", "unattributed", "missing-rank", missing=(0, 1, 2, 3)),
    case("trainer", 1, s.trainer(), "passed", throughput=81.0),
    case("trainer of strings", 1, s.trainer(strings=True), "passed", throughput=81.0),
    case("trainer speaks for all", 4, s.trainer(), "incomplete", "unattributed", "missing-rank", missing=(0, 1, 2, 3),
         overall={"throughput": 81.0, "total_time": 123.4567}),
    case("trainer of each rank", 4, s.mpirun(each(s.trainer())), "incomplete", "each-for-itself"),
    case("trainer without end", 1, s.trainer(end=False), "incomplete", "missing-rank", "log-ends-early", missing=(0,)),
    case("megatron", 1, s.megatron(1), "passed", throughput=200.0),
    case("megatron speaks for all", 8, s.megatron(8), "incomplete", "unattributed", "missing-rank",
         missing=tuple(range(8)), overall={"throughput": 200.0, "step_time_p50": 1.28, "loss_last": 9.0}),
    case("megatron of another world", 16, s.megatron(8), "failed", "world-size", "unattributed", "missing-rank",
         missing=tuple(range(16))),
    case("megatron nan", 1, s.megatron(1, nan=1), "failed", "not-finite"),
    case("megatron's last rank", 4, s.mpirun({3: s.megatron(4)}), "incomplete", "missing-rank", missing=(0, 1, 2)),
    case("megatron ends early", 1, s.megatron(1, 7), "incomplete", "missing-rank", "log-ends-early", missing=(0,)),
    case("nemo", 1, s.nemo(), "passed", throughput=64.0),
    case("nemo bar", 1, s.nemo_bar(), "passed"),
    case("nemo speaks for all", 8, s.nemo(), "incomplete", "unattributed", "missing-rank", missing=tuple(range(8)),
         overall={"throughput": 64.0}),
    case("nemo ends early", 1, s.nemo(5), "incomplete", "missing-rank", "log-ends-early", missing=(0,)),
    case("titan", 4, s.srun(each(s.titan())), "passed", throughput=30768.0),
    case("titan one short", 4, s.srun({**each(s.titan()), 1: s.titan(9)}), "incomplete", "missing-rank",
         "log-ends-early", missing=(1,)),
    case("titan's rank is local", 8, s.torchrun({0: s.titan()}, "rank"), "incomplete", "unattributed", "missing-rank",
         missing=tuple(range(8))),
    case("titan on one node", 4, s.torchrun(each(s.titan(end=True)), "rank"), "passed"),
    case("nanogpt", 1, s.nanogpt(), "passed", throughput=4e6),
    case("nanogpt speaks for all", 4, s.nanogpt(), "incomplete", "unattributed", "missing-rank", missing=(0, 1, 2, 3)),
    case("nanogpt tagged", 2, s.mpirun({0: s.nanogpt(), 1: s.nanogpt(4)}), "incomplete", "missing-rank",
         "log-ends-early", missing=(1,)),
    case("lightning", 1, s.lightning(1), "passed"),
    case("lightning speaks for all", 4, s.lightning(4), "incomplete", "unattributed", "missing-rank",
         missing=(0, 1, 2, 3), overall={"steps": 200.0}),
    case("lightning world", 8, s.lightning(4), "failed", "world-size", "unattributed", "missing-rank",
         missing=tuple(range(8))),
    case("deepspeed", 1, s.deepspeed(), "passed", throughput=16.12),
    case("deepspeed tagged", 4, s.mpirun(each(s.deepspeed())), "passed", throughput=16.12),
    case("deepspeed one short", 4, s.mpirun({**each(s.deepspeed()), 3: s.deepspeed(90)}), "incomplete", "missing-rank",
         "log-ends-early", missing=(3,)),
    case("deepspeed's old lines", 1, "[INFO] [timer.py:189:stop] 0/50, SamplesPerSec=83.7, MemAllocated=0.26GB\n",
         "passed", throughput=83.7),
    case("nccl", 8, s.nccl(range(8)), "passed", overall={"bus_bandwidth": 123.456}),
    case("nccl under mpirun", 8, s.tagged(s.nccl(range(8)), "[1,0]<stdout>:"), "passed"),
    case("nccl lacks ranks", 16, s.nccl(range(8)), "failed", "world-size", "missing-rank", missing=tuple(range(8, 16))),
    case("nccl lacks a line", 8, s.nccl([0, 1, 3, 4, 5, 6, 7]), "incomplete", "missing-rank", missing=(2,)),
    case("nccl cut", 8, s.nccl(range(8), end=False), "incomplete", "missing-rank", "log-ends-early",
         missing=tuple(range(8))),
    case("nccl wrong values", 8, s.nccl(range(8), wrong="3 FAILED"), "failed", "launcher"),
    case("nccl two tables", 8, s.nccl(range(8)) + s.nccl(range(8), "99.5"), "passed", overall={"bus_bandwidth": 99.5}),
    case("nccl without MPI", 4, s.woven(*[s.nccl([0])] * 4), "failed", "world-size", "missing-rank", "duplicate-rank",
         missing=(1, 2, 3), duplicate=(0,)),
    case("mlperf", 1, s.mllog(), "passed", throughput=100.5),
    case("mlperf labelled", 4, s.srun(each(s.mllog())), "passed", throughput=100.5),
    case("mlperf aborted", 1, s.mllog("aborted"), "failed", "launcher", "missing-rank", "log-ends-early", missing=(0,)),
    case("mlperf cut", 1, s.mllog(end=False), "incomplete", "missing-rank", "log-ends-early", missing=(0,)),
]  # fmt: skip


@pytest.mark.parametrize("sample", FORMATS, ids=str)
def test_what_is_concluded_from_a_log(sample: Case):
    judgement = judged(sample.world, sample.log)
    assert (judgement.verdict.value, judgement.missing, judgement.duplicate) == (
        sample.verdict,
        sample.missing,
        sample.duplicate,
    )
    assert codes(judgement) == sample.codes
    assert judgement.completeness == "unproven"
    if sample.throughput is not None:
        assert judgement.ranks[0].throughput == pytest.approx(sample.throughput)
    assert {k: v for k, v in dict(judgement.overall).items() if k in sample.overall} == pytest.approx(sample.overall)


def test_each_figure_says_where_it_stands():
    judgement = judged(4, s.NOISE + s.mpirun(each(s.seed(4))))
    assert [rank.where for rank in judgement.ranks] == ["log-0:38", "log-0:39", "log-0:40", "log-0:41"]
    assert judgement.ranks[0].steps == 10
    assert judgement.ranks[0].step_time_p50 == pytest.approx(0.1205)


def test_times_come_in_seconds_whatever_their_unit():
    neuron = judged(1, s.neuron(0, epoch="310ms")).ranks[0]
    nvidia = judged(1, s.nvidia(0, time="2 min")).ranks[0]
    mlperf = judged(1, s.mllog()).ranks[0]
    assert (neuron.epoch_time, nvidia.total_time, mlperf.epoch_time) == (pytest.approx(0.31), 120.0, 30.0)


# Two formats in one log: one of them counts, and nan in the other is not hidden ---------------------------------------

FIGURES = "".join(map(s.neuron, ALL4))


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        (s.megatron(4, nan=7), "in the format megatron: loss is nan"),
        (s.mpirun(each(s.seed(4)) | {2: s.seed(4).replace("4.900000", "nan")}), "rank 2"),
        (s.nvidia(1, rate="inf samples/second"), "rank 1"),
    ],
    ids=["of one for all", "of a rank", "of a figure"],
)
@pytest.mark.parametrize("order", [1, -1])
def test_nan_in_either_of_two_formats_fails(beside: str, said: str, order: int):
    judgement = judged(4, "".join([FIGURES, beside][::order]))
    assert (judgement.verdict, judgement.missing, codes(judgement)) == (Verdict.FAILED, (), {"not-finite"})
    assert judgement.cause is not None
    assert said in judgement.cause.message


def test_two_formats_of_sound_numbers_pass():
    assert judged(4, FIGURES + s.mpirun(each(s.seed(4))) + s.megatron(4)).verdict is Verdict.PASSED
