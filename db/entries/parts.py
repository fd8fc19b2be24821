"""The rows that entries are made of, found by identity or added, many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Connection, Select, insert, select

from tunebench.db.entries.entry import (
    BuildFacts,
    ComparisonFacts,
    DeviceFacts,
    LateRefusalFacts,
    MeasurementFacts,
    Origin,
    ProblemFacts,
    StudyFacts,
    VerdictFacts,
)
from tunebench.db.entries.rows import CONDITIONS, digest_of, digested_columns, unless_there
from tunebench.db.schema.tables import (
    Base,
    BuildFiguresRecord,
    BuildRecord,
    ComparisonRecord,
    ConfigurationRecord,
    ContenderRecord,
    DeviceRecord,
    EnvironmentRecord,
    LateRefusalRecord,
    MeasurementRecord,
    OriginRecord,
    ProblemRecord,
    SpeedUpRecord,
    StudyRecord,
    VerdictRecord,
    VerdictStageRecord,
)
from tunebench.tuner.environment import Environment
from tunebench.tuner.problem import Problem

Values: TypeAlias = dict[str, Any]
_Identity: TypeAlias = tuple[Any, ...]

_BUILD_IDENTITY = ("variant_digest", "compiler", "compiler_version", "code_sha256")
_STUDY_WORDS = ("kernel", "source_digest", "space_digest", "compiler", "sampler", "seed")


class PartWriter:
    """Finds or adds the parts of entries inside a transaction that the caller began.

    Attributes:
        studies_added: how many studies were new.
    """

    def __init__(self, connection: Connection) -> None:
        self.studies_added = 0
        self._connection = connection
        self._known: dict[tuple[str, _Identity], int] = {}

    def study(self, study: StudyFacts) -> int:
        """The number of a study."""
        identity = {
            "origin_id": self._origin(study.origin),
            "problem_id": self._problem(study.problem),
            "device_id": self._digested(DeviceRecord, study.device),
        } | {name: getattr(study, name) for name in _STUDY_WORDS}
        number, created = self._find_or_add(StudyRecord, identity, _beginning(study))
        self.studies_added += created
        return number

    def environment(self, environment: Environment) -> int:
        """The number of an environment."""
        return self._digested(EnvironmentRecord, environment)

    def configurations(self, keys: Sequence[str]) -> dict[str, int]:
        """The numbers of configurations by their keys."""
        table, wanted = ConfigurationRecord, set(keys)
        query = select(table.key, table.id)
        found = self._numbers_of(query.where(table.key.in_(wanted)))
        missing = sorted(wanted - found.keys())
        if missing:
            self._add_shared(table, [{"key": key} for key in missing])
            found |= self._numbers_of(query.where(table.key.in_(missing)))
        return found

    def builds(self, builds: Iterable[BuildFacts | None]) -> list[int | None]:
        """The numbers of builds, in order. Of two with one identity the first one's log and seconds are kept."""
        listed = list(builds)
        by_identity = {_build_identity(build): build for build in reversed(listed) if build is not None}
        known = self._known_builds(by_identity)
        missing = [build for identity, build in by_identity.items() if identity not in known]
        if missing:
            names = (*_BUILD_IDENTITY, "code_bytes", "log", "seconds")
            self._add_shared(BuildRecord, [{name: getattr(build, name) for name in names} for build in missing])
            known |= self._known_builds({_build_identity(build): build for build in missing})
            figures = [
                {"build_id": known[_build_identity(build)], "entry_point": entry_point} | vars(one)
                for build in missing
                for entry_point, one in build.figures.items()
            ]
            if figures:
                self._add_shared(BuildFiguresRecord, figures)
        return [None if build is None else known[_build_identity(build)] for build in listed]

    def _known_builds(self, wanted: Mapping[_Identity, BuildFacts]) -> dict[_Identity, int]:
        table = BuildRecord
        columns = [getattr(table, name) for name in _BUILD_IDENTITY]
        digests = {build.code_sha256 for build in wanted.values()}
        query = select(table.id, *columns).where(table.code_sha256.in_(digests))
        return {tuple(identity): number for number, *identity in self._connection.execute(query)} if wanted else {}

    def verdicts(self, verdicts: Iterable[VerdictFacts | None]) -> list[int | None]:
        """Add verdicts with their stages; their numbers, in order."""
        listed = list(verdicts)
        rows = [{name: value for name, value in vars(one).items() if name != "stages"} for one in listed if one]
        numbers = self._add_all(VerdictRecord, rows, listed)
        stages = [
            {"verdict_id": number, "position": position} | vars(stage)
            for number, verdict in zip(numbers, listed, strict=True)
            if verdict is not None
            for position, stage in enumerate(verdict.stages)
        ]
        if stages:
            self._connection.execute(insert(VerdictStageRecord), stages)
        return numbers

    def measurements(self, measurements: Iterable[MeasurementFacts | None]) -> list[int | None]:
        """Add measurements; their numbers, in order."""
        listed = list(measurements)
        rows = [vars(one) | _samples(one.samples_ms) for one in listed if one is not None]
        return self._add_all(MeasurementRecord, rows, listed)

    def add_late_refusals(self, refusals: Mapping[int, LateRefusalFacts]) -> int:
        """Add the late refusals of trials by their numbers, unless they have one; how many."""
        table = LateRefusalRecord
        there = set(self._connection.scalars(select(table.trial_id).where(table.trial_id.in_(refusals))))
        rows = [{"trial_id": number} | vars(one) for number, one in refusals.items() if number not in there]
        if rows:
            self._add_shared(table, rows)
        return len(rows)

    def add_comparison(self, study_id: int, configuration_id: int, comparison: ComparisonFacts) -> None:
        """Add a comparison with its samples and ratios."""
        values = {
            "study_id": study_id,
            "configuration_id": configuration_id,
            "environment_id": self.environment(comparison.environment),
            "concluded_at": comparison.concluded_at,
            "missing_baselines": dict(comparison.missing_baselines) if comparison.missing_baselines else None,
        } | {name: getattr(comparison, name) for name in CONDITIONS}
        created = insert(ComparisonRecord).returning(ComparisonRecord.id)
        owner = {"comparison_id": self._connection.execute(created, values).scalar_one()}
        contenders = [
            owner | {"name": name, "median_ms": one.median_ms} | _samples(one.samples_ms)
            for name, one in comparison.contenders.items()
        ]
        speed_ups = [owner | {"baseline": name} | vars(one) for name, one in comparison.speed_ups.items()]
        for table, rows in ((ContenderRecord, contenders), (SpeedUpRecord, speed_ups)):
            if rows:
                self._connection.execute(insert(table), rows)

    def _numbers_of(self, query: Select[str, int]) -> dict[str, int]:
        return {key: number for key, number in self._connection.execute(query)}  # noqa: C416

    def _origin(self, origin: Origin) -> int:
        return self._find_or_add(OriginRecord, {"uid": origin.uid}, {"created_at": origin.created_at})[0]

    def _problem(self, problem: ProblemFacts) -> int:
        key = Problem(problem.axes, problem.dtype, problem.options).key
        return self._find_or_add(ProblemRecord, {"key": key}, dict(vars(problem)))[0]

    def _digested(self, table: type[DeviceRecord | EnvironmentRecord], facts: DeviceFacts | Environment) -> int:
        """Digests are made here from the facts: one from outside could give a device another one's results."""
        parts = {name: getattr(facts, name) for name in digested_columns(table)}
        known = self._known.get((table.__tablename__, tuple(parts.values())))
        if known is None:
            known = self._find_or_add(table, {"digest": digest_of(parts)}, parts)[0]
            self._known[table.__tablename__, tuple(parts.values())] = known
        return known

    def _find_or_add(self, table: type[Base], identity: Values, rest: Values) -> tuple[int, bool]:
        """The number of the row of that identity, and whether it is new."""
        place = (table.__tablename__, tuple(identity.values()))
        if place in self._known:
            return self._known[place], False
        columns = table.__table__.c
        wanted = select(columns.id).where(*(columns[name] == value for name, value in identity.items()))
        number = self._connection.scalar(wanted)
        created = number is None
        if number is None:
            self._add_shared(table, [identity | rest])
            number = self._connection.execute(wanted).scalar_one()
        self._known[place] = int(number)
        return int(number), created

    def _add_shared(self, table: type[Base], rows: Sequence[Values]) -> None:
        """Add rows that another writer may be adding at this moment."""
        self._connection.execute(unless_there(self._connection, table), list(rows))

    def _add_all(self, table: type[Base], rows: Sequence[Values], listed: Sequence[object]) -> list[int | None]:
        """Add a row for each thing that is there; the numbers in their order, None for what is not there."""
        numbers: Iterable[int] = ()
        if rows:
            creation = insert(table).returning(table.__table__.c.id, sort_by_parameter_order=True)
            numbers = self._connection.scalars(creation, rows)
        given = iter(numbers)
        return [None if one is None else next(given) for one in listed]


def _beginning(study: StudyFacts) -> Values:
    carried = None if study.carried is None else [dict(vars(one)) for one in study.carried]
    return {"begun_at": study.begun_at, "carried": carried}


def _build_identity(build: BuildFacts) -> _Identity:
    return tuple(getattr(build, name) for name in _BUILD_IDENTITY)


def _samples(samples_ms: Sequence[float]) -> Values:
    return {"sample_count": len(samples_ms), "samples_ms": list(samples_ms)}
