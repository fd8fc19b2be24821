"""The warm start: what earlier studies of a kernel say about a new one.

Earlier are studies of other problems, on other devices, or of another version of the kernel's source. They give a new
study its first trials, several of them, since the best of one device can be far off on another. Times are only ever
compared within one study.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.problem import CALL_OPTION, Problem, size_distance

if TYPE_CHECKING:  # asking what a study began with needs none of it
    from tunebench.tuner.space import ValidSpace

MOST_WARM_STARTS = 8
"""Number of first trials that come from earlier studies."""

_GOOD = 1.5
"""A configuration is worth beginning with if its time was within so many times its study's best."""

NEAR = 1.0
"""The distance up to which a study's best is tried before what the kernel names: of the same problem elsewhere, say."""

_APART = 3
"""Number of tunables that two warm-start configurations differ in, as long as there are such."""

_MAPPED = 1 << 14
"""Size of a space up to which an invalid configuration is mapped to the nearest valid one."""


WORTH_KNOWING = 4 * MOST_WARM_STARTS
"""The fastest trials of an earlier study that are looked at: some are alike, or not valid here."""


@dataclass(frozen=True)
class WarmStart:
    """A configuration that a study begins with because of what it did in another one.

    Attributes:
        origin: for people: the trial that it comes from, and what that was a trial of.
    """

    configuration: Configuration
    origin: str


@dataclass(frozen=True)
class EarlierTrial:
    """A configuration that was right in an earlier study.

    Attributes:
        name: for people, such as `trial 12`.
    """

    name: str
    configuration: Mapping[str, Value]
    time_ms: float


@dataclass(frozen=True)
class EarlierStudy:
    """Trials whose times can be compared with each other.

    Attributes:
        description: for people: the problem, the device, and what else is different.
        distance: see `distance`.
        trials: its fastest ones, the fastest first.
    """

    description: str
    distance: float
    trials: Sequence[EarlierTrial]


def distance(
    problem: Problem, other: Problem, *, same_device: bool, same_architecture: bool, same_source: bool
) -> float:
    """Return how far an earlier study is from a new one: 1 for each factor of four in a size, and for everything else
    that is different (the dtype, the options, the kind of device, its architecture, the kernel's source)."""
    others = len(problem.axes.keys() ^ other.axes.keys())
    others += (problem.dtype != other.dtype) + (
        problem.without(CALL_OPTION).options != other.without(CALL_OPTION).options
    )
    return (
        size_distance(problem, other) / math.log(4)
        + others
        + (not same_device)
        + (not same_architecture)
        + (not same_source)
    )


def choose_warm_starts(
    space: ValidSpace, studies: Sequence[EarlierStudy], most: int = MOST_WARM_STARTS
) -> list[WarmStart]:
    """Return the configurations that a new study begins with: good in the studies that they come from, and diverse.

    The studies share the places in proportion to 1/(1 + distance) (d'Hondt's method). Each place goes to the fastest
    configuration of its study that differs from those chosen in three tunables, or else in two, or in one. One that is
    not valid here stands for the nearest valid one, and is dropped where that differs from it in more than two.
    """
    chosen: dict[int, WarmStart] = {}
    open_to = {number: _good(space, study) for number, study in enumerate(studies)}
    places = dict.fromkeys(open_to, 0)
    while len(chosen) < most and open_to:
        turn = max(open_to, key=lambda i: (1 / (1 + studies[i].distance) / (1 + places[i]), -i))
        found = _next(space, open_to[turn], list(chosen))
        if found is None:
            del open_to[turn]
            continue
        number, trial = found
        open_to[turn].remove(found)
        places[turn] += 1
        chosen[number] = WarmStart(space[number], f"{trial.name}, {studies[turn].description}")
    return list(chosen.values())


def _good(space: ValidSpace, study: EarlierStudy) -> list[tuple[int, EarlierTrial]]:
    """Return a study's trials that are worth beginning with, each with the configuration that it stands for here."""
    good = [trial for trial in study.trials[:WORTH_KNOWING] if trial.time_ms <= _GOOD * study.trials[0].time_ms]
    return [(number, trial) for trial in good if (number := number_of(space, trial.configuration)) is not None]


def _next(
    space: ValidSpace, trials: Sequence[tuple[int, EarlierTrial]], chosen: Sequence[int]
) -> tuple[int, EarlierTrial] | None:
    """Return the fastest of a study's trials that is new and unlike those chosen."""
    rows = space.indices
    for apart in range(_APART, 0, -1):
        for number, trial in trials:
            if all((rows[number] != rows[other]).sum() >= apart for other in chosen):
                return number, trial
    return None


def number_of(space: ValidSpace, values: Mapping[str, Value], most: int = 2) -> int | None:
    """Return a configuration's number here, or that of the valid one nearest to it; None where that is not near.

    What a newer source has a tunable more for is as in the default.

    Args:
        most: tunables in which the two may differ.
    """
    number = space.find(values)
    # What shares no tunable is another kernel's.
    if number is None and values.keys() & set(space.space.names):
        number = space.completing(values)
    if number is not None or len(space) > _MAPPED or not values.keys() & set(space.space.names):
        return number
    nearest = space.nearest({**space.space.default, **values})
    found = space[nearest]
    return nearest if sum(name in values and values[name] != found[name] for name in found) <= most else None
