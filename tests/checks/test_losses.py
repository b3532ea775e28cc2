"""Losses by step, and parameters of models that are divided."""

from __future__ import annotations

import json

from allranks.checks import judge
from allranks.result import Judgement, LossCurve, TrainingRun, Verdict
from tests.ledger.speech import ledger_of, log, plan_of, rank_lines, world_lines


def judged(*logs: bytes) -> Judgement:
    return judge(plan_of(), ledger_of(*logs))


def test_ranks_that_told_the_same_losses_share_a_curve() -> None:
    judgement = judged(log(*world_lines()[:3], rank_lines(3, losses=[9.5, 8.0, 7.25, 7.0])))
    assert judgement.losses == (
        LossCurve((0, 1, 2), 4, ((1, 9.5), (2, 8.0), (3, 7.5), (4, 7.0))),
        LossCurve((3,), 4, ((1, 9.5), (2, 8.0), (3, 7.25), (4, 7.0))),
    )


def test_a_long_curve_is_thinned_and_says_so() -> None:
    losses = [10 - step / 1000 for step in range(1000)]
    (curve,) = judged(log(*world_lines(losses=losses))).losses
    assert curve.steps == 1000
    assert len(curve.points) <= 130
    assert (curve.points[0], curve.points[-1]) == ((1, 10), (1000, losses[-1]))


def test_curves_survive_the_result_file() -> None:
    run = TrainingRun(plan_of(), judged(log(*world_lines())))
    assert TrainingRun.from_dict(json.loads(json.dumps(run.to_dict()))) == run


def groups(*prints: tuple[str, str]) -> Judgement:
    lines = [rank_lines(r, fingerprint=p, fingerprint_group=g) for r, (g, p) in enumerate(prints)]
    return judged(log(*lines))


def test_parts_of_a_divided_model_differ_and_that_is_well() -> None:
    judgement = groups(("tp0", "aa"), ("tp1", "bb"), ("tp0", "aa"), ("tp1", "bb"))
    assert judgement.verdict is Verdict.PASSED
    assert [rank.fingerprint_group for rank in judgement.ranks] == ["tp0", "tp1", "tp0", "tp1"]


def test_within_a_part_the_odd_rank_is_named() -> None:
    judgement = groups(("tp0", "aa"), ("tp0", "aa"), ("tp0", "cc"), ("tp1", "bb"))
    assert judgement.cause is not None
    assert judgement.cause.code == "parameters-differ"
    assert judgement.cause.ranks == (2,)
    assert "other parameters than the 2 ranks of tp0 that agree" in judgement.cause.message
