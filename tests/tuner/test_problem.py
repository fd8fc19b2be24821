"""How far apart problems are."""

import math

import pytest

from tunebench.tuner.problem import Problem, problem_distance, size_distance


def test_the_distance_of_problems() -> None:
    small, large = Problem({"a": 10, "b": 10}), Problem({"a": 20, "b": 5})
    assert problem_distance(small, small) == 0.0
    assert problem_distance(small, large) == problem_distance(large, small) == pytest.approx(2 * 0.6931, abs=1e-3)
    assert problem_distance(Problem({"a": 0}), Problem({"a": 1})) > 0.0
    assert problem_distance(Problem({"a": 0}), Problem({"a": 2})) > problem_distance(
        Problem({"a": 1}), Problem({"a": 2})
    )


def test_problems_that_differ_in_more_than_sizes_are_infinitely_far() -> None:
    here = Problem({"a": 10})
    for other in (Problem({"a": 10}, "float64"), Problem({"a": 10}, options={"mode": "train"}), Problem({"b": 10})):
        assert math.isinf(problem_distance(here, other))
        assert size_distance(here, other) == 0.0
