"""Order statistics: coverage by simulation, and exact small cases."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tunebench.tuner.result import CONTROL
from tunebench.tuner.timing.statistics import control_of, median_interval, samples_needed, speedup


@pytest.mark.parametrize("count", [8, 15, 40])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_the_interval_covers_the_true_median_as_often_as_it_says(count: int, confidence: float) -> None:
    generator = np.random.default_rng(count)
    runs = 4000
    covered = 0
    for _ in range(runs):
        _, low, high = median_interval(generator.lognormal(size=count), confidence)
        covered += low <= 1.0 <= high
    # The interval is conservative: never below its confidence by more than the simulation's own error.
    assert covered / runs >= confidence - 3 * np.sqrt(confidence * (1 - confidence) / runs)


def test_the_interval_is_no_wider_than_it_needs_to_be() -> None:
    # n = 20, 95 %: the 6th smallest and the 6th largest (the textbook table's ranks 6 and 15).
    assert median_interval(range(1, 21)) == (10.5, 6.0, 15.0)


def test_few_samples_give_their_range() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert median_interval([5.0]) == (5.0, 5.0, 5.0)


def test_the_fewest_samples_with_a_covering_range() -> None:
    assert samples_needed(0.95) == 6
    assert samples_needed(0.99) == 8


def test_drift_that_both_share_does_not_move_a_speedup() -> None:
    generator = np.random.default_rng(1)
    drift = np.linspace(1.0, 1.5, 40)
    one = drift * (1 + 0.001 * generator.standard_normal(40))
    two = 1.02 * drift * (1 + 0.001 * generator.standard_normal(40))
    ratio = speedup(of=one, over=two)
    assert ratio.low > 1.015
    assert ratio.high < 1.025
    assert ratio.rounds == 40


@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_ranks_are_those_of_the_exact_binomial_distribution(confidence: float) -> None:
    for count in (2, 5, 6, 7, 8, 9, 20, 33, 160, 401):
        _, low, high = median_interval(range(1, count + 1), confidence)
        below = [Fraction(sum(math.comb(count, i) for i in range(rank)), 2**count) for rank in range(count // 2 + 1)]
        outside = Fraction(1 - confidence) / 2
        rank = max((rank for rank in range(1, count // 2 + 1) if below[rank] <= outside), default=1)
        assert (low, high) == (rank, count + 1 - rank)


def test_a_million_samples_take_no_numbers_of_a_million_digits() -> None:
    _, low, high = median_interval(range(1, 1_000_001))
    assert (low, high) == (499_020, 500_981)  # 500,000 ∓ 1.96 · √(10⁶) / 2


def test_the_control_is_a_copy_of_the_default_and_of_the_reference_where_there_is_none() -> None:
    samples = {"reference": (4.0,) * 9, "default": (2.0,) * 9, CONTROL: (1.0,) * 9}
    for left_out, ratio in (((), 2.0), (("default",), 4.0)):
        control = control_of({name: times for name, times in samples.items() if name not in left_out})
        assert control is not None and control.value == ratio
    assert control_of({"best": (1.0,) * 9, CONTROL: (1.0,) * 9}) is None
    assert control_of({"default": (1.0,) * 9}) is None
