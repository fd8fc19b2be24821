"""Order statistics: medians with intervals that assume nothing about how times are distributed, and ratios of times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

from tunebench.tuner.result import CONTROL, Baseline, Ratio

CONFIDENCE = 0.99
"""Confidence of the intervals that decide, at whatever look the rounds end."""

MOST_LOOKS = 10
"""Number of times that the outcome of rounds is looked at; the error that `CONFIDENCE` allows is spread over them."""

OF_A_LOOK = 1.0 - (1.0 - CONFIDENCE) / MOST_LOOKS
"""Confidence of the intervals of one look: by Bonferroni's inequality all of them hold with `CONFIDENCE`."""

Samples = Mapping[str, tuple[float, ...]]
"""Milliseconds by contender; the n-th of each belong to the same round. Whoever has left has fewer."""


def median_interval(samples: Iterable[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Return the median and the tightest symmetric order-statistic interval that covers it with that confidence.

    The k-th smallest and k-th largest of n samples enclose the true median with probability
    1 − 2·P(Binomial(n, ½) < k) (Conover, *Practical Nonparametric Statistics*, 3.2). Where n is too small for any
    such k, the interval is the range of the samples, whose coverage is then less than asked for.

    Returns:
        (median, low, high)
    """
    ordered = sorted(map(float, samples))
    rank = _rank(len(ordered), confidence)
    return statistics.median(ordered), ordered[rank - 1], ordered[-rank]


@lru_cache(maxsize=4096)
def _rank(count: int, confidence: float) -> int:
    """Return the largest k whose k-th smallest and largest of so many samples still cover the median; at least 1."""
    ways_in_all = math.lgamma(count + 1) - count * math.log(2.0)  # logarithms: 2ⁿ and n! leave the range of a float
    shares = (math.exp(ways_in_all - math.lgamma(i + 1) - math.lgamma(count - i + 1)) for i in range(count // 2))
    return max(1, sum(below <= (1.0 - confidence) / 2.0 for below in accumulate(shares)))


def samples_needed(confidence: float = 0.95) -> int:
    """Return the fewest samples whose range covers the median with that confidence: 6 for 95 %, 8 for 99 %."""
    return 1 + math.ceil(math.log2(1.0 / (1.0 - confidence)))


def speedup(of: Sequence[float], over: Sequence[float]) -> Ratio:
    """Return how many times faster `of` is than `over`: the median of per-round ratios over/of with its interval.

    The interval holds at all looks at the rounds together, see `OF_A_LOOK`. Rounds that only one took part in do not
    count.
    """
    ratios = [theirs / mine for mine, theirs in zip(of, over, strict=False)]
    return Ratio(*median_interval(ratios, OF_A_LOOK), len(ratios), CONFIDENCE)


def control_ratio(samples: Samples, pivot: str) -> Ratio:
    """Return how much faster the second copy of a contender seemed than the first."""
    return speedup(samples[CONTROL], samples[pivot])


def control_of(samples: Samples) -> Ratio | None:
    """How much faster the second copy of a baseline seemed than the first; None where no such copy took part."""
    # The second copy is of the default configuration where that took part, and of the reference otherwise.
    pivot = next((name for name in (Baseline.DEFAULT, Baseline.REFERENCE) if name in samples), None)
    return control_ratio(samples, pivot) if pivot is not None and CONTROL in samples else None


def medians_of(samples: Samples) -> dict[str, float]:
    """Return the median of each contender."""
    return {name: statistics.median(values) for name, values in samples.items()}
