"""A Gaussian process over a finite pool of configurations, kept up to date one observation at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from tunebench.tuner.space import INACTIVE

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.intp]


@dataclass(frozen=True)
class PoolSettings:
    initial: int = 8
    candidates: int = 1 << 14
    first_refit: int = 8
    refit_growth: float = 1.3
    steps: int = 20
    rate_mean: float = 0.5
    jump_mean: float = 0.3
    spread: float = 1.0
    noise_mean: float = 1e-3
    noise_spread: float = 1.0


class Encoding:
    """Value indices as columns of one-hot rows, constant tunables dropped."""

    def __init__(self, indices: npt.NDArray[np.int16]) -> None:
        varying = [j for j in range(indices.shape[1]) if (indices[:, j] != indices[0, j]).any()]
        self.indices = indices[:, varying]
        tops = [int(self.indices[:, j].max()) for j in range(len(varying))]
        self.sizes = [top - INACTIVE + 1 for top in tops]
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.intp)
        self.distances: list[Floats] = []
        self.differs: list[Floats] = []
        for top, size in zip(tops, self.sizes, strict=True):
            position = np.arange(size, dtype=np.float64)
            distance = np.abs(position[:, None] - position[None, :]) / max(top, 1)
            distance[0, :] = distance[:, 0] = 0.5
            distance[0, 0] = 0.0
            self.distances.append(distance)
            self.differs.append(1.0 - np.eye(size))

    @property
    def tunables(self) -> int:
        return len(self.sizes)

    def codes(self, numbers: Numbers) -> Numbers:
        return (self.indices[numbers].astype(np.intp) - INACTIVE) + self.offsets[:-1]

    def one_hot(self, numbers: Numbers) -> Singles:
        hot = np.zeros((int(self.offsets[-1]), len(numbers)), dtype=np.float32)
        codes = self.codes(numbers)
        columns = np.arange(len(numbers))
        for j in range(self.tunables):
            hot[codes[:, j], columns] = 1.0
        return hot

    def features(self, numbers: Numbers) -> Floats:
        """(2·tunables) × n × n: index distances, then whether the values differ."""
        local = self.indices[numbers].astype(np.intp) - INACTIVE
        layers = [table[np.ix_(local[:, j], local[:, j])] for j, table in enumerate(self.distances)]
        layers += [table[np.ix_(local[:, j], local[:, j])] for j, table in enumerate(self.differs)]
        return np.stack(layers)


@dataclass(frozen=True)
class KernelParameters:
    weights: Floats  # 2·tunables
    noise: float

    def table(self, encoding: Encoding) -> list[Floats]:
        d = encoding.tunables
        return [self.weights[j] * encoding.distances[j] + self.weights[d + j] * encoding.differs[j] for j in range(d)]


def normal_scores(values: Floats) -> Floats:
    n = len(values)
    order = np.argsort(values, kind="stable")
    ranks = np.empty(n)
    ranks[order] = np.arange(n)
    # ties share their mean rank
    unique, inverse = np.unique(values, return_inverse=True)
    if len(unique) < n:
        sums = np.bincount(inverse, weights=ranks)
        ranks = (sums / np.bincount(inverse))[inverse]
    inv = NormalDist().inv_cdf
    return np.array([inv((rank + 0.5) / n) for rank in ranks.tolist()])


def fit(
    encoding: Encoding, numbers: Numbers, targets: Floats, start: Floats, prior: Floats, spread: Floats, steps: int
) -> Floats:
    """MAP of log parameters (weights..., noise) by resilient gradient steps."""
    features = encoding.features(numbers)
    flat = features.reshape(len(features), -1)
    n = len(numbers)

    def value_and_gradient(x: Floats) -> tuple[float, Floats]:
        p = np.exp(x)
        kernel = np.exp(-(p[:-1] @ flat)).reshape(n, n)
        covariance = kernel + p[-1] * np.eye(n)
        try:
            factor = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return -math.inf, np.zeros_like(x)
        inverse = np.linalg.inv(covariance)
        alpha = inverse @ targets
        deviation = (x - prior) / spread
        value = -0.5 * targets @ alpha - np.log(np.diag(factor)).sum() - 0.5 * deviation @ deviation
        inner = 0.5 * (np.outer(alpha, alpha) - inverse)
        gradient = np.empty_like(x)
        gradient[:-1] = -p[:-1] * (flat @ (inner * kernel).ravel())
        gradient[-1] = p[-1] * np.trace(inner)
        return float(value), gradient - deviation / spread

    x = start.copy()
    step = np.full_like(x, 0.2)
    previous = np.zeros_like(x)
    best, best_x = -math.inf, x
    for _ in range(steps):
        value, gradient = value_and_gradient(x)
        if value > best:
            best, best_x = value, x.copy()
        agree = gradient * previous
        step = np.clip(np.where(agree > 0, step * 1.3, np.where(agree < 0, step * 0.5, step)), 1e-3, 1.0)
        previous = gradient
        x = np.clip(x + step * np.sign(gradient), -9.0, 4.0)
    return best_x


def _improvement_table() -> tuple[Floats, Floats]:
    z = np.concatenate([-np.geomspace(200, 1e-3, 6000), np.linspace(0, 12, 2000)])
    out = []
    for v in z.tolist():
        if v < -30:
            out.append(-math.log(v * v + 3) - 0.5 * math.log(2 * math.pi))
        else:
            h = math.exp(-0.5 * v * v) / math.sqrt(2 * math.pi) + v * 0.5 * math.erfc(-v / math.sqrt(2))
            out.append(math.log(h) + (0.5 * v * v if v < 0 else 0.0))
    return z, np.array(out)


_TABLE = _improvement_table()


def log_expected_improvement(mean: Singles, deviation: Singles, best: float) -> Floats:
    z = ((best - mean) / deviation).astype(np.float64)
    return np.interp(z, *_TABLE) - 0.5 * np.minimum(z, 0) ** 2 + np.log(deviation)


class Posterior:
    def __init__(
        self, encoding: Encoding, parameters: KernelParameters, candidates: Numbers, capacity: int = 64
    ) -> None:
        self.encoding = encoding
        self.parameters = parameters
        self.candidates = candidates
        self.hot = encoding.one_hot(candidates)
        table = parameters.table(encoding)
        size = int(encoding.offsets[-1])
        self.table = np.zeros((size, size), dtype=np.float32)
        for j in range(encoding.tunables):
            a, b = encoding.offsets[j], encoding.offsets[j + 1]
            self.table[a:b, a:b] = table[j]
        self.n = 0
        self.inverse = np.zeros((capacity, capacity))
        self.solved = np.empty((capacity, len(candidates)), dtype=np.float32)
        self.explained = np.zeros(len(candidates), dtype=np.float32)
        self.codes = np.empty((capacity, encoding.tunables), dtype=np.intp)

    def weights_of(self, numbers: Numbers) -> Singles:
        out: Singles = self.table[self.encoding.codes(numbers)].sum(axis=1, dtype=np.float32)
        return out

    def add_first(self, numbers: Numbers) -> None:
        n = len(numbers)
        self._grow(n)
        codes = self.encoding.codes(numbers)
        weights = self.weights_of(numbers)
        kernel = np.exp(-weights[:, codes].sum(axis=2, dtype=np.float64))
        factor = np.linalg.cholesky(kernel + self.parameters.noise * np.eye(n))
        self.inverse[:n, :n] = np.linalg.inv(factor)
        cross = np.exp(-(weights @ self.hot))
        np.matmul(self.inverse[:n, :n].astype(np.float32), cross, out=self.solved[:n])
        self.explained = np.einsum("ij,ij->j", self.solved[:n], self.solved[:n])
        self.codes[:n] = codes
        self.n = n

    def row(self, number: int) -> tuple[Floats, float, Singles]:
        n = self.n
        weights = self.weights_of(np.array([number]))[0]
        covariance = np.exp(-weights[self.codes[:n]].sum(axis=1, dtype=np.float64))
        half = self.inverse[:n, :n] @ covariance
        scale = math.sqrt(max(1.0 + self.parameters.noise - half @ half, 1e-9))
        cross = np.exp(-(weights @ self.hot))
        cross -= half.astype(np.float32) @ self.solved[:n]
        cross /= np.float32(scale)
        return half, scale, cross

    def add(self, number: int) -> None:
        n = self.n
        self._grow(n + 1)
        half, scale, solved = self.row(number)
        self.inverse[n, :n] = -(half @ self.inverse[:n, :n]) / scale
        self.inverse[n, n] = 1.0 / scale
        self.solved[n] = solved
        self.explained += solved * solved
        self.codes[n] = self.encoding.codes(np.array([number]))[0]
        self.n = n + 1

    def pop(self, solved_before: Singles) -> None:
        self.n -= 1
        self.inverse[self.n] = 0.0
        self.explained = solved_before

    def _grow(self, n: int) -> None:
        capacity = len(self.inverse)
        if n <= capacity:
            return
        new = max(n, 2 * capacity)
        inverse = np.zeros((new, new))
        inverse[:capacity, :capacity] = self.inverse
        solved = np.empty((new, self.solved.shape[1]), dtype=np.float32)
        solved[:capacity] = self.solved
        codes = np.empty((new, self.codes.shape[1]), dtype=np.intp)
        codes[:capacity] = self.codes
        self.inverse, self.solved, self.codes = inverse, solved, codes

    def mean(self, targets: Floats) -> Singles:
        n = len(targets)
        whitened = self.inverse[:n, :n] @ targets
        out: Singles = whitened.astype(np.float32) @ self.solved[:n]
        return out

    def deviation(self) -> Singles:
        out: Singles = np.sqrt(np.maximum(np.float32(1.0) - self.explained, np.float32(1e-8)))
        return out


class PoolModel:
    """The strategy's whole state: observations in, proposals out."""

    def __init__(self, indices: npt.NDArray[np.int16], seed: int, settings: PoolSettings) -> None:
        self.settings = settings
        self.seed = seed
        self.encoding = Encoding(indices)
        self.numbers: list[int] = []
        self.times: list[float] = []
        self.done = 0
        self.posterior: Posterior | None = None
        d = self.encoding.tunables
        s = settings
        self.prior = np.log(
            np.concatenate(
                [np.full(d, s.rate_mean / math.sqrt(d)), np.full(d, s.jump_mean / math.sqrt(d)), [s.noise_mean]]
            )
        )
        self.spread = np.concatenate([np.full(2 * d, s.spread), [s.noise_spread]])
        self.x = self.prior
        self.next_refit = s.first_refit
        self.size = len(indices)
        self.order = np.random.default_rng(seed).permutation(self.size)

    def observe(self, number: int, time_ms: float | None) -> None:
        self.numbers.append(number)
        self.times.append(math.inf if time_ms is None else time_ms)

    def targets(self, n: int) -> Floats:
        return normal_scores(np.array(self.times[:n]))

    def catch_up(self) -> None:
        while self.done < len(self.numbers):
            n = self.done + 1
            if n >= self.next_refit:
                self.next_refit = math.ceil(n * self.settings.refit_growth)
                self.refit(n)
            elif self.posterior is not None:
                self.posterior.add(self.numbers[n - 1])
            self.done = n

    def refit(self, n: int) -> None:
        numbers = np.array(self.numbers[:n])
        self.x = fit(self.encoding, numbers, self.targets(n), self.x, self.prior, self.spread, self.settings.steps)
        p = np.exp(self.x)
        self.posterior = Posterior(self.encoding, KernelParameters(p[:-1], float(p[-1])), np.arange(self.size), 256)
        self.posterior.add_first(numbers)

    def propose(self, seen: npt.NDArray[np.bool_], pending: list[int]) -> int:
        self.catch_up()
        if self.posterior is None:
            return int(self.order[~seen[self.order]][0])
        targets = self.targets(self.done)
        mean = self.posterior.mean(targets)
        before = self.posterior.explained.copy()
        for number in pending:
            self.posterior.add(number)
        score = log_expected_improvement(mean, self.posterior.deviation(), float(targets.min()))
        for _ in pending:
            self.posterior.pop(before)
        score[seen[self.posterior.candidates]] = -np.inf
        return int(self.posterior.candidates[np.argmax(score)])
