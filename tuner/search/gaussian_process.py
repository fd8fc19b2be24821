"""A Gaussian process over a finite pool of configurations: its features, its hyper-parameters, its running posterior.

The kernel is the sum, in fixed shares, of

- the product of exponential kernels exp(−Σ wᵢ·dᵢ(x, x′)): every dᵢ is a distance of two configurations in one respect
  (see `PoolFeatures`), scaled to 0..1, and every weight wᵢ is learnt;
- main effects: the mean over the respects of a sharp kernel in each alone, so that what was seen of a tunable's value
  anywhere says something about it everywhere (Duvenaud et al., "Additive Gaussian processes", 2011).

All distances look up tables of levels, so that the kernel between an observation and the whole pool is one matrix
product with the pool's one-hot levels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tunebench.tuner.configuration import Value
from tunebench.tuner.space import INACTIVE

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Integers = npt.NDArray[np.intp]
Indices = npt.NDArray[np.int16]

_MOST_PRODUCTS_OF = 8
_PRODUCT_LEVELS = 32
_INACTIVE_DISTANCE = 0.5
"""From an inactive tunable to any of its values: half the range keeps the distance conditionally negative definite."""

_LARGEST_WEIGHT = 50.0
_SMALLEST_WEIGHT = 1e-4
_NOISE_RANGE = (1e-4, 1.0)


@dataclass(frozen=True)
class KernelPrior:
    """Medians and spread of the log-normal priors of the hyper-parameters.

    Each weight's median is divided by the square root of the number of tunables, so that two random configurations are
    about as far apart in a space of many tunables as in one of few (Hvarfner et al., "Vanilla Bayesian optimization
    performs great in high dimensions", 2024).

    Attributes:
        distance: weight of the distance between value indices.
        difference: weight of two values being different at all; with the distance of a tunable that has an order.
        alignment: weight of the difference in how often 2 divides the values.
        product: weight of the distance between the logarithms of the product of two tunables.
        noise: variance that the features do not explain, in units of the variance of the targets.
        effects: share of the main effects in the explained variance.
        sharpness: how many times the median weights make the main effects' kernels.
        spread, noise_spread: standard deviation of the logarithm of a weight, and of the noise.
    """

    distance: float = 0.7
    difference: float = 0.4
    alignment: float = 0.3
    product: float = 0.3
    noise: float = 0.01
    effects: float = 0.5
    sharpness: float = 30.0
    spread: float = 0.7
    noise_spread: float = 0.5


@dataclass(frozen=True)
class _Aspect:
    """One respect in which configurations differ: a level looked up from one tunable or two, and distances of levels.

    Attributes:
        tunables: columns of the index matrix, one or two.
        levels: level by value index + 1 (so that the inactive index is 0); one axis per tunable.
        distances: level × level matrices in 0..1.
        medians: prior median of each distance's weight, before division by the number of tunables.
    """

    tunables: tuple[int, ...]
    levels: Integers
    distances: tuple[Floats, ...]
    medians: tuple[float, ...]


def _line(positions: Floats) -> Floats:
    """Return distances of levels on a line, 0..1; level 0 is the inactive one, off the line."""
    between = np.abs(positions[:, None] - positions[None, :]) / max(float(np.ptp(positions)), 1e-12)
    distance = np.full((len(positions) + 1, len(positions) + 1), _INACTIVE_DISTANCE)
    distance[1:, 1:] = between
    distance[0, 0] = 0.0
    return distance


def _value_aspect(column: int, values: Sequence[Value], prior: KernelPrior) -> _Aspect:
    count = len(values)
    different = 1.0 - np.eye(count + 1)
    levels = np.arange(count + 1)
    if count <= 2 or isinstance(values[0], str | bool):
        return _Aspect((column,), levels, (different,), (prior.difference,))
    distances = (_line(np.arange(float(count))), different)
    return _Aspect((column,), levels, distances, (prior.distance, prior.difference))


def _alignment_aspect(column: int, values: Sequence[Value], prior: KernelPrior) -> _Aspect | None:
    """Return how often 2 divides a value, as an aspect: hardware comes in powers of two. None where the index tells."""
    numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0]
    if len(numbers) < len(values):
        return None
    twos = np.array([(number & -number).bit_length() - 1 for number in numbers])
    if (np.diff(twos) >= 0).all():
        return None
    distinct, level = np.unique(twos, return_inverse=True)
    return _Aspect((column,), np.append(0, level + 1), (_line(distinct.astype(float)),), (prior.alignment,))


def _product_aspect(columns: tuple[int, int], logs: tuple[Floats, Floats], prior: KernelPrior) -> _Aspect:
    """Return the product of two tunables as an aspect: threads of a block, elements of a tile, bytes of a buffer."""
    product = logs[0][:, None] + logs[1][None, :]
    scaled = np.rint((product - product.min()) / max(float(np.ptp(product)), 1e-12) * _PRODUCT_LEVELS)
    distinct, level = np.unique(scaled, return_inverse=True)
    levels = np.zeros((len(logs[0]) + 1, len(logs[1]) + 1), dtype=np.intp)
    levels[1:, 1:] = level.reshape(product.shape) + 1
    return _Aspect(columns, levels, (_line(distinct),), (prior.product,))


def _logarithms(values: Sequence[Value]) -> Floats | None:
    """Return the logarithms of a tunable that can be a factor: three positive numbers or more; None for any other."""
    if len(values) < 3 or any(isinstance(v, str | bool) or v <= 0 for v in values):
        return None
    return np.log(np.array(values, dtype=np.float64))


class PoolFeatures:
    """The respects in which the configurations of a space differ, as levels and tables of distances.

    Per tunable: the distance of its value indices and whether the values differ (only the latter where there is no
    order); for integers, their alignment to powers of two; for each pair of numeric tunables, their product. Tunables
    that do not vary have no part; products are of the eight numeric tunables with the most values.

    Args:
        indices: int16, configurations × tunables.
        values: every tunable's values.
    """

    def __init__(self, indices: Indices, values: Sequence[Sequence[Value]], prior: KernelPrior) -> None:
        self._indices = indices
        self.prior = prior
        varying = np.flatnonzero((indices != indices[0]).any(axis=0)).tolist()
        self._aspects = [_value_aspect(j, values[j], prior) for j in varying]
        aligned = [_alignment_aspect(j, values[j], prior) for j in varying]
        self._aspects += [aspect for aspect in aligned if aspect is not None]
        factors = [(j, logs) for j in varying if (logs := _logarithms(values[j])) is not None]
        factors = sorted(factors, key=lambda factor: -len(factor[1]))[:_MOST_PRODUCTS_OF]
        for (j, logs_j), (k, logs_k) in itertools.combinations(factors, 2):
            self._aspects.append(_product_aspect((j, k), (logs_j, logs_k), prior))
        sizes = [len(aspect.distances[0]) for aspect in self._aspects]
        self._offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.intp)])
        medians = [median for aspect in self._aspects for median in aspect.medians]
        self.medians: Floats = np.array(medians) / math.sqrt(max(len(varying), 1))

    def codes(self, numbers: Integers) -> Integers:
        """Return the levels of configurations, configurations × aspects, each aspect's counted on from the last."""
        shifted = self._indices[numbers].astype(np.intp) - INACTIVE
        columns = [aspect.levels[tuple(shifted[:, j] for j in aspect.tunables)] for aspect in self._aspects]
        local = np.stack(columns, axis=1) if columns else np.empty((len(numbers), 0), dtype=np.intp)
        codes: Integers = local + self._offsets[:-1]
        return codes

    def one_hot(self, numbers: Integers) -> Singles:
        """Return 1 where a configuration has a level: levels × configurations."""
        hot = np.zeros((int(self._offsets[-1]), len(numbers)), dtype=np.float32)
        hot[self.codes(numbers), np.arange(len(numbers))[:, None]] = 1.0
        return hot

    def distances(self, numbers: Integers) -> Singles:
        """Return distances between all pairs of some configurations, one layer per weight: weights × n × n."""
        local = self.codes(numbers) - self._offsets[:-1]
        layers = [
            table[np.ix_(local[:, k], local[:, k])]
            for k, aspect in enumerate(self._aspects)
            for table in aspect.distances
        ]
        return np.array(layers, dtype=np.float32).reshape(len(layers), len(numbers), len(numbers))

    def effects(self) -> Singles:
        """Return the main effects' covariance of any two levels, levels × levels; zero between different aspects."""
        blocks = np.exp(-self.weighted(self.medians * self.prior.sharpness))
        for start, end in itertools.pairwise(self._offsets):
            blocks[start:end, :start] = blocks[start:end, end:] = 0.0
        result: Singles = blocks * np.float32(self.prior.effects / max(len(self._aspects), 1))
        return result

    def weighted(self, weights: Floats) -> Singles:
        """Return the weighted distance between any two levels, levels × levels; zero between different aspects."""
        size = int(self._offsets[-1])
        table = np.zeros((size, size), dtype=np.float32)
        remaining = iter(weights.tolist())
        for start, end, aspect in zip(self._offsets, self._offsets[1:], self._aspects, strict=False):
            table[start:end, start:end] = sum(next(remaining) * distance for distance in aspect.distances)
        return table


@dataclass(frozen=True, eq=False)
class KernelParameters:
    """Hyper-parameters: a weight for each distance, and the variance of noise where that of the targets is 1."""

    weights: Floats
    noise: float


def prior_parameters(features: PoolFeatures) -> KernelParameters:
    """Return the hyper-parameters at the median of their prior."""
    return KernelParameters(features.medians, features.prior.noise)


def fit(
    features: PoolFeatures, numbers: Integers, targets: Floats, start: KernelParameters, steps: int
) -> KernelParameters:
    """Return hyper-parameters of about the largest posterior density, given observations of unit variance.

    Climbs in their logarithms by resilient propagation (Riedmiller and Braun, 1993), which needs only the signs of the
    gradient; the best point on the way is returned.

    Args:
        numbers, targets: the configurations observed, and what was.
        steps: evaluations of the density; more refine the result.
    """
    prior = features.prior
    center = np.log(np.append(features.medians, prior.noise))
    spread = np.append(np.full(len(features.medians), prior.spread), prior.noise_spread)
    lower = np.log(np.append(np.full(len(features.medians), _SMALLEST_WEIGHT), _NOISE_RANGE[0]))
    upper = np.log(np.append(np.full(len(features.medians), _LARGEST_WEIGHT), _NOISE_RANGE[1]))
    codes = features.codes(numbers)
    effects = features.effects()[codes].sum(axis=1)[:, codes].sum(axis=2)
    evidence = _Evidence(features.distances(numbers), effects, prior.effects, targets)
    point = np.log(np.append(start.weights, start.noise))
    best, best_density = point, -math.inf
    step = np.full_like(point, 0.2)
    previous = np.zeros_like(point)
    for _ in range(steps):
        density, gradient = evidence(np.exp(point))
        deviation = (point - center) / spread
        density -= 0.5 * float(deviation @ deviation)
        gradient -= deviation / spread
        if density > best_density:
            best, best_density = point, density
        agreement = gradient * previous
        step = np.clip(np.where(agreement > 0, 1.3 * step, np.where(agreement < 0, 0.5 * step, step)), 1e-3, 1.0)
        previous = gradient
        point = np.clip(point + step * np.sign(gradient), lower, upper)
    parameters = np.exp(best)
    return KernelParameters(parameters[:-1], float(parameters[-1]))


class _Evidence:
    """The log marginal likelihood of observations and its gradient in the logarithms of the hyper-parameters."""

    def __init__(self, distances: Singles, effects: Singles, share: float, targets: Floats) -> None:
        self._flat = distances.reshape(len(distances), -1)
        self._effects = effects.astype(np.float64)
        self._share = share
        self._targets = targets

    def __call__(self, parameters: Floats) -> tuple[float, Floats]:
        weights, noise = parameters[:-1], parameters[-1]
        n = len(self._targets)
        product = np.exp(-(weights.astype(np.float32) @ self._flat)).reshape(n, n) * (1.0 - self._share)
        covariance = product + self._effects + noise * np.eye(n)
        factor = np.linalg.cholesky(covariance)
        inverse = np.linalg.inv(covariance)
        alpha = inverse @ self._targets
        value = -0.5 * float(self._targets @ alpha) - float(np.log(np.diag(factor)).sum())
        inner = 0.5 * (np.outer(alpha, alpha) - inverse)
        gradient = np.empty(len(parameters))
        gradient[:-1] = -weights * (self._flat @ (inner * product).astype(np.float32).ravel())
        gradient[-1] = noise * np.trace(inner)
        return value, gradient


class Posterior:
    """The posterior of the candidates given the observed configurations, extended one observation at a time.

    Kept are the inverse L⁻¹ of the Cholesky factor of the observations' covariance and, in single precision, the rows
    L⁻¹·k(observed, candidates). A new observation adds one row to each, at a cost of observations × candidates; the
    targets enter only when the mean is asked for, so that they may be transformed anew each time.
    """

    def __init__(
        self, features: PoolFeatures, parameters: KernelParameters, candidates: Integers, observed: Integers
    ) -> None:
        self._features = features
        self._noise = parameters.noise
        self._share = features.prior.effects
        self._tables = features.weighted(parameters.weights), features.effects()
        self._hot = features.one_hot(candidates)
        self.candidates = candidates
        self._count = len(observed)
        self._codes = features.codes(observed)
        self._inverse = np.empty((self._count, self._count))
        self._rows = np.empty((self._count, len(candidates)), dtype=np.float32)
        self._condition()

    def _grow(self, more: int) -> None:
        self._inverse = np.pad(self._inverse, (0, more))
        self._rows = np.concatenate([self._rows, np.empty((more, self._rows.shape[1]), dtype=np.float32)])
        self._codes = np.pad(self._codes, ((0, more), (0, 0)))

    def _to_levels(self, codes: Integers) -> tuple[Singles, Singles]:
        """Return the codes' weighted distances to each level, and the main effects that they share with it."""
        distances, effects = (table[codes].sum(axis=-2, dtype=np.float32) for table in self._tables)
        return distances, effects

    def _kernel(self, distances: Singles, effects: Singles) -> Singles:
        """Return the kernel, given the sums over the levels of both configurations."""
        kernel: Singles = np.exp(-distances)
        kernel *= np.float32(1.0 - self._share)
        kernel += effects
        return kernel

    def _condition(self) -> None:
        n, codes = self._count, self._codes
        distances, effects = self._to_levels(codes)
        kernel = self._kernel(distances[:, codes].sum(axis=2), effects[:, codes].sum(axis=2)).astype(np.float64)
        factor = np.linalg.cholesky(0.5 * (kernel + kernel.T) + self._noise * np.eye(n))
        self._inverse[:] = np.linalg.inv(factor)
        cross = self._kernel(distances @ self._hot, effects @ self._hot)
        np.matmul(self._inverse.astype(np.float32), cross, out=self._rows)
        self._explained: Singles = np.einsum("ij,ij->j", self._rows, self._rows)

    def add(self, number: int) -> None:
        """Condition on one more configuration."""
        n = self._count
        if n == len(self._rows):
            self._grow(n // 4 + 16)
        codes = self._features.codes(np.array([number]))[0]
        distances, effects = self._to_levels(codes)
        seen = self._codes[:n]
        kernel = self._kernel(distances[seen].sum(axis=1), effects[seen].sum(axis=1)).astype(np.float64)
        half = self._inverse[:n, :n] @ kernel
        scale = math.sqrt(max(1.0 + self._noise - float(half @ half), self._noise))
        row = self._kernel(*(np.stack([distances, effects]) @ self._hot))
        row -= half.astype(np.float32) @ self._rows[:n]
        row /= np.float32(scale)
        self._inverse[n, :n] = -(half @ self._inverse[:n, :n]) / scale
        self._inverse[n, n] = 1.0 / scale
        self._rows[n] = row
        self._codes[n] = codes
        self._explained = self._explained + row * row
        self._count = n + 1

    def mean(self, targets: Floats) -> Singles:
        """Return the expected target of each candidate, given those of the first configurations that were added."""
        n = len(targets)
        whitened = (self._inverse[:n, :n] @ targets).astype(np.float32)
        result: Singles = whitened @ self._rows[:n]
        return result

    def deviation(self, pending: Sequence[int] = ()) -> Singles:
        """Return the standard deviation of an observation at each candidate, once the pending ones were observed.

        The unexplained variance is included: with times that repeat well it is the function's own roughness.
        """
        count, explained = self._count, self._explained
        for number in pending:
            self.add(number)
        variance = np.maximum(np.float32(1.0) - self._explained, np.float32(0.0)) + np.float32(self._noise)
        self._count, self._explained = count, explained
        result: Singles = np.sqrt(variance)
        return result
