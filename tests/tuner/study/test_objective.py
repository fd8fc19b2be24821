"""Studies that minimise energy, from a table of times and energies; and what they know when they go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from memory_log import MemoryLog
from sample_kernel import WriteKernel
from short_studies import ALL
from table_evaluator import AtOnce, TableEvaluator

from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.build import Build
from tunebench.tuner.compile.building import BuildQueue
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.problem import Accuracy, Objective, Problem
from tunebench.tuner.result import TrialResult
from tunebench.tuner.search.strategies import make_sampler
from tunebench.tuner.study.evaluate import NOBODY, Leaders
from tunebench.tuner.study.executor import LocalExecutor
from tunebench.tuner.study.outcome import Budget
from tunebench.tuner.study.study import StudyRun

pytestmark = pytest.mark.usefixtures("short_studies")

CPU = find_device("cpu")


class EnergyTable(TableEvaluator):
    """The same with an energy for each configuration."""

    energy: Callable[[Configuration], float]

    def evaluate(self, configuration: Configuration, build: Build, leaders: Leaders = NOBODY) -> TrialResult:
        """See `Evaluator.evaluate`."""
        result = super().evaluate(configuration, build, leaders)
        assert result.measurement is not None
        return replace(result, measurement=replace(result.measurement, energy_mj=self.energy(configuration)))


@pytest.mark.parametrize("objective", list(Objective))
def test_a_study_finds_what_costs_the_least(write_kernel: WriteKernel, objective: Objective) -> None:
    factory: type[TunedModule] = write_kernel()
    kernel, problem = factory.kernel, Problem({"n": 2112}).at(Accuracy.TOLERANCE, objective)
    space = kernel.space.enumerate(problem, CPU)

    def time_ms(configuration: Configuration) -> float:
        return 1.0 + space.require(configuration) * 7 % 33 / 33

    def energy_mj(configuration: Configuration) -> float:
        return 50.0 + space.require(configuration) * 5 % 33

    evaluator = EnergyTable(time_ms, problem, [step.name for step in ALL])
    evaluator.energy = energy_mj
    log = MemoryLog()
    for trials in (len(space) // 2, len(space)):  # the second half goes on where the first ended
        run = StudyRun(
            LocalExecutor(kernel, [evaluator], BuildQueue(AtOnce())), space, make_sampler("random", space, 3), log
        )
        outcome = run.run(Budget(trials))
    assert outcome.comparison is not None
    expected = min(space, key=lambda one: objective.cost(time_ms(one), energy_mj(one)))
    assert outcome.comparison.best == expected
