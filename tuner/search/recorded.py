"""Recorded, exhaustively measured spaces: the time of every configuration."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tunebench.tuner.configuration import Value
from tunebench.tuner.errors import UserError
from tunebench.tuner.space import CPP_WORDS, INACTIVE, SearchSpace, Tunable, ValidSpace

Floats = npt.NDArray[np.float64]

_MOST_TUNABLES = 256
_MOST_VALUES = np.iinfo(np.int16).max
"""Limit of a tunable's values, whose numbers are 16 bits wide."""


class RecordedSpaceError(UserError):
    """Results that make no recorded space, such as those without a success."""


@dataclass(frozen=True, eq=False)
class RecordedSpace:
    """A space with the time of every configuration.

    Attributes:
        name: what reports call it.
        space: the configurations in the file's order; values of numeric tunables in increasing order.
        times_ms: float64, one per configuration, milliseconds; NaN where it failed.
        kernel: its name; empty where the file does not say.
    """

    name: str
    space: ValidSpace
    times_ms: Floats
    kernel: str = ""

    @cached_property
    def optimum_ms(self) -> float:
        """The best time of all."""
        return float(np.nanmin(self.times_ms))

    @cached_property
    def worst_ms(self) -> float:
        """The worst time of all: what a search is charged with before its first success."""
        return float(np.nanmax(self.times_ms))


Record = tuple[Mapping[str, Value], float]
"""A configuration and its time in milliseconds, NaN where it failed."""


def recorded_space(name: str, records: Sequence[Record], kernel: str = "") -> RecordedSpace:
    """Return the space of some configurations and their times. Of several records of one configuration the last counts.

    Raises:
        RecordedSpaceError: no configuration has a time, there are no tunables or too many, or too many values of one.
    """
    if not any(math.isfinite(time_ms) for _, time_ms in records):
        raise RecordedSpaceError(f"{name} has no configuration with a time")
    return RecordedSpace(name, *_assemble(name, records), kernel)


def _assemble(space_name: str, records: Sequence[Record]) -> tuple[ValidSpace, Floats]:
    tunables = _tunables(space_name, [configuration for configuration, _ in records])
    positions = [{value: index for index, value in enumerate(t.values)} for t in tunables.values()]
    kinds = [type(t.values[0]) for t in tunables.values()]
    times_of: dict[tuple[int, ...], float] = {}
    for configuration, time_ms in records:
        row = tuple(
            position[kind(configuration[name])] if name in configuration else INACTIVE
            for name, position, kind in zip(tunables, positions, kinds, strict=True)
        )
        times_of[row] = time_ms
    space = SearchSpace(tuple(tunables.values()))
    return ValidSpace(space, np.array(list(times_of), dtype=np.int16)), np.array(list(times_of.values()))


def _tunables(space_name: str, configurations: Sequence[Mapping[str, Value]]) -> dict[str, Tunable]:
    """Return the tunables by their names in the records, with the values that occur, numbers in order."""
    values: dict[str, dict[tuple[type, Value], None]] = {}
    for configuration in configurations:
        for name, value in configuration.items():
            # The type tells 1 from true, which are equal.
            values.setdefault(name, {})[type(value), value] = None
    if not 0 < len(values) <= _MOST_TUNABLES:
        raise RecordedSpaceError(f"{space_name} has {len(values)} tunables: a space has 1 to {_MOST_TUNABLES}")
    tunables: dict[str, Tunable] = {}
    for name, seen in values.items():
        if len(seen) > _MOST_VALUES:
            raise RecordedSpaceError(
                f"{space_name}: tunable {name!r:.60} has {len(seen)} values: a tunable has up to {_MOST_VALUES}"
            )
        identifier = _identifier(name, {tunable.name for tunable in tunables.values()})
        tunables[name] = Tunable(identifier, _one_type([value for _, value in seen]))
    return tunables


def _identifier(name: str, taken: Collection[str]) -> str:
    """Return the name itself, or what comes nearest to it among the free names that a tunable may have."""
    cleaned = "".join(c if f"_{c}".isidentifier() else "_" for c in name)
    if not cleaned.isidentifier() or cleaned in ("problem", "device") or cleaned in CPP_WORDS:
        cleaned = f"_{cleaned}"
    while cleaned in taken:
        cleaned += "_"
    return cleaned


def _one_type(values: list[Value]) -> tuple[Value, ...]:
    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        kind = float if float in kinds else int
        return tuple(sorted({kind(value) for value in values}))
    return tuple(values) if len(kinds) == 1 else tuple(dict.fromkeys(str(value) for value in values))
