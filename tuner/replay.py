"""Replay: any strategy on a recorded, exhaustively measured space, without a device, and a score for it.

The score is that of Willemsen et al., "A methodology for comparing optimization algorithms for auto-tuning", 2024: the
mean over evaluations 1..L of (E[random] − best so far) / (E[random] − optimum), where E[random] is what random search
without replacement expects to have found by then, computed exactly. 1 is the optimum from the first evaluation on, 0 is
random search. `tunebench replay` is the command.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import optuna
from optuna.trial import TrialState

from tunebench.tuner.recorded import RecordedSpace, RecordedSpaceError, load_recorded
from tunebench.tuner.sampler import PoolSampler, make_sampler
from tunebench.tuner.space import ValidSpace

__all__ = [
    "RecordedSpace",
    "RecordedSpaceError",
    "ReplayReport",
    "ReplayRun",
    "Strategy",
    "describe",
    "expected_random_best",
    "load_recorded",
    "replay",
]

Floats = npt.NDArray[np.float64]
Strategy = str | Callable[[ValidSpace, int], PoolSampler]
"""A strategy's name, or a function of a space and a seed that makes its sampler."""


def expected_random_best(times_ms: Floats, budget: int) -> Floats:
    """What random search without replacement expects to have found after 1..budget evaluations, exactly.

    With the N configurations' times sorted, a sample of n has none of the i best with probability
    C(N − i, n) / C(N, n); the expectation is the sum of the gaps between successive times weighted with these. A
    failure (NaN) leaves the best so far as it is; before the first success it is the worst time.

    Args:
        times_ms: the time of every configuration, at least one of them a number.

    Returns:
        `budget` values in milliseconds; the optimum from N evaluations on.
    """
    ordered = np.sort(times_ms[np.isfinite(times_ms)])
    gaps = np.diff(ordered)
    total = len(times_ms)
    left = total - np.arange(1.0, len(ordered))
    none_of_the_best = np.ones(len(gaps))
    expected = np.empty(budget)
    for drawn in range(budget):
        none_of_the_best *= np.maximum(left - drawn, 0.0) / max(total - drawn, 1)
        expected[drawn] = ordered[0] + gaps @ none_of_the_best
    return expected


@dataclass(frozen=True)
class ReplayRun:
    """One search with one seed.

    Attributes:
        best_ms: the best time so far after each evaluation, milliseconds; the worst of the space before any success.
        score: see the module's description.
        failures: evaluations of configurations that failed.
        sampler_seconds: what asking and telling took altogether.
    """

    seed: int
    best_ms: tuple[float, ...]
    score: float
    failures: int
    sampler_seconds: float

    def evaluations_to(self, target_ms: float) -> int | None:
        """How many evaluations it took to find this time or a better one; None if it was not found."""
        return next((n for n, best_ms in enumerate(self.best_ms, start=1) if best_ms <= target_ms), None)


@dataclass(frozen=True)
class ReplayReport:
    """One strategy on one recorded space: every seed's search, and what they have in common.

    Attributes:
        budget: evaluations per search; the size of the space if that is smaller.
        random_ms: E[random] after each evaluation, milliseconds.
    """

    space: str
    strategy: str
    budget: int
    batch: int
    optimum_ms: float
    random_ms: tuple[float, ...]
    runs: tuple[ReplayRun, ...]

    @property
    def scores(self) -> tuple[float, ...]:
        """Every seed's score."""
        return tuple(run.score for run in self.runs)

    @property
    def score(self) -> float:
        """The mean score over the seeds."""
        return float(np.mean(self.scores))

    @property
    def score_error(self) -> float:
        """The standard error of the mean score; 0 for a single seed."""
        return float(np.std(self.scores, ddof=1) / math.sqrt(len(self.scores))) if len(self.scores) > 1 else 0.0

    @property
    def sampler_seconds(self) -> float:
        """The mean over the seeds of the seconds that the sampler took for its whole search."""
        return float(np.mean([run.sampler_seconds for run in self.runs]))

    def quantile(self, q: float) -> Floats:
        """The q-quantile over the seeds of best so far / optimum, after each evaluation."""
        best = np.array([run.best_ms for run in self.runs])
        result: Floats = np.quantile(best / self.optimum_ms, q, axis=0)
        return result

    def ratio_after(self, evaluations: int) -> float:
        """The median over the seeds of best / optimum after so many evaluations (or after all, if they were fewer)."""
        return float(self.quantile(0.5)[min(evaluations, self.budget) - 1])

    def evaluations_to(self, share: float) -> float:
        """The median over the seeds of the evaluations to within `share` of the optimum; infinite if half never did."""
        needed = [run.evaluations_to(self.optimum_ms * (1 + share)) for run in self.runs]
        return float(np.median([math.inf if n is None else n for n in needed]))


