"""One trial with everything that its result depends on, as databases keep it and files exchange it.

Every way into and out of a database (a file format, a merge) goes through `Entry`. What the engine has measured is in
it as the engine's own values, and `db.entries.codec` makes documents of them; here is what recording adds to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tunebench.db.entries.codec import value_of
from tunebench.db.entries.strict_json import EntryError, parse_json
from tunebench.tuner.build import BuildRecord
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.environment import Environment
from tunebench.tuner.problem import Work
from tunebench.tuner.result import (
    Baseline,
    Comparison,
    Conditions,
    LaunchCounters,
    Ratio,
    Stage,
    TrialResult,
    TrialStatus,
)
from tunebench.tuner.search.warm_start import WarmStart
from tunebench.tuner.study.history import StudyDescription
from tunebench.tuner.timing.statistics import control_of

_UID_DIGITS = 32


@dataclass(frozen=True)
class Origin:
    """The database that a study began in; part of the study's identity.

    Attributes:
        uid: 32 hexadecimal digits.
    """

    uid: str
    created_at: datetime

    def __post_init__(self) -> None:
        if len(self.uid) != _UID_DIGITS or not set(self.uid) <= set("0123456789abcdef"):
            raise ValueError(f"uid: {self.uid!r:.60} is not {_UID_DIGITS} hexadecimal digits")


@dataclass(frozen=True)
class RecordedStudy(StudyDescription):
    """A study: its description and its origin are its identity.

    Attributes:
        warm_starts: what it began with because of earlier results; None where that was not recorded yet.
    """

    origin: Origin
    begun_at: datetime
    warm_starts: tuple[WarmStart, ...] | None = None

    def __post_init__(self) -> None:
        if not self.kernel:
            raise ValueError("kernel: a study is of a kernel")

    @classmethod
    def of(
        cls, description: StudyDescription, origin: Origin, begun_at: datetime, warm_starts: Sequence[WarmStart]
    ) -> RecordedStudy:
        """Return a study that begins in the database of that origin."""
        return cls(**vars(description), origin=origin, begun_at=begun_at, warm_starts=tuple(warm_starts))


STUDY_WORDS = ("kernel", "source_digest", "space_digest", "compiler", "sampler", "seed")
"""Fields of a study's identity that are single values."""


@dataclass(frozen=True)
class Contender:
    """One contender's samples in a comparison, milliseconds, and the energy of one call; None where not measured."""

    median_ms: float
    samples_ms: tuple[float, ...]
    energy_mj: float | None = None


@dataclass(frozen=True)
class RecordedComparison:
    """An interleaved comparison that a trial's configuration has won: a `Comparison` without its best.

    Attributes:
        missing_baselines: those that were asked for and could not be timed, and why; None where there were none.
        work: of one call, by the kernel's account at that time; None where it was not recorded yet.
        unasked: what the study had no time for; None where there was nothing.
    """

    environment: Environment
    concluded_at: datetime
    contenders: Mapping[str, Contender]
    speed_ups: Mapping[Baseline, Ratio]
    missing_baselines: Mapping[Baseline, str] | None = None
    conditions: Conditions = field(default=Conditions())
    work: Work | None = None
    unasked: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not all(0 < one.low <= one.value <= one.high for one in self.speed_ups.values()):
            raise ValueError("speed_ups: a speed-up lies inside its interval, above 0")

    @classmethod
    def of(cls, comparison: Comparison, environment: Environment, concluded_at: datetime) -> RecordedComparison:
        """Return a comparison as it is recorded; the environment is that of one which does not name its own."""
        return cls(
            environment=comparison.environment or environment,
            concluded_at=concluded_at,
            contenders={
                name: Contender(median_ms, comparison.samples_ms[name], comparison.energies_mj.get(name))
                for name, median_ms in comparison.medians_ms.items()
            },
            speed_ups=comparison.speedups,
            missing_baselines=comparison.missing or None,
            conditions=comparison.conditions,
            work=comparison.work,
            unasked=comparison.unasked or None,
        )

    def won_by(self, best: Configuration) -> Comparison:
        """Return the comparison that a configuration has won."""
        samples_ms = {name: one.samples_ms for name, one in self.contenders.items()}
        return Comparison(
            best=best,
            medians_ms={name: one.median_ms for name, one in self.contenders.items()},
            samples_ms=samples_ms,
            speedups={one: self.speed_ups[one] for one in Baseline if one in self.speed_ups},
            missing=self.missing_baselines or {},
            control=control_of(samples_ms),
            conditions=self.conditions,
            work=self.work,
            energies_mj={name: one.energy_mj for name, one in self.contenders.items() if one.energy_mj is not None},
            unasked=self.unasked or (),
        )


@dataclass(frozen=True)
class LateRefusal:
    """A stage of the gate that refused a trial after it was recorded as correct."""

    stage: str
    seconds: float
    detail: str
    recorded_at: datetime

    def __post_init__(self) -> None:
        if not self.stage or not self.detail:
            raise ValueError("a late refusal names its stage and says why")


@dataclass(frozen=True)
class RecordedTrial:
    """One configuration tried, as it was recorded.

    Attributes:
        number: in its study; None lets the database give the next one.
        result: without its build and environment, which trials share.
        build_cached: for this trial the build came from the build cache.
        comparisons: that its configuration has won, the oldest first.
        late_refusal: takes a correct trial back, see `standing`.
        counters: of the launches of one forward, read after it was recorded; empty where they were not.
    """

    number: int | None
    result: TrialResult
    environment: Environment
    build: BuildRecord | None
    build_cached: bool | None
    recorded_at: datetime
    comparisons: tuple[RecordedComparison, ...] = ()
    late_refusal: LateRefusal | None = None
    counters: tuple[LaunchCounters, ...] = ()

    def __post_init__(self) -> None:
        status = self.result.status
        if (self.build is None) != (self.build_cached is None):
            raise ValueError("build_cached stands beside a build")
        if self.comparisons and not status.timed:
            raise ValueError(f"a trial that ended as {status} has won no comparison")
        if self.late_refusal is not None and status is not TrialStatus.CORRECT:
            raise ValueError(f"a trial that ended as {status} cannot be refused late")

    @classmethod
    def of(cls, number: int, result: TrialResult, environment: Environment, recorded_at: datetime) -> RecordedTrial:
        """Return a trial as it is recorded; the environment is that of a result which does not name its own."""
        build = result.build
        return cls(
            number=number,
            result=result,
            environment=result.environment or environment,
            build=None if build is None else build.record,
            build_cached=None if build is None else build.cached,
            recorded_at=recorded_at,
        )

    @property
    def standing(self) -> TrialResult:
        """The result as it stands now: one that was refused late is a failure without a time."""
        late = self.late_refusal
        return (
            self.result
            if late is None
            else self.result.refused_late(Stage(late.stage, False, late.seconds, late.detail))
        )


@dataclass(frozen=True)
class Entry:
    """One trial of a study; a study without trials is one entry without a trial."""

    study: RecordedStudy
    trial: RecordedTrial | None


def entry_of_json(text: str | bytes) -> Entry:
    """The entry of one JSON object.

    Raises:
        EntryError: not JSON, a name stands twice in an object, or not an entry.
    """
    values = parse_json(text)
    if not isinstance(values, dict):
        raise EntryError("not a JSON object")
    return value_of(Entry, values)
