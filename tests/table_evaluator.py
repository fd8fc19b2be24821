"""An evaluator that answers from a table, with a compiler that has nothing to do: for tests of how a study goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from tunebench.tuner.build import Build, CompilerName, LoadedModule
from tunebench.tuner.compile.base import Compiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import (
    CONTROL,
    Baseline,
    CacheRegime,
    Comparison,
    Measurement,
    Stage,
    TrialResult,
    TrialStatus,
    Verdict,
)
from tunebench.tuner.study.account import Activity
from tunebench.tuner.study.evaluate import NOBODY, Finalist, Leaders
from tunebench.tuner.timing.statistics import control_ratio, medians_of, speedup
from tunebench.tuner.variant import Variant


class AtOnce(Compiler):
    """A compiler of empty builds."""

    name = CompilerName.CPU

    def version(self) -> str:
        """Part of the cache's key."""
        return "none"

    def flags(self, variant: Variant) -> tuple[str, ...]:
        """None."""
        del variant
        return ()

    def compile(self, variant: Variant) -> Build:
        """An empty build."""
        return Build(variant.digest, self.name, "none", b"", "", {}, 0.0)

    def load(self, build: Build, device_index: int | None = None) -> LoadedModule:
        """Nothing is run."""
        raise NotImplementedError


class TableEvaluator:
    """Answers with a time for each configuration; None, or NaN, is a variant that the compiler refuses.

    Args:
        time_ms: of a configuration.
        steps: of the full battery, which a correct trial has passed.
    """

    prepared: ClassVar[Mapping[Activity, float]] = {}

    def __init__(
        self,
        time_ms: Callable[[Configuration], float | None],
        problem: Problem | None = None,
        steps: Sequence[str] = (),
    ) -> None:
        self.problem, self.device = problem or Problem({}), find_device("cpu")
        self._time_ms = time_ms
        self._stages = tuple(Stage(name, True, 0.0) for name in ("values", *steps))

    def evaluate(self, configuration: Configuration, build: Build, leaders: Leaders = NOBODY) -> TrialResult:
        """See `LocalEvaluator.evaluate`."""
        del leaders
        time_ms = self._time_ms(configuration)
        if time_ms is None or math.isnan(time_ms):
            return TrialResult(configuration, TrialStatus.COMPILE, message="refused")
        measured = Measurement((time_ms,) * 3, time_ms, time_ms, time_ms, CacheRegime.WARM, "table")
        verdict = Verdict(True, self._stages, None, None)
        return TrialResult(configuration, TrialStatus.CORRECT, build, verdict, measured)

    def prove(self, finalist: Finalist) -> Stage | None:
        """See `LocalEvaluator.prove`."""
        del finalist

    def sanitize(self, finalist: Finalist, seconds: float = math.inf) -> Stage:
        """See `LocalEvaluator.sanitize`."""
        del finalist, seconds
        return Stage("sanitizer", True, 0.0)

    def compile(self, seconds: float = math.inf) -> str:
        """See `LocalEvaluator.compile`."""
        return f"torch.compile: there is no module to compile in {seconds:g} s"

    def compare(
        self,
        finalists: Sequence[Finalist],
        default: Finalist | None,
        leader: Configuration,
        seconds: float | None = None,
    ) -> Comparison:
        """See `LocalEvaluator.compare`."""
        del finalists, seconds
        best_ms = self._time_ms(leader)
        default_ms = self._time_ms(default[0]) if default else None
        times = {"reference": 2.0, "copy": 0.5, "best": best_ms, "default": default_ms}
        times[CONTROL] = default_ms or 2.0
        samples = {name: (one,) * 12 for name, one in times.items() if one is not None}
        baselines = [one for one in Baseline if one.value in samples]
        return Comparison(
            leader,
            medians_of(samples),
            samples,
            {one: speedup(samples["best"], samples[one.value]) for one in baselines},
            {},
            control_ratio(samples, "default" if default else "reference"),
        )

    def kill(self) -> None:
        """There is nothing to end."""

    def close(self) -> None:
        """There is nothing to let go of."""
