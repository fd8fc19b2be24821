"""Replay: any strategy on a recorded, exhaustively measured space, without a device, and a score for it.

The score is that of Willemsen et al., "A methodology for comparing optimization algorithms for auto-tuning", 2024: the
mean over evaluations 1..L of (E[random] − best so far) / (E[random] − optimum), where E[random] is what random search
without replacement expects to have found by then, computed exactly. 1 is the optimum from the first evaluation on, 0 is
random search. `tunebench replay` is the command.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import optuna
from optuna.trial import TrialState

from tunebench.tuner.search.recorded import RecordedSpace
from tunebench.tuner.search.sampler import PoolSampler, quiet_study
from tunebench.tuner.search.strategies import make_sampler
from tunebench.tuner.search.warm_start import EarlierStudy, EarlierTrial, choose_warm_starts
from tunebench.tuner.space import ValidSpace

Floats = npt.NDArray[np.float64]
Strategy = str | Callable[[ValidSpace, int], PoolSampler]
"""A strategy's name, or a function of a space and a seed that makes its sampler."""


def expected_random_best(times_ms: Floats, budget: int) -> Floats:
    """Return the exact expected best time of random search without replacement after 1..budget evaluations.

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
        settled_after: evaluations after which a study that may stop early would have; None where that was not asked, or
            it would not have.
    """

    seed: int
    best_ms: tuple[float, ...]
    score: float
    failures: int
    sampler_seconds: float
    settled_after: int | None = None

    def evaluations_to(self, target_ms: float) -> int | None:
        """Return how many evaluations it took to find this time or a better one; None if it was not found."""
        return next((n for n, best_ms in enumerate(self.best_ms, start=1) if best_ms <= target_ms), None)


@dataclass(frozen=True)
class ReplayReport:
    """One strategy on one recorded space: every seed's search, and what they have in common.

    Attributes:
        budget: evaluations per search; the size of the space if that is smaller.
        configurations, failing: how many the space has, and the share of them that fails.
        random_ms: E[random] after each evaluation, milliseconds.
    """

    space: str
    configurations: int
    failing: float
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
        """Return the q-quantile over the seeds of best so far / optimum, after each evaluation."""
        best = np.array([run.best_ms for run in self.runs])
        result: Floats = np.quantile(best / self.optimum_ms, q, axis=0)
        return result

    def ratio_after(self, evaluations: int) -> float:
        """Return the median over the seeds of best / optimum after so many evaluations (or all, if they were fewer)."""
        return float(self.quantile(0.5)[min(evaluations, self.budget) - 1])

    def evaluations_to(self, share: float) -> float:
        """Return the seeds' median of evaluations to within `share` of the optimum; infinite if half never did."""
        needed = [run.evaluations_to(self.optimum_ms * (1 + share)) for run in self.runs]
        return float(np.median([math.inf if n is None else n for n in needed]))


def replay(
    recorded: RecordedSpace,
    strategy: Strategy,
    budget: int = 200,
    seeds: Iterable[int] = range(20),
    batch: int = 1,
    earlier: Sequence[RecordedSpace] = (),
    *,
    stop_early: bool = False,
) -> ReplayReport:
    """Search a recorded space with a strategy, once for each seed, through Optuna's ask and tell.

    Args:
        budget: evaluations per search.
        batch: how many configurations are always pending, as in a study: the next one is asked for when the first of
            them is told.
        earlier: the same kernel elsewhere, such as on other devices: each is searched first, with the same strategy,
            budget and seed, and what those searches met is the warm start.
        stop_early: note where a study that may stop early would have; the search goes on to its budget.

    Raises:
        UnknownNameError: there is no strategy of that name.
    """
    budget = min(budget, len(recorded.space))
    random_ms = expected_random_best(recorded.times_ms, budget)
    settings = _SearchSettings(strategy, budget, batch, stop_early)
    runs = tuple(_replay(recorded, settings, seed, earlier, random_ms) for seed in seeds)
    name = strategy if isinstance(strategy, str) else getattr(strategy, "__name__", str(strategy))
    if earlier:
        name += " after " + " and ".join(one.name for one in earlier)
    size, failing = len(recorded.space), float(np.isnan(recorded.times_ms).mean())
    return ReplayReport(
        recorded.name, size, failing, name, budget, batch, recorded.optimum_ms, tuple(random_ms.tolist()), runs
    )


@dataclass(frozen=True)
class _SearchSettings:
    """The settings of a search; see `replay`."""

    strategy: Strategy
    budget: int
    batch: int = 1
    stop_early: bool = False


def _replay(
    recorded: RecordedSpace, settings: _SearchSettings, seed: int, earlier: Sequence[RecordedSpace], random_ms: Floats
) -> ReplayRun:
    known = [_earlier_study(one, settings, seed) for one in earlier]
    search = _search(recorded, settings, seed, known)
    # Before the first success the worst time counts.
    times_ms = recorded.times_ms[search.numbers]
    best_ms = np.fmin.accumulate(np.concatenate([[recorded.worst_ms], times_ms]))[1:]
    score = _score(best_ms, random_ms, recorded)
    failures = int(np.isnan(times_ms).sum())
    return ReplayRun(seed, tuple(best_ms.tolist()), score, failures, search.seconds, search.settled_after)


