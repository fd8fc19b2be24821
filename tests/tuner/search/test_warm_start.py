"""What earlier studies give a new one: its first trials and a guess at its times."""

from __future__ import annotations

import math

import numpy as np
import optuna
import pytest

from tunebench.tuner.problem import Problem
from tunebench.tuner.search.recorded import RecordedSpace
from tunebench.tuner.search.replay import replay
from tunebench.tuner.search.warm_start import EarlierStudy, EarlierTrial, choose_warm_starts, distance, number_of
from tunebench.tuner.space import Constraint, SearchSpace, Tunable, ValidSpace

optuna.logging.set_verbosity(optuna.logging.WARNING)

SPACE = SearchSpace(
    tunables=tuple(Tunable(name, (1, 2, 4, 8, 16, 32)) for name in ("a", "b", "c", "d")),
    constraints=(Constraint("product", lambda a, b: a * b <= 256),),
)


def valley(space: ValidSpace, shift: float = 0.0) -> np.ndarray:
    """Times with one valley, which lies elsewhere on a device of another `shift`; the largest `d` fails."""
    rows = space.indices.astype(float)
    times = 4.0 + (rows[:, 0] - 3 - shift) ** 2 + (rows[:, 1] - 2) ** 2 + 0.5 * (rows[:, 2] - 4 + shift) ** 2
    times = times + 0.3 * np.abs(rows[:, 3] - 2) + 1e-3 * np.sin(np.arange(len(space)))
    return np.where(rows[:, 3] == 5, np.nan, times)


def study(
    space: ValidSpace, times_ms: np.ndarray, numbers: list[int], away: float = 1.0, name: str = ""
) -> EarlierStudy:
    trials = [
        EarlierTrial(f"trial {number}", space[number], float(times_ms[number]))
        for number in sorted(numbers, key=lambda number: float(np.nan_to_num(times_ms[number], nan=np.inf)))
        if not math.isnan(times_ms[number])
    ]
    return EarlierStudy(name or f"{away} away", away, trials)


@pytest.fixture(scope="module")
def space() -> ValidSpace:
    return SPACE.enumerate()


def test_distance_counts_sizes_by_factors_of_four_and_everything_else_by_one() -> None:
    here = Problem({"rows": 1024, "columns": 64}, "float32", {"mode": "eval"})
    alike = {"same_device": True, "same_architecture": True, "same_source": True}
    assert distance(here, here, **alike) == 0
    assert distance(here, Problem({"rows": 256, "columns": 256}, "float32", {"mode": "eval"}), **alike) == 2
    assert distance(here, Problem({"rows": 1024}, "float64", {"mode": "train"}), **alike) == 3
    assert distance(here, here, same_device=False, same_architecture=False, same_source=False) == 3


def test_the_first_trials_are_good_where_they_come_from_and_unlike_each_other(space: ValidSpace) -> None:
    times_ms = valley(space)
    numbers = np.random.default_rng(0).permutation(len(space))[:200].tolist()
    warm_starts = choose_warm_starts(space, [study(space, times_ms, numbers)])
    chosen = [space.require(one.configuration) for one in warm_starts]
    best = np.nanmin(times_ms[numbers])
    assert chosen[0] == min(numbers, key=lambda n: math.inf if math.isnan(times_ms[n]) else times_ms[n])
    assert (times_ms[chosen] <= 1.5 * best).all()
    assert len(set(chosen)) == len(chosen) > 1
    rows = space.indices[chosen[:3]]
    assert min((one != other).sum() for i, one in enumerate(rows) for other in rows[:i]) >= 2
    assert warm_starts[0].origin == f"trial {chosen[0]}, 1.0 away"


def test_nearer_studies_give_more_and_no_study_is_left_out(space: ValidSpace) -> None:
    rng = np.random.default_rng(1)
    flat = 1.0 + 0.001 * rng.random(len(space))
    studies = [study(space, flat, rng.permutation(len(space))[:50].tolist(), away) for away in (0.0, 1.0, 3.0)]
    origins = [one.origin.partition(", ")[2] for one in choose_warm_starts(space, studies)]
    assert [origins.count(f"{away} away") for away in (0.0, 1.0, 3.0)] == [5, 2, 1]
    assert choose_warm_starts(space, studies) == choose_warm_starts(space, studies)


def test_what_is_not_valid_here_stands_for_its_neighbour_or_is_dropped(space: ValidSpace) -> None:
    assert number_of(space, {"a": 32, "b": 32, "c": 4, "d": 1}) in {
        space.require({"a": a, "b": b, "c": 4, "d": 1}) for a, b in ((16, 16), (32, 8), (8, 32), (16, 8), (8, 16))
    }
    # A newer source has a tunable more; an older one had one that is gone.
    assert number_of(space, {"a": 4, "b": 4, "c": 4}) == space.require({"a": 4, "b": 4, "c": 4, "d": 1})
    assert number_of(space, {"a": 4, "b": 4, "c": 4, "d": 2, "gone": 7}) == space.require(
        {"a": 4, "b": 4, "c": 4, "d": 2}
    )
    assert number_of(space, {"a": 5, "b": 5, "c": 5, "d": 1}) is None
    assert space.completing({"a": 4, "b": 4, "c": 4}) == space.require({"a": 4, "b": 4, "c": 4, "d": 1})
    assert space.completing({"a": 5}) is None
    assert number_of(space, {"other": 1}) is None


def test_without_earlier_studies_there_is_nothing(space: ValidSpace) -> None:
    assert choose_warm_starts(space, []) == []
    assert choose_warm_starts(space, [EarlierStudy("empty", 0.0, [])]) == []


def recorded(space: ValidSpace, shift: float) -> RecordedSpace:
    return RecordedSpace(f"shift {shift}", space, valley(space, shift))


def test_a_search_that_begins_with_another_devices_results_is_faster(space: ValidSpace) -> None:
    here, there = recorded(space, 0.0), recorded(space, 0.7)
    fresh = replay(here, "gp", 30, range(4))
    warm_starts = replay(here, "gp", 30, range(4), earlier=[there])
    assert warm_starts.strategy == "gp after shift 0.7"
    assert warm_starts.score > fresh.score + 0.05
    again = replay(here, "gp", 30, range(4), earlier=[there])
    assert [run.best_ms for run in warm_starts.runs] == [run.best_ms for run in again.runs]
    # Strategies that do not learn are what they are.
    assert replay(here, "random", 30, [0], earlier=[there]).scores == replay(here, "random", 30, [0]).scores
