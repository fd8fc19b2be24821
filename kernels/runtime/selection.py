"""Choice of the configuration that a call runs under: its problem's results, best first, and what needs no duel."""

from __future__ import annotations

import enum
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from tunebench.db.queries.look_up import known_best
from tunebench.kernels.runtime.shipped import (
    ShippedFile,
    ShippedFileError,
    files_of,
    is_stale,
    read_file,
    related_files,
)
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.device import Device
from tunebench.tuner.environment import versions_here
from tunebench.tuner.errors import DatabaseError, DatabaseMissingError, EmptySpaceError
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Accuracy, Problem, problem_distance, size_distance
from tunebench.tuner.result import MEANINGFUL, Baseline, Decision, Ratio
from tunebench.tuner.settings import Setting
from tunebench.tuner.space import SearchSpace
from tunebench.tuner.timing.statistics import CONFIDENCE
from tunebench.tuner.versions import UNKNOWN, Versions

AUTOCAST_OPTION = "autocast"
"""The option of a problem under autocast; its value is the type that autocast casts to."""
STEP_OPTION = "step"
"""The option of a problem whose calls are steps of training, a forward with its backward."""
UNMEASURED_OPTIONS = (AUTOCAST_OPTION, STEP_OPTION)
"""The options of problems that no study is of: results for the same problem without them tell what may be fast."""

Rank = Callable[["Offer"], tuple[Any, ...]]
"""The order of offers; the lowest comes first."""

_NEAREST = 2
"""Number of configurations from results that meet the reference in a duel, in addition to the default."""
_WIDEST_GAP = 8
"""Upper limit of the ratio of two neighbours' sizes along an axis."""
LEAST_OF_A_RANGE = 1 / (1 + MEANINGFUL)
"""The least lower end of a winner's ratio to the reference at a neighbour that its range reaches to."""
_CLEARLY_FASTER = 1.2
"""Ratio to the reference's speed at both neighbours from which on a kernel is not slower between them."""


class Tier(enum.StrEnum):
    """The source of a configuration, best first; every tier gives the right answer."""

    EXACT = "exact"
    """Measured for this problem on this kind of device."""
    NEAREST = "nearest"
    """Measured for the nearest problem on this kind of device."""
    ARCHITECTURE = "architecture"
    """Measured for this problem on another device of the same architecture."""
    SHIPPED = "shipped"
    """Shipped with the kernel, measured for this problem or the nearest one on a device of the same architecture."""
    RELATED = "related"
    """Shipped with another kernel of the same block, and found to be faster than the reference when it was tried."""
    DEFAULT = "default"
    """The kernel's hand-picked default, or the valid configuration nearest to it."""
    REFERENCE = "reference"
    """The reference's own operations: no kernel can serve, or none was faster when the first call was."""


@dataclass(frozen=True)
class Choice:
    """The configuration that a call runs under, and why.

    Attributes:
        configuration: None where the reference's own operations run.
        reason: for people: the trial it comes from, or why there is nothing better.
        measured: whether it was compared with the reference for this very problem on this kind of device, and the
            comparison was conclusive.
        trusted: whether evidence is enough to use it without a duel.
        being_built: the reference runs until a kernel is built, and the next call decides again.
    """

    configuration: Configuration | None
    tier: Tier
    reason: str
    measured: bool = False
    trusted: bool = False
    being_built: bool = False


