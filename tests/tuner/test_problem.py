"""How far apart problems are."""

import math
from dataclasses import replace

import pytest

from tunebench.tuner.problem import CALL_OPTION, Problem, problem_distance, size_distance, told_apart


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


def test_a_listing_shows_digests_only_where_problems_would_look_alike() -> None:
    def problem(call: str) -> Problem:
        return Problem({"elements": 1}, options={"mode": "eval", CALL_OPTION: call})

    small, large = problem("x=64x1000 #aaaaaa"), problem("x=16x32000 #bbbbbb")
    assert told_apart([("k", small), ("k", large), ("k", small)]) == [
        "elements=1 float32 mode=eval x=64x1000",
        "elements=1 float32 mode=eval x=16x32000",
        "elements=1 float32 mode=eval x=64x1000",
    ]
    other, all_named, unidentified = problem("x=64x1000 #cccccc"), problem("#dddddd"), replace(small, options={})
    assert told_apart([("k", one) for one in (small, other, large, all_named, unidentified)]) == [
        "elements=1 float32 mode=eval x=64x1000 #aaaaaa",
        "elements=1 float32 mode=eval x=64x1000 #cccccc",
        "elements=1 float32 mode=eval x=16x32000",
        "elements=1 float32 mode=eval",
        "elements=1 float32",
    ]
    # Another kernel's problem is told apart by the kernel.
    assert told_apart([("k", small), ("another", other)]) == [str(small), str(other)] == [str(small)] * 2
