"""Which of the best results serves a call: a pure decision over rows."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tunebench.db.queries.rows import BestRow
from tunebench.tuner.device import Device
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import CacheRegime
from tunebench.tuner.space import Configuration


class Tier(enum.StrEnum):
    """How well a configuration found in the database fits the call at hand."""

    EXACT = "exact"
    """This problem on this kind of device."""
    NEAREST = "nearest"
    """The nearest problem on this kind of device."""
    ARCHITECTURE = "architecture"
    """This problem on another device of the same architecture."""


@dataclass(frozen=True)
class Selection:
    """A configuration for a call, and why this one."""

    configuration: Configuration
    tier: Tier
    row: BestRow


def choose(rows: Sequence[BestRow], problem: Problem, device: Device) -> Selection | None:
    """The best of rows of one kernel's source for a problem on a device, by tier.

    The card's own uuid does not matter, only its name and architecture. Within a tier a nearer problem comes first,
    then a confirmed row, then one with cold caches (which is what a call in a larger program meets), then the newest.
    """
    best_choice: tuple[tuple[Any, ...], Selection] | None = None
    for row in rows:
        distance = problem_distance(row.problem, problem)
        tier = _tier(row, device, distance)
        if tier is None:
            continue
        rank = (
            list(Tier).index(tier),
            distance,
            not row.confirmed,
            row.regime is not CacheRegime.COLD,
            -(row.confirmed_at or row.recorded_at).timestamp(),
        )
        if best_choice is None or rank < best_choice[0]:
            best_choice = rank, Selection(row.configuration, tier, row)
    return best_choice[1] if best_choice else None


def _tier(row: BestRow, device: Device, distance: float) -> Tier | None:
    if row.architecture != device.architecture or math.isinf(distance):
        return None
    if row.device_name == device.name:
        return Tier.EXACT if distance == 0 else Tier.NEAREST
    return Tier.ARCHITECTURE if distance == 0 else None


def problem_distance(one: Problem, other: Problem) -> float:
    """How far apart two problems are: the sum over their axes of |log(size ratio)|.

    Infinite where the axes' names, the dtype or the options differ; zero for equal problems only.
    """
    if one == other:
        return 0.0
    if one.axes.keys() != other.axes.keys() or one.dtype != other.dtype or one.options != other.options:
        return math.inf
    # An empty axis is one step below size 1.
    sizes = ((max(one.axes[name], 0.5), max(other.axes[name], 0.5)) for name in one.axes)
    return sum(abs(math.log(mine / theirs)) for mine, theirs in sizes)