@dataclass(frozen=True)
class Offer:
    """A configuration that was measured, and what it was measured for.

    Attributes:
        configuration: None where all that is known is that the reference was faster.
        source: for people: where it is recorded, such as `trial 12`.
        preference: among offers that fit a call equally well, the lowest is taken.
        over_reference: how many times faster it was than the reference; None where no comparison was conclusive.
        over_compiled: the same over the reference under torch.compile.
        shipped: it is from a file beside the kernel, not from a database.
        versions: that it was measured with.
        tests: how many times faster than the reference its configuration was at neighbouring problems; None where
            that was tried in vain.
    """

    configuration: Mapping[str, Value] | None
    problem: Problem
    device: str
    architecture: str
    source: str
    preference: tuple[float, ...] = ()
    over_reference: Ratio | None = None
    over_compiled: Ratio | None = None
    shipped: bool = False
    versions: Versions = UNKNOWN
    tests: Sequence[tuple[Problem, Ratio | None]] = ()

    def __str__(self) -> str:
        return f"{self.source}, measured for {self.problem} on {self.device}"

    @property
    def was_compared(self) -> bool:
        """Whether it is known how it compares with the reference; what the search alone says is no evidence."""
        return self.over_reference is not None and self.over_reference.decision is not Decision.INCONCLUSIVE

    @property
    def was_slower(self) -> bool:
        """Whether the reference was faster."""
        return self.over_reference is not None and self.over_reference.decision is Decision.SLOWER

    def trusted_choice(self, reason: str, tier: Tier) -> Choice:
        """Return the choice that runs this configuration without a duel."""
        return Choice(Configuration(self.configuration or {}), tier, reason, trusted=True)

    def tier(self, problem: Problem, device: Device) -> Tier:
        """Return the tier that it has for a problem on a device."""
        if self.shipped:
            return Tier.SHIPPED
        if self.device != device.name:
            return Tier.ARCHITECTURE
        return Tier.EXACT if self.problem == problem else Tier.NEAREST

    def choice(self, problem: Problem, device: Device, here: Versions) -> Choice:
        """Return the choice for a problem on a device: this configuration, or the reference where that was faster.

        Args:
            here: what was measured with other versions is not trusted without a duel.
        """
        measured = self.problem == problem and self.device == device.name and self.was_compared
        changes = self.versions.changes(here)
        reason = f"{self}, with {changes}" if changes else str(self)
        if not self.was_compared:
            reason = f"{reason}; not confirmed against the reference"
        if self.was_slower:
            reason = f"the reference is faster: {self.over_reference} ({reason})"
        configuration = None
        if self.configuration is not None and not self.was_slower:
            configuration = Configuration(self.configuration)
        return Choice(configuration, self.tier(problem, device), reason, measured, trusted=measured and not changes)


