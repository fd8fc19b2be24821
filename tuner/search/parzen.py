"""Densities over value indices, counted per tunable: the model behind the tree-structured Parzen estimator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tunebench.tuner.space import INACTIVE

_CANDIDATES = 24
_PRIOR_WEIGHT = 1.0


def choose_by_density_ratio(
    pool: npt.NDArray[np.int16],
    good: npt.NDArray[np.int16],
    bad: npt.NDArray[np.int16],
    counts: Sequence[int],
    rng: np.random.Generator,
) -> int:
    """Which configuration of the pool to try: drawn by the density of the good, chosen by its ratio to that of the bad.

    Both densities are products over the tunables, each with Optuna's defaults: every observation counts one, and a
    uniform prior counts one.

    Args:
        pool, good, bad: value indices, configurations × tunables; `INACTIVE` is a value of its own.
        counts: how many values each tunable has.

    Returns:
        A row of `pool`.
    """
    log_good = _log_density(pool, good, counts)
    log_bad = _log_density(pool, bad, counts)
    weight = np.exp(log_good - log_good.max())
    drawn = rng.choice(len(pool), size=_CANDIDATES, p=weight / weight.sum())
    return int(drawn[np.argmax((log_good - log_bad)[drawn])])


def _log_density(
    pool: npt.NDArray[np.int16], observed: npt.NDArray[np.int16], counts: Sequence[int]
) -> npt.NDArray[np.float64]:
    total = np.zeros(len(pool))
    for position, count in enumerate(counts):
        # Shifted by one, so that the inactive index is the first cell.
        weight = np.bincount(observed[:, position] - INACTIVE, minlength=count + 1) + _PRIOR_WEIGHT / (count + 1)
        total += np.log(weight / weight.sum())[pool[:, position] - INACTIVE]
    return total
