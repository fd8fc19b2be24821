"""The Gaussian-process strategy itself: what to make of the times, when to learn anew, and what to try next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tunebench.tuner.configuration import Value
from tunebench.tuner.search.gaussian_process import (
    Floats,
    Indices,
    Integers,
    KernelPrior,
    PoolFeatures,
    Posterior,
    Singles,
    fit,
    prior_parameters,
)
from tunebench.tuner.search.targets import targets_of
from tunebench.tuner.space import INACTIVE


@dataclass(frozen=True)
class PoolSettings:
    """The strategy's constants; `docs/search.md` describes the strategy.

    Attributes:
        initial: observations before the model takes over, chosen to cover every tunable's values evenly.
        margin: improvements smaller than this many standard deviations of the targets are not sought.
        refit_growth: hyper-parameters are learnt anew whenever there are this many times the observations; then, and
            after a quarter of `kept` more observations, the posterior is made anew.
        refit_steps: evaluations of their density each time.
        fitted: observations that hyper-parameters are learnt from, at most.
        kept: observations that the posterior holds when it is made anew, at most.
        exact: a pool of up to this size is searched exactly.
        sampled: of a larger one this many candidates, drawn anew with every refit and every improvement.
        quiet: a search has settled when so many observations in a row improved nothing and left less to expect than
        least_gain: of the best time, as a share of it. A difference that counts is 1 %; this is a thousandth of that,
            since the model is surer than it should be.
    """

    initial: int = 8
    margin: float = 0.1
    refit_growth: float = 1.2
    refit_steps: int = 12
    fitted: int = 128
    kept: int = 512
    exact: int = 1 << 14
    sampled: int = 1 << 12
    quiet: int = 60
    least_gain: float = 1e-5
    prior: KernelPrior = field(default_factory=KernelPrior)


def _log_improvement_table() -> tuple[Floats, Floats]:
    """Return log(φ(z) + z·Φ(z)) + min(z, 0)²/2 on a grid of z; linear interpolation of it is good to four digits."""
    grid = np.concatenate([-np.geomspace(200.0, 1e-3, 6000), np.linspace(0.0, 40.0, 2000)])
    values = []
    for z in grid.tolist():
        if z < -30:
            # The asymptote; the closed form cancels here.
            values.append(-math.log(math.sqrt(2 * math.pi) * (z * z + 3)))
        else:
            density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
            values.append(math.log(density + z * 0.5 * math.erfc(-z / math.sqrt(2))) + 0.5 * min(z, 0.0) ** 2)
    return grid, np.array(values)


_LEAST_CHANCE = 0.01
"""Least probability of success: where everything near has failed the model may still be wrong."""

_LOG_IMPROVEMENT = _log_improvement_table()


def log_expected_improvement(mean: Singles, deviation: Singles, threshold: float) -> Floats:
    """Return the logarithm of E[max(threshold − y, 0)] for normal y, which ranks where the value would underflow.

    After Ament et al., "Unexpected improvements to expected improvement for Bayesian optimization", 2023.
    """
    z = (threshold - mean.astype(np.float64)) / deviation
    result: Floats = np.interp(z, *_LOG_IMPROVEMENT) - 0.5 * np.minimum(z, 0.0) ** 2 + np.log(deviation)
    return result


def _log_feasibility(posterior: Posterior, failed: npt.NDArray[np.bool_]) -> Singles:
    """Return the logarithm of a candidate's chance not to fail, by the same process with targets 0 and 1."""
    if not failed.any():
        return np.zeros(len(posterior.candidates), dtype=np.float32)
    rate = float(failed.mean())
    chance = rate + posterior.mean(failed.astype(np.float64) - rate)
    result: Singles = np.log(np.clip(1.0 - chance, _LEAST_CHANCE, 1.0))
    return result