@dataclass(frozen=True)
class Known:
    """The results known for a problem on a device.

    A configuration from the database or a shipped file is used only where the kernel's space admits it for this
    problem: results say which configuration, never what to compile.

    Attributes:
        recorded, shipped: what a database and the files beside the kernel offer.
        nothing_recorded: why the database has nothing that fits, where it has nothing.
        here: the versions that this process runs the device with.
        is_unmeasured: what these results were compared with is not what this problem's reference does.
        is_step: a forward is followed by its backward.
        related: what ships with other kernels of the same block; read where a duel decides.
    """

    space: SearchSpace
    problem: Problem
    device: Device
    recorded: Sequence[Offer]
    shipped: Sequence[Offer]
    nothing_recorded: str = "no result that fits is in the database"
    here: Versions = UNKNOWN
    is_unmeasured: bool = False
    is_step: bool = False
    related: Callable[[], Sequence[Offer]] = tuple

    def choices(self) -> Iterator[Choice]:
        """Yield one choice of each source that has any, the best first, and at last the default."""
        for choice in self._choices():
            yield replace(choice, measured=False, trusted=False) if self.is_unmeasured else choice

    def _choices(self) -> Iterator[Choice]:
        reason = self.nothing_recorded
        recorded = choose_recorded(self._proven(self.recorded), self.space, self.problem, self.device, self.here)
        if recorded is not None:
            yield recorded
            reason = f"{recorded.reason}, cannot run here"
        shipped = choose_shipped(self._proven(self.shipped), self.space, self.problem, self.device, self.here)
        if shipped is not None:
            yield shipped
        yield self._default(reason)

    def _proven(self, offers: Sequence[Offer]) -> Sequence[Offer]:
        """Return the offers usable without checking their output. "As exact as eager" is proven per problem alone."""
        if self.problem.accuracy is not Accuracy.EAGER:
            return offers
        return [one for one in offers if one.problem == self.problem]

    def evidence(self) -> Choice | None:
        """Return the choice that needs no duel: this problem's own result, or one that its neighbours agree on.

        Neighbours count only where calls differ in nothing but the named sizes.
        """
        if self.is_unmeasured:
            return None
        # A result that no study compared does not count against one that ships for the problem.
        trusted = next((one for one in self.choices() if one.trusted), None)
        if trusted is not None or self.problem.accuracy is Accuracy.EAGER or not self.problem.names_all:
            return trusted
        current = [one for one in (*self.recorded, *self.shipped) if not one.versions.changes(self.here)]
        return agreed(current, self.space, self.problem, self.device)

    def contenders(self) -> list[Choice]:
        """Return the duel's contenders: the nearest results' configurations, and the default.

        Of steps, whose products are several builds, it is what would serve the forward without a duel.
        Other kernels of a block have more: the two nearest where a kernel has no results of its own, else one that is
        of a nearer problem than any of its own. Under `EAGER` nothing else takes part.
        """
        if self.is_step:
            return [next(self.choices())]
        alike = self._no_stricter()

        def away(offer: Offer) -> float:
            return min(problem_distance(offer.problem, one) for one in alike)

        def rank(offer: Offer) -> tuple[object, ...]:
            return away(offer), offer.device != self.device.name, offer.shipped, offer.preference

        found: dict[Configuration, Choice] = {}
        nearest = math.inf
        offers = [*self.recorded, *self.shipped]
        fitting = [offer for one in alike for offer in _fitting(offers, self.space, one, self.device, rank)]
        for offer in fitting:
            if offer.configuration is None:
                continue
            configuration = Configuration(offer.configuration)
            nearest = min(nearest, away(offer))
            if configuration not in found:
                found[configuration] = replace(
                    offer.choice(self.problem, self.device, self.here), configuration=configuration
                )
            if len(found) == _NEAREST:
                break
        default = self._default(self.nothing_recorded)
        if self.problem.accuracy is Accuracy.EAGER:
            return list(found.values()) or [default]
        for configuration, choice in self._related(rank, nearest, 1 if found else _NEAREST).items():
            found.setdefault(configuration, choice)
        if default.configuration is not None:
            found.setdefault(default.configuration, default)
        return list(found.values())

    def _no_stricter(self) -> list[Problem]:
        """Return the problem, then those for which a result has to be at least as exact.

        What is as exact as eager is right under the tolerance, and what passes under that is right where TF32 is; what
        was measured beside a strict reference is right where the program permits lower precision.
        """
        strict = self.problem.without(Setting.MATMUL, Setting.CUDNN)
        found = [self.problem] if strict == self.problem else [self.problem, strict]
        stricter = {Accuracy.TOLERANCE: (Accuracy.EAGER,), Accuracy.TF32: (Accuracy.TOLERANCE, Accuracy.EAGER)}
        accuracies = stricter.get(self.problem.accuracy, ())
        return found + [one.at(accuracy) for accuracy in accuracies for one in found]

    def _related(self, rank: Rank, nearest: float, count: int) -> dict[Configuration, Choice]:
        """Return winners for the block's other kernels nearer than that, as far as the tunables are the same."""
        found: dict[Configuration, Choice] = {}
        for offer in sorted(_near(self.related(), self.problem, self.device), key=rank):
            if problem_distance(offer.problem, self.problem) >= nearest or len(found) == count:
                break
            if offer.configuration is None:
                continue
            configuration = self.space.completed(offer.configuration, self.problem, self.device)
            if configuration is not None:
                found.setdefault(configuration, Choice(configuration, Tier.RELATED, str(offer)))
        return found

    def _default(self, reason: str) -> Choice:
        if self.problem.accuracy is Accuracy.EAGER:
            return Choice(None, Tier.REFERENCE, f"nothing is known to be as exact as eager: {reason}")
        try:
            return Choice(self.space.default_for(self.problem, self.device), Tier.DEFAULT, reason)
        except EmptySpaceError as error:
            return Choice(None, Tier.REFERENCE, str(error), trusted=True)


def what_is_known(kernel: Kernel, problem: Problem, device: Device) -> Known:
    """Ask the database and the files beside the kernel. What cannot be read is warned of and passed over."""
    asked, problem = problem, problem.without(*UNMEASURED_OPTIONS)
    here = versions_here(device)
    known = Known(
        kernel.space,
        problem,
        device,
        (),
        _from_files(kernel),
        here=here,
        is_unmeasured=asked != problem,
        is_step=STEP_OPTION in asked.options,
        related=lambda: shipped_offers(related_files(kernel), related=True),
    )
    try:
        return replace(known, recorded=recorded_offers(kernel.name, kernel.digest, problem, device))
    except DatabaseMissingError as missing:
        return replace(known, nothing_recorded=str(missing))
    except DatabaseError as error:
        warnings.warn(f"{kernel.name} runs without recorded results: {error}", RuntimeWarning, stacklevel=6)
        return replace(known, nothing_recorded=str(error))


