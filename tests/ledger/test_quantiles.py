"""Step-time quantiles: bounded, and the same whatever the order."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.ledger.quantiles import EXACT, Quantiles


def quantiles_of(values: list[float]) -> Quantiles:
    series = Quantiles()
    for value in values:
        series.add(value)
    return series


def nearest_rank(values: list[float], fraction: float) -> float:
    return sorted(values)[max(1, math.ceil(fraction * len(values))) - 1]


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=3 * EXACT), st.floats(0, 1))
def test_a_quantile_is_within_one_percent_of_the_value_at_its_place(values: list[float], fraction: float):
    assert quantiles_of(values).quantile(fraction) == pytest.approx(nearest_rank(values, fraction), rel=0.0101)


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=3 * EXACT), st.randoms(use_true_random=False))
def test_order_changes_nothing(values: list[float], order: random.Random):
    shuffled = values[:]
    order.shuffle(shuffled)
    fractions = (0, 0.5, 0.99, 1)
    assert [*map(quantiles_of(values).quantile, fractions)] == [*map(quantiles_of(shuffled).quantile, fractions)]


def test_few_values_are_exact():
    values = [0.1, 0.2, 0.3, 0.4]
    assert [quantiles_of(values).quantile(q) for q in (0, 0.5, 0.75, 1)] == [0.1, 0.2, 0.3, 0.4]


def test_a_million_values_over_five_decades_fit_into_five_kilobytes():
    generator = random.Random(7)
    series = quantiles_of([10 ** generator.uniform(-4, 1) for _ in range(100_000)])
    assert len(series._bins) * series._bins.itemsize < 5000
    assert series.quantile(0.5) == pytest.approx(10**-1.5, rel=0.05)


def test_no_values_no_quantile_and_no_nonsense():
    assert Quantiles().quantile(0.5) is None
    for value in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="above 0"):
            Quantiles().add(value)