def balanced_design(indices: Indices, size: int, rng: np.random.Generator, draws: int = 400) -> Integers:
    """Return configurations that use every tunable's values evenly and differ from each other in many tunables.

    Greedy: of `draws` random configurations the next is the one whose values were used least, each use counting as much
    as the tunable has values, less the number of tunables in which it differs from the nearest one chosen.

    Args:
        indices: int16, configurations × tunables.
        size: how many to choose; the result may repeat one in a tiny space.
    """
    varying = (indices != indices[0]).any(axis=0)
    chosen = np.empty((0, int(varying.sum())), dtype=np.intp)
    used = np.zeros((chosen.shape[1], int(indices.max()) - INACTIVE + 1))
    columns = np.arange(chosen.shape[1])
    values = indices[:, varying].max(axis=0) + 1
    numbers = []
    for _ in range(size):
        drawn = rng.integers(len(indices), size=draws)
        shifted = indices[drawn][:, varying].astype(np.intp) - INACTIVE
        cost = (used[columns, shifted] * values).sum(axis=1)
        if len(chosen):
            cost -= (shifted[:, None, :] != chosen).sum(axis=2).min(axis=1)
        best = int(np.argmin(cost))
        numbers.append(int(drawn[best]))
        chosen = np.vstack([chosen, shifted[best]])
        used[columns, shifted[best]] += 1
    return np.array(numbers, dtype=np.intp)