def choose_recorded(
    offers: Iterable[Offer], space: SearchSpace, problem: Problem, device: Device, here: Versions = UNKNOWN
) -> Choice | None:
    """Return the choice among what a database offers: this kind of device and there the nearest problem, else this very
    problem on another device. The card's own uuid does not matter, only its name and architecture."""

    def rank(offer: Offer) -> tuple[object, ...]:
        return offer.device != device.name, problem_distance(offer.problem, problem), offer.preference

    serving = [offer for offer in offers if offer.device == device.name or offer.problem == problem]
    best = next(_fitting(serving, space, problem, device, rank), None)
    return None if best is None else best.choice(problem, device, here)


def choose_shipped(
    offers: Iterable[Offer], space: SearchSpace, problem: Problem, device: Device, here: Versions = UNKNOWN
) -> Choice | None:
    """Return the choice among what ships: the nearest problem, and for it this kind of device before another."""

    def rank(offer: Offer) -> tuple[object, ...]:
        return problem_distance(offer.problem, problem), offer.device != device.name, offer.device

    best = next(_fitting(offers, space, problem, device, rank), None)
    return None if best is None else best.choice(problem, device, here)


def agreed(offers: Iterable[Offer], space: SearchSpace, problem: Problem, device: Device) -> Choice | None:
    """Return the choice that a problem's neighbours on both sides agree on; None where they differ or are missing.

    Neighbours are two results of this kind of device that differ from the problem in the same axes, in each of which
    one is smaller and the other larger, by `_WIDEST_GAP` at most from one to the other; of several pairs the closest
    counts. They agree that the reference is faster where it was in both; on a configuration that was measured at both,
    as the winner or to find how far it serves, and did not lose to the reference at either, the nearer one's first; and
    on the nearer one's where both were clearly faster than the reference and it was not found to lose at the farther.
    """

    def rank(offer: Offer) -> tuple[object, ...]:
        return problem_distance(offer.problem, problem), offer.shipped, offer.preference

    measured = [
        offer
        for offer in _fitting(offers, space, problem, device, rank)
        if offer.device == device.name and offer.was_compared
    ]
    pairs = [pair for pair in combinations(measured, 2) if _on_both_sides(pair[0].problem, pair[1].problem, problem)]
    if not pairs:
        return None
    nearer, farther = min(pairs, key=lambda pair: size_distance(pair[0].problem, pair[1].problem))
    tier = nearer.tier(problem, device)
    found = f"{nearer} ({nearer.over_reference}), and {farther} ({farther.over_reference})"
    if nearer.was_slower and farther.was_slower:
        return Choice(None, tier, f"the reference is faster on both sides of this problem: {found}", trusted=True)
    if nearer.configuration is None or farther.configuration is None:
        return None
    serves, reason = _serving(nearer, farther, measured)
    return None if serves is None else serves.trusted_choice(f"{reason}: {found}", tier)


def _serving(nearer: Offer, farther: Offer, measured: Sequence[Offer]) -> tuple[Offer | None, str]:
    """Return which of two winners serves between their problems, and why; None where neither was found to."""
    agree = "the results on both sides of this problem agree"
    if _of(nearer) == _of(farther):
        if not (nearer.was_slower or farther.was_slower):
            return nearer, agree
    else:
        for one, other in ((nearer, farther), (farther, nearer)):
            there = next(iter(_tests(one, other.problem, measured)), None)
            if there is not None and there.low >= LEAST_OF_A_RANGE and not one.was_slower:
                return one, f"its range reaches to {other.problem}, where it has {there} over the reference"
    clearly = all(one.over_reference and one.over_reference.low >= _CLEARLY_FASTER for one in (nearer, farther))
    return (nearer, agree) if clearly and not _tests(nearer, farther.problem, measured) else (None, "")


def _tests(offer: Offer, problem: Problem, offers: Iterable[Offer]) -> list[Ratio | None]:
    """Return the ratios that offers of this problem and configuration have for a neighbouring problem."""
    alike = (one for one in offers if one.problem == offer.problem and _of(one) == _of(offer))
    return [ratio for one in alike for tested, ratio in one.tests if tested.named == problem.named]