def replay(
    recorded: RecordedSpace, strategy: Strategy, budget: int = 200, seeds: Iterable[int] = range(20), batch: int = 1
) -> ReplayReport:
    """Search a recorded space with a strategy, once for each seed, through Optuna's ask and tell.

    Args:
        budget: evaluations per search.
        batch: how many configurations are asked for before the first of them is told, as with several workers.

    Raises:
        UnknownNameError: there is no strategy of that name.
    """
    budget = min(budget, len(recorded.space))
    random_ms = expected_random_best(recorded.times_ms, budget)
    runs = tuple(_search(recorded, strategy, budget, seed, batch, random_ms) for seed in seeds)
    name = strategy if isinstance(strategy, str) else getattr(strategy, "__name__", str(strategy))
    return ReplayReport(recorded.name, name, budget, batch, recorded.optimum_ms, tuple(random_ms.tolist()), runs)


def _search(
    recorded: RecordedSpace, strategy: Strategy, budget: int, seed: int, batch: int, random_ms: Floats
) -> ReplayRun:
    space = recorded.space
    sampler = make_sampler(strategy, space, seed) if isinstance(strategy, str) else strategy(space, seed)
    study = _quiet_study(sampler)
    best_ms: list[float] = []
    failures = 0
    started = time.perf_counter()
    while len(best_ms) < budget:
        pending = [sampler.ask(study) for _ in range(min(batch, budget - len(best_ms)))]
        for trial, number in pending:
            time_ms = float(recorded.times_ms[number])
            if math.isnan(time_ms):
                failures += 1
                trial.set_constraint("valid", 1.0)
                study.tell(trial, state=TrialState.PRUNED)
            else:
                study.tell(trial, time_ms)
            best_ms.append(np.fmin(best_ms[-1] if best_ms else recorded.worst_ms, time_ms).item())
    seconds = time.perf_counter() - started
    return ReplayRun(seed, tuple(best_ms), _score(np.array(best_ms), random_ms, recorded), failures, seconds)


def _quiet_study(sampler: PoolSampler) -> optuna.Study:
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)


def _score(best_ms: Floats, random_ms: Floats, recorded: RecordedSpace) -> float:
    """The mean share of the way from E[random] to the optimum; where there is no way, nothing is won or lost."""
    possible = random_ms - recorded.optimum_ms
    # With the whole space evaluated, random search has the optimum as well.
    counted = possible > 1e-12 * recorded.optimum_ms
    return float(np.mean((random_ms - best_ms)[counted] / possible[counted])) if counted.any() else 0.0


def describe(report: ReplayReport) -> str:
    """A report as a few lines of text, every seed's score among them."""
    after = [n for n in (25, 50, 100, 150, 200) if n <= report.budget]
    ratios = "  ".join(
        f"{n}: {report.ratio_after(n):.3f} ({report.quantile(0.25)[n - 1]:.3f} to {report.quantile(0.75)[n - 1]:.3f})"
        for n in after
    )
    return "\n".join(
        [
            f"{report.space}, {report.strategy}: score {report.score:.3f} ± {report.score_error:.3f}, "
            f"{report.sampler_seconds:.2f} s of sampler for {report.budget} evaluations, batches of {report.batch}",
            f"  best/optimum after evaluations, median (quartiles): {ratios}",
            f"  evaluations to 5 %: {report.evaluations_to(0.05):g}, to 1 %: {report.evaluations_to(0.01):g} (median)",
            f"  scores by seed from {report.runs[0].seed}: " + " ".join(f"{score:.2f}" for score in report.scores),
        ]
    )
