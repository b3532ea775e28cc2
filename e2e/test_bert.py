"""BERT pre-training on accelerator nodes: `pytest e2e -k bert`."""

from __future__ import annotations

from allranks.result import Stage, TrainingRun, Verdict
from allranks.settings import Workload


def because(run: TrainingRun) -> str:
    """Why a statement does not hold: the run's verdict and all that was found."""
    return "\n".join([run.sentence(), *(f"{finding.code}: {finding.message}" for finding in run.findings)])


class TestBertTraining:
    """One training job per accelerator; each test is one statement about it."""

    workload = Workload(name="bert", module="workloads.bert")

    def test_job_succeeds(self, training_run: TrainingRun) -> None:
        exits = {rank.rank: rank.exit_code for rank in training_run.ranks}
        assert exits == dict.fromkeys(training_run.plan.ranks, 0), because(training_run)

    def test_every_rank_reports_exactly_once(self, training_run: TrainingRun) -> None:
        measured = [rank.rank for rank in training_run.ranks if rank.stage is Stage.MEASURED and rank.source == "log"]
        assert measured == list(training_run.plan.ranks), because(training_run)
        unaccounted = {"missing-rank", "duplicate-rank", "foreign-rank", "log-loss", "incomplete-records"}
        assert not unaccounted & {finding.code for finding in training_run.findings}, because(training_run)

    def test_every_rank_sees_the_planned_world_size(self, training_run: TrainingRun) -> None:
        worlds = {rank.rank: rank.world for rank in training_run.ranks}
        plan = training_run.plan
        assert worlds == dict.fromkeys(plan.ranks, plan.world_size), because(training_run)

    def test_throughput_from_every_rank(self, training_run: TrainingRun) -> None:
        silent = [rank.rank for rank in training_run.ranks if not (rank.throughput and rank.throughput > 0)]
        assert not silent, because(training_run)
        assert training_run.figures.ranks == training_run.plan.world_size

    def test_epoch_time_from_every_rank(self, training_run: TrainingRun) -> None:
        silent = [rank.rank for rank in training_run.ranks if not (rank.epoch_time and rank.epoch_time > 0)]
        assert not silent, because(training_run)
        assert training_run.figures.epoch_ranks == training_run.plan.world_size

    def test_loss_falls(self, training_run: TrainingRun) -> None:
        losses = {rank.rank: (rank.loss_first, rank.loss_last) for rank in training_run.ranks}
        risen = {rank: (a, b) for rank, (a, b) in losses.items() if a is None or b is None or not b < a}
        assert not risen, because(training_run)

    def test_all_ranks_end_with_the_same_parameters(self, training_run: TrainingRun) -> None:
        fingerprints = {rank.fingerprint for rank in training_run.ranks}
        assert len(fingerprints) == 1, because(training_run)
        assert None not in fingerprints, because(training_run)

    def test_verdict_is_passed(self, training_run: TrainingRun) -> None:
        """Whatever else the checks found (device, incomplete records, references) counts as well."""
        assert training_run.verdict is Verdict.PASSED, because(training_run)