def _of(offer: Offer) -> Mapping[str, Value]:
    return dict(offer.configuration or {})


def _on_both_sides(one: Problem, other: Problem, middle: Problem) -> bool:
    return _enclose(one, other, middle) or _enclose(other, one, middle)


def _enclose(smaller: Problem, larger: Problem, middle: Problem) -> bool:
    """Return whether a problem lies between two, which are near enough to each other to say something of it."""
    sizes = [(smaller.axes[name], size, larger.axes[name]) for name, size in middle.axes.items()]
    return below(smaller, larger) and all(low < size < high or low == size == high for low, size, high in sizes)


def below(smaller: Problem, larger: Problem) -> bool:
    """Return whether two problems differ in their sizes alone, the first smaller in each, near enough to say something
    of what is between them."""
    if math.isinf(problem_distance(smaller, larger)):
        return False
    differing = [(size, larger.axes[name]) for name, size in smaller.axes.items() if size != larger.axes[name]]
    return bool(differing) and all(low < high <= _WIDEST_GAP * low for low, high in differing)


def neighbours(problem: Problem, others: Collection[Problem]) -> list[Problem]:
    """Return the nearest measured problems on either side of `problem`: none has another one in between."""
    near = [other for other in others if below(problem, other) or below(other, problem)]
    return [other for other in near if not any(_on_both_sides(problem, other, third) for third in near)]


def _fitting(
    offers: Iterable[Offer],
    space: SearchSpace,
    problem: Problem,
    device: Device,
    rank: Rank,
) -> Iterator[Offer]:
    """Yield by rank those that the space admits, and that differ from the call in the sizes alone."""
    return (
        one
        for one in sorted(_near(offers, problem, device), key=rank)
        if one.configuration is None or space.admits(one.configuration, problem, device)
    )


def _near(offers: Iterable[Offer], problem: Problem, device: Device) -> Iterator[Offer]:
    """Yield the offers of this architecture that differ from the call in the sizes alone."""
    for offer in offers:
        if offer.architecture == device.architecture and not math.isinf(problem_distance(offer.problem, problem)):
            yield offer


def recorded_offers(
    kernel: str, source_digest: str, problem: Problem, device: Device, url_or_path: str | Path | None = None
) -> list[Offer]:
    """Return the offers that a database has for a call: the best of each problem and device.

    Args:
        url_or_path: the database; None for the user's own.

    Raises:
        DatabaseMissingError: there is none.
        DatabaseError: it cannot be read, or holds what tunebench does not write.
    """
    return [
        Offer(
            row.configuration,
            row.problem,
            row.device_name,
            row.architecture,
            f"trial {row.trial_id}",
            (place,),
            _ratio(row.over_reference),
            _ratio(row.over_compiled),
            versions=row.versions,
        )
        for place, row in enumerate(known_best(kernel, source_digest, problem.dtype, device.architecture, url_or_path))
    ]


def shipped_offers(files: Iterable[ShippedFile], *, related: bool = False) -> list[Offer]:
    """Return the offers in files of shipped results, none of which is stale.

    Args:
        related: they are other kernels' files.
    """
    return [
        Offer(
            result.configuration,
            result.problem,
            file.device,
            file.architecture,
            f"shipped with {file.kernel}" if related else "shipped",
            over_reference=_ratio(result.speedups.get(Baseline.REFERENCE)),
            over_compiled=_ratio(result.speedups.get(Baseline.COMPILED)),
            shipped=True,
            versions=Versions(**{one.name: result.conditions.get(one.name) for one in fields(Versions)}),
            tests=[
                (replace(result.problem, axes=test.axes), _ratio(test.over_reference))
                for test in (*result.range, *result.beyond)
            ],
        )
        for file in files
        for result in file.results
    ]


def _ratio(figures: Sequence[float] | None) -> Ratio | None:
    """Return a ratio with its interval, as a shipped file or the database's view has it: without its rounds."""
    if figures is None or len(figures) != 3:
        return None
    value, low, high = figures
    return Ratio(value, low, high, rounds=0, confidence=CONFIDENCE)


def _from_files(kernel: Kernel) -> list[Offer]:
    files = []
    for path in files_of(kernel):
        try:
            files.append(read_file(path))
        except ShippedFileError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=7)
    return shipped_offers(file for file in files if not is_stale(kernel, file))
