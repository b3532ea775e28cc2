"""References: which one fits a run, what their file may hold, what a violated or unmeasured figure makes of a run."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from allranks.checks import judge
from allranks.checks.references import hold, hold_or_fail, measure
from allranks.plan import Accelerator
from allranks.references import METRICS, Outcome, References, ReferencesError
from allranks.result import Phase, TrainingRun, Verdict
from tests.ledger.speech import ledger_of, log, plan_of, rank_lines, world_lines

EXAMPLE = Path(__file__).parents[2] / "docs" / "references.toml"


def entry(metrics: str = "throughput_sum = { value = 200, lower = -0.1, unit = 'samples/s' }", **keys: object) -> str:
    lines = [f"{key} = {value if isinstance(value, int) else repr(value)}" for key, value in keys.items()]
    return "\n".join(["[[reference]]", *lines, "[reference.metrics]", metrics, ""])


def parsed(*entries: str, required: bool = False) -> References:
    return References.parse("\n".join(entries), "references.toml", required=required)


def run_of(*logs: bytes, timeline: tuple[tuple[str, float], ...] = (), **plan: object) -> TrainingRun:
    made = plan_of(**plan)
    started = timeline[0][1] - 2 if timeline else None
    return TrainingRun(made, judge(made, ledger_of(*logs, plan=made)), started=started, timeline=timeline)


@pytest.fixture
def good() -> TrainingRun:
    """4 ranks of 49.97 samples/s and 0.31 s each."""
    run = run_of(
        log(*world_lines(standin="nvidia")),
        workload="bert",
        accelerator=Accelerator.NVIDIA,
        instance_type="p5.48xlarge",
    )
    assert run.verdict is Verdict.PASSED
    return run


def codes(run: TrainingRun) -> list[str]:
    return [finding.code for finding in run.findings if finding.verdict is not Verdict.PASSED]


# What a figure makes of a run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("utilisations", [("nan", 0.5), (0.5, "nan")])
def test_a_figure_that_is_no_number_of_one_rank_meets_nothing(utilisations: tuple[object, object]) -> None:
    lines = [rank_lines(rank, world=2, per_node=1, mfu=mfu) for rank, mfu in enumerate(utilisations)]
    held = hold(run_of(log(*lines), world=2), parsed(entry("mfu_lowest = { value = 50, lower = -0.1, unit = '%' }")))
    assert (held.references[0].outcome, held.verdict) == (Outcome.VIOLATED, Verdict.FAILED)


@pytest.mark.parametrize(
    ("unit", "outcome"), [("tokens/s", Outcome.MET), ("tokens/min", Outcome.VIOLATED), ("samples/s", Outcome.MISSING)]
)
def test_tokens_are_not_held_against_samples(good: TrainingRun, unit: str, outcome: Outcome) -> None:
    of_tokens = replace(good, judgement=replace(good.judgement, throughput_unit="tokens/s"))
    limit = f"throughput_mean = {{ value = 50, lower = -0.1, upper = 0.1, unit = '{unit}' }}"
    held = hold(of_tokens, parsed(entry(limit)))
    assert [result.outcome for result in held.references] == [outcome]
    assert (held.verdict is Verdict.PASSED) is (outcome is Outcome.MET)
    if outcome is Outcome.MISSING:
        assert "in samples/s, but this log gives tokens/s" in held.sentence()


def test_samples_are_not_held_against_tokens(good: TrainingRun) -> None:
    held = hold(good, parsed(entry("throughput_mean = { value = 50, lower = -0.1, unit = 'tokens/s' }")))
    assert (held.references[0].outcome, held.verdict) == (Outcome.MISSING, Verdict.FAILED)


def test_utilisation_and_memory_are_of_the_ranks_that_told_them():
    told = [{"mfu": 0.52, "peak_memory": 2**34}, {"mfu": 0.48, "peak_memory": 2**35}]
    run = run_of(log(*(rank_lines(rank, world=2, per_node=1, **said) for rank, said in enumerate(told))), world=2)
    figures = {metric: measure(run, metric) for metric in ("mfu_mean", "mfu_lowest", "peak_memory")}
    assert figures == pytest.approx({"mfu_mean": 50.0, "mfu_lowest": 48.0, "peak_memory": 32.0})
    held = hold(run, parsed(entry("mfu_lowest = { value = 52, lower = -0.05, unit = '%' }")))
    assert held.verdict is Verdict.FAILED
    assert "mfu_lowest is 48 %, less than 49.4 %" in held.sentence()
    assert "rank 1 (pod bert-1)" in held.sentence()
    silent = hold(run_of(log(*world_lines())), parsed(entry("mfu_mean = { value = 52, lower = -0.05, unit = '%' }")))
    assert "mfu_mean was not measured" in silent.sentence()


def test_figures_within_their_tolerances_leave_the_run_passed(good: TrainingRun):
    held = hold(good, parsed(entry(workload="bert")))
    assert held.verdict is Verdict.PASSED
    (result,) = held.references
    assert (result.outcome, result.low) == (Outcome.MET, pytest.approx(180))
    assert result.measured == pytest.approx(4 * 49.97)


def test_a_figure_below_its_lower_tolerance_fails_the_run_in_phase_check(good: TrainingRun):
    held = hold(good, parsed(entry("throughput_sum = { value = 210, lower = -0.04, unit = 'samples/s' }", name="p5")))
    assert (held.verdict, held.judgement.phase) == (Verdict.FAILED, Phase.CHECK)
    assert held.judgement.cause is not None
    assert held.judgement.cause.message == (
        'throughput_sum is 199.88 samples/s, less than 201.6 samples/s, the least that "p5" (reference 1) accepts '
        "(210 samples/s -4 %)"
    )


def test_a_figure_above_its_upper_tolerance_fails_as_well(good: TrainingRun):
    held = hold(good, parsed(entry("epoch_time = { value = 250, upper = 0.1, unit = 'ms' }")))
    assert "epoch_time is 0.31 s, more than 0.275 s" in held.sentence()


def test_the_slowest_rank_is_named():
    slow = rank_lines(3, throughput=30.0)
    held = hold(
        run_of(log(*world_lines()[:3], slow)),
        parsed(entry("throughput_slowest = { value = 50, lower = -0.1, unit = 'samples/s' }")),
    )
    assert held.judgement.cause is not None
    assert held.judgement.cause.ranks == (3,)
    assert "rank 3 (pod bert-1)" in held.sentence()


def test_a_metric_that_was_not_measured_fails(good: TrainingRun):
    held = hold(good, parsed(entry("bus_bandwidth = { value = 400, lower = -0.1, unit = 'GB/s' }")))
    assert (held.verdict, codes(held)) == (Verdict.FAILED, ["reference-missing"])
    assert held.references[0].outcome is Outcome.MISSING
    assert "bus_bandwidth was not measured" in held.sentence()
    assert "read from 0 of 4 ranks" in held.sentence()


def test_a_rank_without_the_figure_makes_it_unmeasured_although_others_have_it():
    lines = [*world_lines()[:3], [line.replace(b',"epoch_time":0.31', b"") for line in rank_lines(3)]]
    run = run_of(log(*lines))
    assert run.verdict is Verdict.INCOMPLETE
    held = hold(run, parsed(entry("epoch_time = { value = 0.31, upper = 0.1, unit = 's' }")))
    assert held.references[0].outcome is Outcome.MISSING
    assert "read from 3 of 4 ranks" in held.findings[-1].message


def test_missing_ranks_stay_the_cause_and_the_unmeasured_sum_follows_from_them():
    held = hold(run_of(log(*world_lines()[:3])), parsed(entry()))
    assert held.verdict is Verdict.INCOMPLETE
    assert "rank 3" in held.sentence()
    assert [f.consequence for f in held.findings if f.code == "reference-missing"] == [True]


def test_a_violated_reference_outweighs_missing_evidence_and_comes_after_other_failed_checks():
    metrics = "startup_heard = { value = 1, upper = 0, unit = 's' }"
    timeline = (("started", 10.0), ("heard", 20.0))
    incomplete = hold(run_of(log(*world_lines()[:3]), timeline=timeline), parsed(entry(metrics)))
    assert (incomplete.verdict, incomplete.judgement.phase) == (Verdict.FAILED, Phase.CHECK)
    rising = hold(run_of(log(*world_lines(losses=(7.0, 8.0))), timeline=timeline), parsed(entry(metrics)))
    assert codes(rising) == ["loss-not-falling", "reference"]


def test_a_nan_figure_is_within_no_bounds():
    run = run_of(log(*world_lines()[:3], rank_lines(3, throughput="nan")))
    held = hold(run, parsed(entry("throughput_sum = { value = 1, upper = 1000, unit = 'samples/s' }")))
    assert held.references[0].outcome is Outcome.VIOLATED
    again = TrainingRun.from_dict(held.to_dict())
    assert again.references[0].measured is not None
    assert math.isnan(again.references[0].measured)


def test_figures_from_the_status_alone_are_not_measured(good: TrainingRun):
    ranks = (replace(good.ranks[0], source="status"), *good.ranks[1:])
    assert measure(replace(good, judgement=replace(good.judgement, ranks=ranks)), "throughput_sum") is None


def test_start_up_phases_are_counted_from_the_end_of_the_phase_before():
    timeline = (("planned", 102.0), ("applied", 103.0), ("scheduled", 110.0), ("pulled", 140.0), ("started", 141.5))
    run = run_of(log(*world_lines()), timeline=(*timeline, ("heard", 150.0)))
    measured = {name: measure(run, f"startup_{name}") for name in ("capacity", "scheduled", "pulled", "started")}
    assert measured == {"capacity": 2.0, "scheduled": 7.0, "pulled": 30.0, "started": 1.5}
    assert (measure(run, "startup_heard"), measure(run, "startup_total")) == (8.5, 50.0)


def test_a_moment_that_nobody_saw_is_not_measured(good: TrainingRun):
    held = hold(good, parsed(entry("startup_pulled = { value = 60, upper = 1, unit = 's' }")))
    assert "startup_pulled was not measured" in held.sentence()


# Which reference fits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("general", "specific"),
    [
        ({}, {"workload": "bert"}),
        ({"workload": "b*"}, {"workload": "bert"}),
        ({"instance_type": "p*"}, {"instance_type": "p5*"}),
        ({"workload": "bert"}, {"workload": "bert", "world_size": 4}),
        ({"workload": "bert", "product": "*"}, {"workload": "bert", "instance_type": "p5*"}),
    ],
)
def test_the_most_specific_reference_wins_in_whichever_order(good: TrainingRun, general: dict, specific: dict):
    high = entry("throughput_sum = { value = 999, lower = -0.1, unit = 'samples/s' }", **general)
    for entries in ((high, entry(**specific)), (entry(**specific), high)):
        assert hold(good, parsed(*entries)).verdict is Verdict.PASSED


def test_each_metric_is_chosen_for_itself(good: TrainingRun):
    general = entry(
        "epoch_time = { value = 0.3, upper = 0.5, unit = 's' }\n"
        "throughput_sum = { value = 1, upper = 0, unit = 'samples/s' }"
    )
    held = hold(good, parsed(general, entry(workload="bert")))
    assert [(r.metric, r.reference) for r in held.references] == [
        ("throughput_sum", "reference 2"),
        ("epoch_time", "reference 1"),
    ]
    assert held.verdict is Verdict.PASSED


def test_a_tie_names_both(good: TrainingRun):
    tied = parsed(entry(workload="bert", name="by workload"), entry(accelerator="nvidia"))
    with pytest.raises(
        ReferencesError, match=r'references.toml: throughput_sum: "by workload" \(reference 1\) and ref'
    ) as e:
        hold(good, tied)
    assert "workload=bert" in str(e.value)
    # A run that was made is not lost by it.
    assert hold_or_fail(good, tied).sentence().startswith("FAILED in check: references.toml: throughput_sum: ")


def test_a_tie_that_a_more_specific_reference_settles_is_none(good: TrainingRun):
    high = "throughput_sum = { value = 999, lower = -0.1, unit = 'samples/s' }"
    entries = (entry(high, workload="bert"), entry(high, accelerator="nvidia"), entry(workload="bert", world_size=4))
    assert hold(good, parsed(*entries)).verdict is Verdict.PASSED


def test_what_is_not_known_of_a_run_is_met_by_the_star_only(good: TrainingRun):
    assert not hold(good, parsed(entry(product="NVIDIA*"))).references
    assert hold(good, parsed(entry(product="*"))).references


def test_the_ranks_say_size_dtype_and_product(good: TrainingRun):
    lines = [
        [
            line.replace(b'"size":"tiny"', b'"size":"tiny","dtype":"bfloat16","device_name":"NVIDIA H200"')
            for line in rank
        ]
        for rank in world_lines()
    ]
    run = run_of(log(*lines))
    assert hold(run, parsed(entry(size="tiny", dtype="bf*", product="NVIDIA H?00"))).references
    lines[3] = [line.replace(b"H200", b"H100") for line in lines[3]]
    assert not hold(run_of(log(*lines)), parsed(entry(product="NVIDIA*"))).references, "a mixed pool is no one product"


def test_no_fitting_reference_is_said_and_fails_where_one_is_required(good: TrainingRun):
    noted = hold(good, parsed(entry(workload="llama3")))
    assert noted.verdict is Verdict.PASSED
    assert [f.code for f in noted.findings if "reference" in f.code] == ["note-no-reference"]
    required = hold(good, parsed(entry(workload="llama3"), required=True))
    assert (required.verdict, codes(required)) == (Verdict.FAILED, ["reference-absent"])
    assert hold(good, References(required=True)).verdict is Verdict.FAILED
    assert hold(good, References()) == good


# The file ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[reference]", "not valid TOML"),
        ("", "reference: at least one"),
        ("[[references]]\n", "unknown key 'references'"),
        (entry(workloads="bert"), "reference 1: unknown key 'workloads'"),
        (entry(world_size=0), "reference 1: world_size: a number"),
        (entry(workload=""), "reference 1: workload: a pattern"),
        ("[[reference]]\nworkload = 'bert'", "reference 1: metrics: at least one"),
        (entry("throughput = { value = 1, lower = 0, unit = 'samples/s' }"), "metrics: unknown key 'throughput'"),
        (entry("epoch_time = { value = 1, upper = 0, unit = 'samples/s' }"), "metrics.epoch_time.unit: one of s, ms"),
        (entry("epoch_time = { value = 1, upper = 0 }"), "metrics.epoch_time.unit: "),
        (entry("epoch_time = { value = 1, upper = 0, unit = ['s'] }"), "metrics.epoch_time.unit: "),
        (entry("epoch_time = { value = 0, upper = 0, unit = 's' }"), "metrics.epoch_time.value: more than 0"),
        (entry("epoch_time = { value = nan, upper = 0, unit = 's' }"), "metrics.epoch_time.value: a finite number"),
        (entry("epoch_time = { value = true, upper = 0, unit = 's' }"), "metrics.epoch_time.value: a finite number"),
        (entry("epoch_time = { value = 1, unit = 's' }"), "metrics.epoch_time: lower, upper: at least one"),
        (entry("epoch_time = { value = 1, lower = 0.1, unit = 's' }"), "metrics.epoch_time.lower: a fraction"),
        (entry("epoch_time = { value = 1, upper = -0.1, unit = 's' }"), "metrics.epoch_time.upper: a fraction"),
        (entry("epoch_time = { value = 1, tolerance = 1, unit = 's' }"), "epoch_time: unknown key 'tolerance'"),
        (entry("epoch_time = [1, 0, 0, 's']"), "metrics.epoch_time: { value, lower"),
        (entry(workload="bert") + entry(workload="bert"), "reference 1 and reference 2 are for the same runs"),
    ],
)
def test_a_file_that_cannot_be_meant_names_itself_and_the_key(text: str, says: str):
    with pytest.raises(ReferencesError) as refused:
        References.parse(text, "ci/references.toml")
    assert str(refused.value).startswith("ci/references.toml: ")
    assert says in str(refused.value)


def test_units_are_converted(good: TrainingRun):
    references = parsed(entry("bus_bandwidth = { value = 3200, lower = -0.5, unit = 'Gbit/s' }"))
    assert references.entries[0].limits[0].value == 400


def test_references_survive_being_kept_with_a_run():
    references = parsed(entry(workload="bert"), required=True)
    assert References.from_dict(references.to_dict()) == references
    assert References.from_dict(References(required=True).to_dict()) == References(required=True)


def test_the_documented_example_is_valid_and_shows_every_metric():
    references = References.read(EXAMPLE)
    assert {limit.metric for each in references.entries for limit in each.limits} == set(METRICS)
