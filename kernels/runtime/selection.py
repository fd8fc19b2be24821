"""Which configuration a call runs under: the tiers, best first."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from tunebench.db.connection.database import open_database
from tunebench.db.queries.trials import best_for
from tunebench.kernels.runtime.shipped import find_shipped
from tunebench.tuner.device import Device
from tunebench.tuner.errors import DatabaseError, DatabaseMissingError, EmptySpaceError
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import Configuration


class Tier(enum.StrEnum):
    """Where a configuration came from, best first; every tier gives the right answer."""

    EXACT = "exact"
    """Measured for this problem on this kind of device."""
    NEAREST = "nearest"
    """Measured for the nearest problem on this kind of device."""
    ARCHITECTURE = "architecture"
    """Measured for this problem on another device of the same architecture."""
    SHIPPED = "shipped"
    """Shipped with the kernel, measured for this problem or the nearest one on a device of the same architecture."""
    DEFAULT = "default"
    """The kernel's hand-picked default, or the valid configuration nearest to it."""
    REFERENCE = "reference"
    """No kernel can serve: the reference's own operations."""


@dataclass(frozen=True)
class Choice:
    """What a call runs under, and why.

    Attributes:
        configuration: None where only the reference's operations can serve.
        reason: for people: the trial it comes from, or why there is nothing better.
    """

    configuration: Configuration | None
    tier: Tier
    reason: str


def choices(kernel: Kernel, problem: Problem, device: Device) -> Iterator[Choice]:
    """What is known for a problem on a device, best first: one choice of each source that has any.

    A configuration from the database or a shipped file is used only where the kernel's space admits it for this
    problem: results say which configuration, never what to compile. What cannot be read is warned of and passed over.
    """
    recorded = _recorded(kernel, problem, device)
    if isinstance(recorded, Choice):
        yield recorded
    if (shipped := find_shipped(kernel, problem, device)) is not None:
        reason = f"shipped, measured for {shipped.result.problem} on {shipped.device}"
        yield Choice(shipped.configuration, Tier.SHIPPED, reason)
    reason = f"{recorded.reason}, cannot run here" if isinstance(recorded, Choice) else recorded
    try:
        yield Choice(kernel.space.default_for(problem, device), Tier.DEFAULT, reason)
    except EmptySpaceError as error:
        yield Choice(None, Tier.REFERENCE, str(error))


def _recorded(kernel: Kernel, problem: Problem, device: Device) -> Choice | str:
    """The database's best, or why there is none."""
    try:
        with open_database(read_only=True) as database:
            found = best_for(database, kernel=kernel.name, source_digest=kernel.digest, problem=problem, device=device)
    except DatabaseMissingError as missing:
        return str(missing)
    except DatabaseError as error:
        warnings.warn(f"{kernel.name} runs without recorded results: {error}", RuntimeWarning, stacklevel=7)
        return str(error)
    if found is None:
        return "no result that fits is in the database"
    if not kernel.space.admits(found.configuration, problem, device):
        return f"trial {found.row.trial_id} is not valid for this problem"
    reason = f"trial {found.row.trial_id}, measured for {found.row.problem} on {found.row.device_name}"
    return Choice(found.configuration, Tier(found.tier.value), reason)