class PoolModel:
    """Observations in, proposals out; everything it does is a function of the seed and the observations in order.

    Args:
        indices: int16, configurations × tunables.
        values: every tunable's values.
        watching: note after each observation what another one is expected to gain, so that `settled` can tell.
    """

    def __init__(
        self,
        indices: Indices,
        values: Sequence[Sequence[Value]],
        seed: int,
        settings: PoolSettings,
        *,
        watching: bool = False,
    ) -> None:
        self._gains: list[float] | None = [] if watching else None
        self._indices = indices
        self._seed = seed
        self._settings = settings
        self._features = PoolFeatures(indices, values, settings.prior)
        self._parameters = prior_parameters(self._features)
        self._design = balanced_design(indices, 4 * settings.initial, np.random.default_rng(seed))
        self._numbers: list[int] = []
        self._times_ms: list[float] = []
        self._absorbed = 0
        self._refit_at = self._renew_at = settings.initial
        self._held: list[int] = []
        self._posterior: Posterior | None = None

    def observe(self, number: int, time_ms: float | None) -> None:
        """Take in a configuration's time in milliseconds, None where it failed."""
        self._numbers.append(number)
        self._times_ms.append(math.inf if time_ms is None else time_ms)

    def propose(self, seen: npt.NDArray[np.bool_], pending: Sequence[int]) -> int:
        """Return the configuration, among those not seen, whose observation promises the most improvement.

        Pending configurations count as observed at their expected time, so that the mean stays and the deviation around
        them shrinks (the kriging believer: Ginsbourger et al., "Kriging is well-suited to parallelize optimization",
        2010).

        Args:
            seen: for every configuration, whether it was asked for; at least one was not.
            pending: those being evaluated.
        """
        self._absorb()
        if self._posterior is None:
            return self._without_model(seen)
        times_ms = self._held_times_ms()
        targets = targets_of(times_ms)
        mean, deviation = self._posterior.mean(targets.values), self._posterior.deviation(pending)
        best_seen = float(targets.values.min())
        score = log_expected_improvement(mean, deviation, best_seen - self._settings.margin)
        score += _log_feasibility(self._posterior, np.isinf(times_ms))
        score[seen[self._posterior.candidates]] = -np.inf
        best = int(np.argmax(score))
        return int(self._posterior.candidates[best]) if score[best] > -np.inf else self._without_model(seen)

    @property
    def settled(self) -> bool:
        """Whether the latest observations say that there is nothing left to gain; a function of the observations."""
        self._absorb()
        quiet = self._settings.quiet
        if self._gains is None or len(self._gains) <= quiet:
            return False
        since_best = len(self._times_ms) - 1 - int(np.argmin(self._times_ms))
        return since_best >= quiet and max(self._gains[-quiet:]) < self._settings.least_gain

    def _expected_gain(self) -> float:
        """Return how much one more observation is expected to take off the best time, as a share of it."""
        if self._posterior is None:
            return math.inf
        times_ms = self._held_times_ms()
        targets = targets_of(times_ms)
        mean, deviation = self._posterior.mean(targets.values), self._posterior.deviation()
        score = log_expected_improvement(mean, deviation, float(targets.values.min()))
        score += _log_feasibility(self._posterior, np.isinf(times_ms))
        score[np.isin(self._posterior.candidates, self._numbers[: self._absorbed])] = -np.inf
        return math.exp(score.max()) * targets.scale

    def _without_model(self, seen: npt.NDArray[np.bool_]) -> int:
        """Return the next of the initial design, or any configuration once that is used up."""
        for number in self._design.tolist():
            if not seen[number]:
                return int(number)
        unseen = np.flatnonzero(~seen)
        return int(np.random.default_rng([self._seed, len(unseen)]).choice(unseen))

    def _held_times_ms(self) -> Floats:
        return np.array([self._times_ms[i] for i in self._held])

    def _absorb(self) -> None:
        """Bring the posterior up to date one observation at a time, so that a resumed search repeats every step."""
        self._catch_up()
        while self._absorbed < len(self._numbers):
            time_ms = self._times_ms[self._absorbed]
            improved = time_ms < min(self._times_ms[: self._absorbed], default=math.inf)
            self._held.append(self._absorbed)
            self._absorbed += 1
            if self._absorbed >= self._renew_at:
                self._renew()
                self._rebuild()
            elif self._posterior is not None:
                if improved and len(self._indices) > self._settings.exact:
                    self._rebuild()
                else:
                    self._posterior.add(self._numbers[self._held[-1]])
            if self._gains is not None:
                self._gains.append(self._expected_gain())

    def _catch_up(self) -> None:
        """Take many observations in without the posteriors between them: the last one depends on none before it.

        Hyper-parameters do, each on those before, so that they are learnt at every step. Gains that `settled` looks at
        are noted with the posterior of their time.
        """
        ends = len(self._numbers) - (0 if self._gains is None else self._settings.quiet)
        while self._following(self._renew_at) <= ends:
            if self._gains is not None:
                self._gains += [math.inf] * (self._renew_at - self._absorbed)
            self._absorbed, self._posterior = self._renew_at, None
            self._renew()

    def _following(self, renewed_at: int) -> int:
        """Return the number of observations at which the posterior is made anew after this one."""
        return min(math.ceil(renewed_at * self._settings.refit_growth), renewed_at + self._settings.kept // 4)

    def _renew(self) -> None:
        """Choose the observations to go on with; where it is time, learn the hyper-parameters from where they were."""
        settings = self._settings
        self._renew_at = self._following(self._absorbed)
        self._held = self._worth_keeping()
        if self._absorbed < self._refit_at:
            return
        self._refit_at = math.ceil(self._absorbed * settings.refit_growth)
        chosen = np.unique(np.linspace(0, len(self._held) - 1, settings.fitted).astype(np.intp))
        targets = targets_of(self._held_times_ms()[chosen]).values
        if targets.any():
            numbers = np.array(self._numbers)[self._held][chosen]
            self._parameters = fit(self._features, numbers, targets, self._parameters, settings.refit_steps)

    def _worth_keeping(self) -> list[int]:
        """Return which observations the posterior is made of: all, or the best half and the latest half of its own."""
        kept = self._settings.kept
        if self._absorbed <= kept:
            return list(range(self._absorbed))
        best = np.argsort(self._times_ms[: self._absorbed], kind="stable")[: kept // 2].tolist()
        return sorted({*best, *range(self._absorbed - kept // 2, self._absorbed)})

    def _rebuild(self) -> None:
        observed = np.array([self._numbers[i] for i in self._held], dtype=np.intp)
        self._posterior = Posterior(self._features, self._parameters, self._candidates(), observed)

    def _candidates(self) -> Integers:
        """Return the whole pool; of a large one, the neighbours of the best configuration and a random sample."""
        size, most = len(self._indices), self._settings.sampled
        if size <= self._settings.exact:
            return np.arange(size)
        rng = np.random.default_rng([self._seed, self._absorbed])
        best = self._numbers[int(np.argmin(self._times_ms[: self._absorbed]))]
        differing = sum((column != column[best]).view(np.int8) for column in self._columns)
        near = np.flatnonzero(differing <= 2)
        if len(near) > most // 2:
            near = rng.choice(near, size=most // 2, replace=False)
        return np.union1d(near, rng.integers(size, size=most - len(near)))

    @cached_property
    def _columns(self) -> Sequence[Indices]:
        """The index matrix by columns, each contiguous: comparing them is what a large pool costs."""
        return [np.ascontiguousarray(column) for column in self._indices.T]
