"""What must hold of every training run: each test is one statement about it."""

from __future__ import annotations

import math

from allranks.curves import first_divergence, missing_steps, points_of
from allranks.result import Phase, Stage, TrainingRun, Verdict
from fixtures.cases import CaseRun


def because(run: TrainingRun) -> str:
    """Why a statement does not hold: the run's verdict and all that was found."""
    return "\n".join([run.sentence(), *(f"{finding.code}: {finding.message}" for finding in run.findings)])


class RunStatements:
    """Of any training job. `training_run` is the job of the class that inherits this, run once for all of them."""

    def test_job_succeeds(self, training_run: TrainingRun) -> None:
        """Every process ended, with exit code 0 where the launcher tells it (torchrun tells none of a rank)."""
        ended = (Stage.FINISHED, Stage.MEASURED)
        exits = {
            rank.rank: 0 if rank.exit_code is None and rank.stage in ended else rank.exit_code
            for rank in training_run.ranks
        }
        assert exits == dict.fromkeys(training_run.plan.ranks, 0), because(training_run)
        broken = [found for found in training_run.findings if found.verdict is Verdict.FAILED]
        assert all(found.phase is Phase.CHECK for found in broken), because(training_run)

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
        """Every rank tells a loss, and where there are several steps the last ones are below the first ones."""
        losses = {rank.rank: rank.loss_last for rank in training_run.ranks}
        silent = [rank for rank, loss in losses.items() if loss is None or not math.isfinite(loss)]
        assert not silent, because(training_run)
        assert "loss-not-falling" not in {finding.code for finding in training_run.findings}, because(training_run)

    def test_all_ranks_end_with_the_same_parameters(self, training_run: TrainingRun) -> None:
        """Where the model is divided among ranks: all that hold the same part of it."""
        parts: dict[str | None, set[str | None]] = {}
        for rank in training_run.ranks:
            parts.setdefault(rank.fingerprint_group, set()).add(rank.fingerprint)
        assert all(len(prints) == 1 and None not in prints for prints in parts.values()), because(training_run)

    def test_verdict_is_passed(self, training_run: TrainingRun, green: frozenset[Verdict]) -> None:
        """Whatever else the checks found (device, incomplete records, references) counts as well."""
        assert training_run.verdict in green, because(training_run)


class CaseStatements(RunStatements):
    """Of a language model's training in some topology: that it is the training that one rank would have done."""

    model: str
    """The program, in workloads/."""

    def test_losses_are_those_of_one_rank(self, case_run: CaseRun) -> None:
        run, case = case_run.run, case_run.case
        reference = points_of(case_run.reference.judgement.losses)
        assert reference, because(case_run.reference)
        first = case_run.first_step
        wanted = [int(step) for step in reference if step >= first]
        assert wanted, f"case {case.id} begins at step {first}, its reference ends at {max(reference):g}"
        assert run.judgement.losses, because(run)
        missing = missing_steps(run.judgement.losses, wanted)
        assert not missing, f"ranks → steps without a loss: {missing}"
        divergence = first_divergence(run.judgement.losses, reference, case_run.tolerance, first_step=first)
        assert divergence is None, f"case {case.id} ({case.describe()}): {divergence}"

    def test_loss_falls_by_a_twentieth(self, case_run: CaseRun) -> None:
        """From the very first step, which of a resumed training is its reference's. LoRA, and cases from elsewhere at
        whatever rate they train, must only not have risen."""
        reference = points_of(case_run.reference.judgement.losses)
        losses = points_of(case_run.run.judgement.losses)
        assert reference, because(case_run.reference)
        first = reference[min(reference)]
        assert losses, because(case_run.run)
        last = losses[max(losses)]
        assert last <= (1 - case_run.least_fall) * first, f"{first:.6f} at the beginning, {last:.6f} at the end"
