"""Which configuration a call runs under: the tiers, best first."""

from __future__ import annotations

import enum
import warnings
from dataclasses import dataclass

from tunebench.db.query import best_for
from tunebench.db.store import open_database
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


def choose(kernel: Kernel, problem: Problem, device: Device) -> Choice:
    """The best configuration known for a problem on a device.

    A configuration from the database is used only where it is a member of the problem's own valid space: a database
    says which configuration, never what to compile. One that cannot be read is warned of and passed over.
    """
    try:
        space = kernel.space.enumerate(problem, device)
    except EmptySpaceError as error:
        return Choice(None, Tier.REFERENCE, str(error))
    default = Choice(space[space.default], Tier.DEFAULT, "no result that fits is in the database")
    try:
        with open_database(read_only=True) as database:
            found = best_for(database, kernel=kernel.name, source_digest=kernel.digest, problem=problem, device=device)
    except DatabaseMissingError as missing:
        return Choice(default.configuration, Tier.DEFAULT, str(missing))
    except DatabaseError as error:
        warnings.warn(f"{kernel.name} runs its default configuration: {error}", RuntimeWarning, stacklevel=6)
        return Choice(default.configuration, Tier.DEFAULT, str(error))
    if found is None:
        return default
    number = space.find(found.configuration)
    # Equal is not enough: 256.0 and true equal 256 and 1, and would be compiled as what they are.
    if number is None or space[number] != found.configuration:
        return Choice(default.configuration, Tier.DEFAULT, f"trial {found.row.trial_id} is not valid for this problem")
    reason = f"trial {found.row.trial_id}, measured for {found.row.problem} on {found.row.device_name}"
    return Choice(space[number], Tier(found.tier.value), reason)
