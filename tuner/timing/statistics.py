"""Order statistics: medians with intervals that assume nothing about how times are distributed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import bdtr


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """The median and the tightest symmetric order-statistic interval that covers it with that confidence.

    The k-th smallest and k-th largest of n samples enclose the true median with probability
    1 − 2·P(Binomial(n, ½) < k) (Conover, *Practical Nonparametric Statistics*, 3.2). Where n is too small for any
    such k, the interval is the range of the samples, whose coverage is then less than asked for.

    Returns:
        (median, low, high)
    """
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    count = len(ordered)
    rank = _rank(count, confidence)
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return float(median), float(ordered[rank - 1]), float(ordered[count - rank])


@lru_cache(maxsize=4096)
def _rank(count: int, confidence: float) -> int:
    """The largest k whose k-th smallest and k-th largest of so many samples still cover the median; at least 1."""
    ranks = np.arange(1, count // 2 + 1)
    fitting = ranks[bdtr(ranks - 1, count, 0.5) <= (1.0 - confidence) / 2.0] if len(ranks) else ranks
    return int(fitting[-1]) if len(fitting) else 1


def samples_needed(confidence: float = 0.95) -> int:
    """The fewest samples whose range covers the median with that confidence: 6 for 95 %, 8 for 99 %."""
    return 1 + math.ceil(math.log2(1.0 / (1.0 - confidence)))
