"""The targets that a model of times learns: logarithms of times.

Slow configurations and failed ones get the same target, because only differences among the fast ones matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tunebench.tuner.search.gaussian_process import Floats

SLOWEST = 1.0
"""Lower semi-deviations above their median at which log times are cut off."""


@dataclass(frozen=True, eq=False)
class Targets:
    """Times as regression targets.

    Attributes:
        values: zero mean and unit variance; all 0 where nothing differs.
        scale: the logarithm of a ratio of times that is 1 in them.
    """

    values: Floats
    scale: float


def targets_of(times_ms: Floats, slowest: float = SLOWEST) -> Targets:
    """Return times as regression targets: logarithms, slow ones and failures levelled, zero mean and unit variance.

    Only the fast half of the space needs to be told apart, and its logarithms are in proportion to the gain; above the
    median little more than "slow" is kept, so that a few terrible configurations do not set the scale.

    Args:
        times_ms: milliseconds; infinite where the variant failed.
        slowest: where to cut off, in lower semi-deviations above the median.
    """
    succeeded = np.isfinite(times_ms)
    if not succeeded.any():
        return Targets(np.zeros(len(times_ms)), 1.0)
    logs = np.log(times_ms, where=succeeded, out=np.zeros(len(times_ms)))
    median = np.median(logs[succeeded])
    faster = logs[succeeded & (logs <= median)]
    semi_deviation = max(math.sqrt(float(np.mean((faster - median) ** 2))), 1e-9)
    levelled = np.where(succeeded, np.minimum((logs - median) / semi_deviation, slowest), slowest)
    deviation = float(levelled.std())
    if deviation == 0:
        return Targets(np.zeros(len(times_ms)), semi_deviation)
    return Targets((levelled - levelled.mean()) / deviation, semi_deviation * deviation)
