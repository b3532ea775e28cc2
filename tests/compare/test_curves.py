from __future__ import annotations

import math
from statistics import fmean

from allranks.curves import deviation, first_divergence, missing_steps, points_of
from allranks.result import LossCurve


def curve(*losses: float, ranks: tuple[int, ...] = (0, 1), first: int = 1) -> LossCurve:
    return LossCurve(ranks, len(losses), tuple((first + at, loss) for at, loss in enumerate(losses)))


REFERENCE = {1: 4.0, 2: 3.0, 3: 2.0}


def test_losses_within_the_tolerance_do_not_diverge() -> None:
    curves = [curve(4.0, 3.000009, 2.0)]
    assert first_divergence(curves, REFERENCE, 1e-5) is None
    assert 8e-6 < (deviation(curves, REFERENCE) or 0) < 1e-5


def test_the_first_step_apart_and_its_ranks_are_named() -> None:
    curves = [curve(4.0, 3.0, 1.0, ranks=(0, 1)), curve(4.0, 3.5, 1.0, ranks=(2,)), curve(4.0, 3.2, 2.0, ranks=(3,))]
    found = first_divergence(curves, REFERENCE, 1e-5)
    assert found is not None
    assert (found.step, found.found, found.expected, found.ranks) == (2, 3.5, 3.0, (2, 3))
    assert str(found) == "ranks 2-3: loss 3.500000 at step 2 instead of 3.000000: 5.00e-01 apart, 1e-05 allowed"


def test_nan_is_apart_from_everything_itself_included() -> None:
    assert first_divergence([curve(4.0, math.nan)], REFERENCE, 1.0) is not None
    assert first_divergence([curve(math.nan)], {1: math.nan}, 1.0) is not None


def test_a_resumed_training_is_compared_from_its_first_step_on() -> None:
    resumed = [curve(2.0, first=3)]
    assert first_divergence(resumed, REFERENCE, 1e-5, first_step=3) is None
    assert missing_steps(resumed, [3]) == {}
    assert missing_steps(resumed, [1, 2, 3]) == {(0, 1): [1, 2]}


def test_a_thinned_curve_lacks_no_step_in_between() -> None:
    thinned = LossCurve((0,), 100, ((1, 4.0), (50, 3.0), (100, 2.0)))
    assert missing_steps([thinned], range(1, 101)) == {}
    assert missing_steps([thinned], range(1, 102)) == {(0,): [101]}


def test_what_most_ranks_told_counts() -> None:
    assert points_of([curve(1.0, ranks=(3,)), curve(4.0, ranks=(0, 1, 2))]) == {1: 4.0}
    assert points_of([]) == {}
    assert deviation([], REFERENCE) is None


def test_a_wrong_reduction_is_red_on_values() -> None:
    """Planted: of four ranks' gradients one is left out, or the sum is taken for the mean. Adam divides the size of
    gradients away where they are large beside its epsilon; where they are as small as a model's, it hides neither."""
    reference = dict(enumerate(trained(fmean), start=1))
    assert first_divergence([curve(*trained(fmean))], reference, 1e-5) is None
    for wrong in (lambda gradients: sum(gradients[:3]) / 4, sum):
        found = first_divergence([curve(*trained(wrong))], reference, 1e-5)
        assert found is not None
        assert found.step == 2  # the first loss after the first wrong gradient


def trained(reduce) -> list[float]:  # type: ignore[no-untyped-def]
    """Losses of a thousand weights alike, fitted by Adam, gradients of four ranks' data put together by `reduce`."""
    data, weight, first, second, losses = [0.003, 0.011, 0.019, 0.026], 0.0, 0.0, 0.0, []
    for step in range(1, 11):
        losses.append(1000 * sum((weight * x - 2 * x) ** 2 for x in data) / 4)
        gradient = reduce([2 * x * (weight * x - 2 * x) for x in data])
        first, second = 0.9 * first + 0.1 * gradient, 0.95 * second + 0.05 * gradient**2
        weight -= 0.1 * (first / (1 - 0.9**step)) / ((second / (1 - 0.95**step)) ** 0.5 + 1e-5)
    return losses
