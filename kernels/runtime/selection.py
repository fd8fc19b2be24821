"""Which configuration a call runs under: the tiers, best first."""

from __future__ import annotations

import enum
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunebench.db.connection.location import may_have_results
from tunebench.kernels.runtime.shipped import ShippedFile, ShippedFileError, files_of, is_stale, read_file
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.device import Device
from tunebench.tuner.errors import DatabaseError, DatabaseMissingError, EmptySpaceError
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem, problem_distance
from tunebench.tuner.result import Baseline, CacheRegime, Decision, Ratio
from tunebench.tuner.space import SearchSpace
from tunebench.tuner.timing.statistics import CONFIDENCE

if TYPE_CHECKING:
    from tunebench.db.connection.database import Database


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
    """The reference's own operations: no kernel can serve, or none was faster when the first call was."""


@dataclass(frozen=True)
class Choice:
    """What a call runs under, and why.

    Attributes:
        configuration: None where the reference's own operations run.
        reason: for people: the trial it comes from, or why there is nothing better.
        measured: whether it was measured for this very problem on this kind of device.
    """

    configuration: Configuration | None
    tier: Tier
    reason: str
    measured: bool = False


@dataclass(frozen=True)
class Offer:
    """A configuration that was measured, and what it was measured for.

    Attributes:
        source: for people: where it is recorded, such as `trial 12`.
        preference: among offers that fit a call equally well, the lowest is taken.
        over_reference: how many times faster it was than the reference; None where they were not compared.
    """

    configuration: Mapping[str, Value]
    problem: Problem
    device: str
    architecture: str
    source: str
    preference: tuple[float, ...] = ()
    over_reference: Ratio | None = None

    def choice(self, tier: Tier, problem: Problem, device: Device) -> Choice:
        """What to run for a problem on a device: this configuration, or the reference where that was faster."""
        measured = self.problem == problem and self.device == device.name
        reason = f"{self.source}, measured for {self.problem} on {self.device}"
        if self.over_reference is not None and self.over_reference.decision is Decision.SLOWER:
            reason = f"the reference is faster: {self.over_reference} ({reason})"
            return Choice(None, tier, reason, measured)
        return Choice(Configuration(self.configuration), tier, reason, measured)


def choices(kernel: Kernel, problem: Problem, device: Device) -> Iterator[Choice]:
    """What is known for a problem on a device, best first: one choice of each source that has any.

    A configuration from the database or a shipped file is used only where the kernel's space admits it for this
    problem: results say which configuration, never what to compile. What cannot be read is warned of and passed over.
    """
    reason = "no result that fits is in the database"
    offers: Sequence[Offer] = ()
    try:
        if may_have_results(kernel.name, kernel.digest):
            offers = _from_database(kernel, problem, device)
    except DatabaseMissingError as missing:
        reason = str(missing)
    except DatabaseError as error:
        reason = str(error)
        warnings.warn(f"{kernel.name} runs without recorded results: {error}", RuntimeWarning, stacklevel=6)
    recorded = choose_recorded(offers, kernel.space, problem, device)
    if recorded is not None:
        yield recorded
        reason = f"{recorded.reason}, cannot run here"
    shipped = choose_shipped(_from_files(kernel), kernel.space, problem, device)
    if shipped is not None:
        yield shipped
    try:
        yield Choice(kernel.space.default_for(problem, device), Tier.DEFAULT, reason)
    except EmptySpaceError as error:
        yield Choice(None, Tier.REFERENCE, str(error))


def choose_recorded(offers: Iterable[Offer], space: SearchSpace, problem: Problem, device: Device) -> Choice | None:
    """The choice among what a database offers: this kind of device and there the nearest problem, else this very
    problem on another device. The card's own uuid does not matter, only its name and architecture."""

    def rank(offer: Offer) -> tuple[object, ...]:
        return offer.device != device.name, problem_distance(offer.problem, problem), offer.preference

    serving = [offer for offer in offers if offer.device == device.name or offer.problem == problem]
    if (best := _best(serving, space, problem, device, rank)) is None:
        return None
    tier = Tier.ARCHITECTURE
    if best.device == device.name:
        tier = Tier.EXACT if best.problem == problem else Tier.NEAREST
    return best.choice(tier, problem, device)


def choose_shipped(offers: Iterable[Offer], space: SearchSpace, problem: Problem, device: Device) -> Choice | None:
    """The choice among what ships: the nearest problem, and for it this kind of device before another."""

    def rank(offer: Offer) -> tuple[object, ...]:
        return problem_distance(offer.problem, problem), offer.device != device.name, offer.device

    best = _best(offers, space, problem, device, rank)
    return None if best is None else best.choice(Tier.SHIPPED, problem, device)


def _best(
    offers: Iterable[Offer],
    space: SearchSpace,
    problem: Problem,
    device: Device,
    rank: Callable[[Offer], tuple[Any, ...]],
) -> Offer | None:
    """The first offer by rank that the space admits, of those that differ from the call in the sizes alone."""
    fitting = (
        offer
        for offer in offers
        if offer.architecture == device.architecture and not math.isinf(problem_distance(offer.problem, problem))
    )
    return next((one for one in sorted(fitting, key=rank) if space.admits(one.configuration, problem, device)), None)


def recorded_offers(
    database: Database, kernel: str, source_digest: str, problem: Problem, device: Device
) -> list[Offer]:
    """What a database has for a call: the best of each problem and device.

    Raises:
        DatabaseError: the database cannot be read, or holds what tunebench does not write.
    """
    from tunebench.db.queries.trials import best

    rows = best(
        database,
        kernel=kernel,
        source_digest=source_digest,
        dtype=problem.dtype,
        architecture=device.architecture,
    )
    return [
        Offer(
            row.configuration,
            row.problem,
            row.device_name,
            row.architecture,
            f"trial {row.trial_id}",
            # A confirmed one first, then cold caches (which is what a call in a larger program meets), then the newest.
            (not row.confirmed, row.regime is not CacheRegime.COLD, -(row.confirmed_at or row.recorded_at).timestamp()),
            row.over_reference,
        )
        for row in rows
    ]


def shipped_offers(files: Iterable[ShippedFile]) -> list[Offer]:
    """What files of shipped results have, none of which is stale."""
    return [
        Offer(
            result.configuration,
            result.problem,
            file.device,
            file.architecture,
            "shipped",
            over_reference=_ratio(result.speedups.get(Baseline.REFERENCE)),
        )
        for file in files
        for result in file.results
    ]


def _ratio(figures: Sequence[float] | None) -> Ratio | None:
    """A ratio as a shipped file has it, with its interval; how many rounds it took is not in the file."""
    if figures is None or len(figures) != 3:
        return None
    value, low, high = figures
    return Ratio(value, low, high, rounds=0, confidence=CONFIDENCE)


def _from_database(kernel: Kernel, problem: Problem, device: Device) -> list[Offer]:
    from tunebench.db.connection.database import open_database

    with open_database(read_only=True) as database:
        return recorded_offers(database, kernel.name, kernel.digest, problem, device)


def _from_files(kernel: Kernel) -> list[Offer]:
    files = []
    for path in files_of(kernel):
        try:
            files.append(read_file(path))
        except ShippedFileError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=7)
    return shipped_offers(file for file in files if not is_stale(kernel, file))