@dataclass(frozen=True)
class _Search:
    """The configurations that were evaluated, in order, and the seconds that asking and telling took."""

    numbers: Sequence[int]
    seconds: float
    settled_after: int | None


def _search(recorded: RecordedSpace, settings: _SearchSettings, seed: int, earlier: Sequence[EarlierStudy]) -> _Search:
    space, strategy = recorded.space, settings.strategy
    numbers: list[int] = []
    pending: deque[tuple[optuna.Trial, int]] = deque()
    settled_after: int | None = None
    started = time.perf_counter()
    sampler = make_sampler(strategy, space, seed) if isinstance(strategy, str) else strategy(space, seed)
    study = quiet_study(sampler)
    if sampler.learns:
        sampler.first(study, [space.require(one.configuration) for one in choose_warm_starts(space, earlier)])
    while len(numbers) < settings.budget:
        while len(pending) < min(settings.batch, settings.budget - len(numbers)):
            pending.append(sampler.ask(study))
        trial, number = pending.popleft()
        numbers.append(number)
        time_ms = float(recorded.times_ms[number])
        if math.isnan(time_ms):
            trial.set_constraint("valid", 1.0)
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, time_ms)
        if settings.stop_early and settled_after is None and sampler.settled(study):
            settled_after = len(numbers)
    return _Search(numbers, time.perf_counter() - started, settled_after)


def _earlier_study(recorded: RecordedSpace, settings: _SearchSettings, seed: int) -> EarlierStudy:
    """Return the study that a search of another space would have left behind."""
    budget = min(settings.budget, len(recorded.space))
    numbers = _search(recorded, _SearchSettings(settings.strategy, budget), seed, ()).numbers
    times_ms = recorded.times_ms[numbers].tolist()
    trials = [
        EarlierTrial(f"evaluation {at}", recorded.space[number], time_ms)
        for at, (number, time_ms) in enumerate(zip(numbers, times_ms, strict=True))
        if not math.isnan(time_ms)
    ]
    return EarlierStudy(recorded.name, 1.0, sorted(trials, key=lambda trial: trial.time_ms))


def _score(best_ms: Floats, random_ms: Floats, recorded: RecordedSpace) -> float:
    """Return how far the search came: 1 is the optimum, 0 is as good as random search.

    It is the mean over evaluations of (E[random] - best so far) / (E[random] - optimum). Evaluations at which random
    search is expected to have found the optimum too are left out.
    """
    possible = random_ms - recorded.optimum_ms
    counted = possible > 1e-12 * recorded.optimum_ms
    return float(np.mean((random_ms - best_ms)[counted] / possible[counted])) if counted.any() else 0.0


def _describe_stops(report: ReplayReport) -> list[str]:
    """Return what stopping early would have saved and lost, in words; nothing where no search would have stopped."""
    stops = [run.settled_after for run in report.runs if run.settled_after is not None]
    if not stops:
        return []
    used = [run.settled_after or report.budget for run in report.runs]
    lost = [run.best_ms[at - 1] / run.best_ms[-1] - 1 for run, at in zip(report.runs, used, strict=True)]
    return [
        f"  stopping early: {len(stops)} of {len(report.runs)} searches, evaluations on average {np.mean(used):.0f}; "
        f"slower than at {report.budget} by {np.mean(lost):.2%} on average, {max(lost):.1%} at most, "
        f"by more than 1 % in {sum(one > 0.01 for one in lost)}"
    ]


def describe(report: ReplayReport) -> str:
    """Describe a report in a few lines of text, every seed's score among them."""
    after = sorted({n for n in (25, 50, 100, 150, 200) if n < report.budget} | {report.budget})
    ratios = "  ".join(
        f"{n}: {report.ratio_after(n):.3f} ({report.quantile(0.25)[n - 1]:.3f} to {report.quantile(0.75)[n - 1]:.3f})"
        for n in after
    )
    return "\n".join(
        [
            f"{report.space} ({report.configurations} configurations, {report.failing:.1%} fail), {report.strategy}: "
            f"score {report.score:.3f} ± {report.score_error:.3f}, "
            f"{report.sampler_seconds:.2f} s of sampler for {report.budget} evaluations, {report.batch} at once",
            f"  best/optimum after evaluations, median (quartiles): {ratios}",
            f"  evaluations to 5 %: {report.evaluations_to(0.05):g}, to 1 %: {report.evaluations_to(0.01):g} (median)",
            *_describe_stops(report),
            f"  scores by seed from {report.runs[0].seed}: " + " ".join(f"{score:.2f}" for score in report.scores),
        ]
    )
