"""Energy of a call between two steps of a counter, and studies that minimise it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import request_of
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import UserError
from tunebench.tuner.problem import Accuracy, Objective, Problem
from tunebench.tuner.result import CacheRegime, Measurement, TrialResult, TrialStatus, Verdict
from tunebench.tuner.study.history import PastTrial
from tunebench.tuner.timing import energy
from tunebench.tuner.timing.energy import counter_of, energy_mj


def stepping(calls: list[int], each_mj: int, seconds: float) -> Callable[[], int]:
    """A counter that adds so much for each call, and shows it in steps of so many seconds."""
    state = {"shown": 0, "at": time.perf_counter()}

    def read() -> int:
        if time.perf_counter() - state["at"] >= seconds:
            state.update(shown=each_mj * len(calls), at=time.perf_counter())
        return int(state["shown"])

    return read


def test_energy_is_counted_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_SECONDS", 0.1)
    calls: list[int] = []

    def call() -> None:
        time.sleep(0.001)
        calls.append(1)

    assert energy_mj(call, stepping(calls, 30, 0.02), lambda: None) == pytest.approx(30)


def test_a_counter_that_stands_still_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_LONGEST_SECONDS", 0.05)
    assert energy_mj(lambda: None, lambda: 7, lambda: None) is None
    assert energy_mj(lambda: None, lambda: None, lambda: None) is None
    assert counter_of(find_device("cpu")) is None


@pytest.mark.parametrize("objective", ["energy", "both"])
def test_where_energy_is_not_reported_the_option_is_refused_in_one_line(objective: str) -> None:
    with pytest.raises(UserError, match=f"the objective '{objective}' needs a GPU whose energy NVML reports"):
        resolve(request_of("scalar_mul", {"device": "cpu", "objective": objective}))
    with pytest.raises(UserError, match="'objective' is not legal"):
        request_of("scalar_mul", {"objective": "power"})


def test_another_objective_is_another_problem() -> None:
    problem = Problem({"n": 1})
    aimed = problem.at(Accuracy.EAGER, Objective.BOTH)
    assert aimed.objective is Objective.BOTH and aimed.accuracy is Accuracy.EAGER
    assert dict(aimed.options) == {"accuracy": "eager", "objective": "both"}
    assert aimed.at(Accuracy.TOLERANCE) == problem and problem.objective is Objective.TIME


def test_each_objective_ranks_by_its_own_cost() -> None:
    def past(number: int, median_ms: float, energy_mj: float | None) -> PastTrial:
        measured = Measurement(
            (median_ms,), median_ms, median_ms, median_ms, CacheRegime.COLD, "c", energy_mj=energy_mj
        )
        verdict = Verdict(passed=True, stages=(), tolerance=1e-4)
        result = TrialResult(Configuration({}), TrialStatus.CORRECT, None, verdict, measured)
        return PastTrial.of(number, result)

    trials = [past(0, 1.0, 9.0), past(1, 2.0, 4.0), past(2, 5.0, 3.0), past(3, 0.5, None)]
    firsts = {one: min(trials, key=lambda trial: trial.cost(one)).number for one in Objective}
    assert firsts == {Objective.TIME: 3, Objective.ENERGY: 2, Objective.BOTH: 1}
    assert trials[0].refused().cost(Objective.BOTH) == float("inf")
