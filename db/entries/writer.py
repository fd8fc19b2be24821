"""The one way into the tables: the rows that entries are made of, found by identity or added, many at a time.

What many results share (a device, a problem, a configuration, a build) is found by its identity or else created; two
writers that create the same one at the same moment end up with the same row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeAlias

from sqlalchemy import Connection, Insert, bindparam, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from tunebench.db.entries import entry as parts
from tunebench.db.entries.live import conclusive
from tunebench.db.schema import tables
from tunebench.tuner.environment import Environment
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Conditions

Values: TypeAlias = dict[str, Any]
_Identity: TypeAlias = tuple[Any, ...]

_CONDITIONS = tuple(one.name for one in fields(Conditions))
_BUILD_IDENTITY = ("variant_digest", "compiler", "compiler_version", "code_sha256")


@dataclass(frozen=True)
class PlacedTrial:
    """A trial with the numbers of its study and of its configuration, and its own number in the study."""

    study_id: int
    configuration_id: int
    number: int
    facts: parts.TrialFacts


class Writer:
    """Finds or adds the parts of entries inside a transaction that the caller began.

    Attributes:
        studies_added: how many studies were new.

    Args:
        environments: the numbers of those that are known to be there.
    """

    def __init__(self, connection: Connection, environments: Mapping[Environment, int] | None = None) -> None:
        self.studies_added = 0
        self._connection = connection
        self._known: dict[tuple[str, _Identity], int] = {}
        self._environments = dict(environments or {})

    def study(self, study: parts.StudyFacts) -> int:
        """The number of a study."""
        identity = {
            "origin_id": self._origin(study.origin),
            "problem_id": self.problem(study.problem),
            "device_id": self.device(study.device),
        } | {name: getattr(study, name) for name in parts.STUDY_WORDS}
        number, created = self._find_or_add(tables.Study, identity, _beginning(study))
        self.studies_added += created
        return number

    def device(self, device: parts.DeviceFacts) -> int:
        """The number of a device."""
        return self._digested(tables.Device, device)

    def environment(self, environment: Environment) -> int:
        """The number of an environment."""
        if environment not in self._environments:
            self._environments[environment] = self._digested(tables.Environment, environment)
        return self._environments[environment]

    def configurations(self, keys: Collection[str]) -> dict[str, int]:
        """The numbers of configurations by their keys."""
        distinct = sorted(set(keys))
        found = self._numbers_of(_CONFIGURATIONS, {"keys": distinct})
        missing = [{"key": key} for key in distinct if key not in found]
        if missing:
            found |= self._numbers_of(self._adding(tables.Configuration, "key", "id"), missing)
        if len(found) < len(distinct):
            # Another writer was first.
            found |= self._numbers_of(_CONFIGURATIONS, {"keys": distinct})
        return found

    def add_trials(self, trials: Sequence[PlacedTrial]) -> None:
        """Add trials with their builds, verdicts and measurements; their late refusals and comparisons apart."""
        if not trials:
            return
        builds = self._builds([trial.facts.build for trial in trials])
        verdicts = self._verdicts([trial.facts.verdict for trial in trials])
        measurements = self._measurements([trial.facts.measurement for trial in trials])
        rows = []
        for trial, build_id, verdict_id, measurement_id in zip(trials, builds, verdicts, measurements, strict=True):
            facts = trial.facts
            measured = facts.measurement
            rows.append(
                {
                    "study_id": trial.study_id,
                    "number": trial.number,
                    "configuration_id": trial.configuration_id,
                    "environment_id": self.environment(facts.environment),
                    "status": facts.status.value,
                    "build_id": build_id,
                    "build_cached": facts.build_cached,
                    "verdict_id": verdict_id,
                    "verdict_passed": facts.verdict.passed if facts.verdict else None,
                    "measurement_id": measurement_id,
                    "median_ms": measured.median_ms if measured else None,
                    "regime": measured.regime.value if measured else None,
                    "recorded_at": facts.recorded_at,
                    "seconds": dict(facts.seconds),
                    "message": facts.message,
                }
            )
        self._connection.execute(_insert(tables.Trial), rows)

    def _builds(self, listed: Sequence[parts.BuildFacts | None]) -> list[int | None]:
        """The numbers of builds, in order. Of two with one identity the first one's log and seconds are kept."""
        by_identity = {_build_identity(build): build for build in reversed(listed) if build is not None}
        known = self._known_builds(by_identity)
        missing = [build for identity, build in by_identity.items() if identity not in known]
        if missing:
            names = (*_BUILD_IDENTITY, "code_bytes", "log", "seconds")
            creation = self._adding(tables.Build, "id", *_BUILD_IDENTITY)
            rows = [{name: getattr(build, name) for name in names} for build in missing]
            created = {tuple(identity): number for number, *identity in self._connection.execute(creation, rows)}
            figures = [
                {"build_id": created[_build_identity(build)], "entry_point": entry_point} | vars(one)
                for build in missing
                if _build_identity(build) in created
                for entry_point, one in build.figures.items()
            ]
            if figures:
                self._connection.execute(_insert(tables.BuildFigures), figures)
            known |= created
            if len(created) < len(missing):
                # Another writer was first, and adds their figures.
                known |= self._known_builds({_build_identity(build): build for build in missing})
        return [None if build is None else known[_build_identity(build)] for build in listed]

    def _known_builds(self, builds: Mapping[_Identity, parts.BuildFacts]) -> dict[_Identity, int]:
        digests = sorted({build.variant_digest for build in builds.values()})
        rows = self._connection.execute(_BUILDS, {"digests": digests}) if digests else ()
        return {tuple(identity): number for number, *identity in rows}

    def _verdicts(self, listed: Sequence[parts.VerdictFacts | None]) -> list[int | None]:
        """Add verdicts with their stages; their numbers, in order."""
        rows = [{name: value for name, value in vars(one).items() if name != "stages"} for one in listed if one]
        numbers = self._add_all(tables.Verdict, rows, listed)
        stages = [
            {"verdict_id": number, "position": position} | vars(stage)
            for number, verdict in zip(numbers, listed, strict=True)
            if verdict is not None
            for position, stage in enumerate(verdict.stages)
        ]
        if stages:
            self._connection.execute(_insert(tables.VerdictStage), stages)
        return numbers

    def _measurements(self, listed: Sequence[parts.MeasurementFacts | None]) -> list[int | None]:
        """Add measurements; their numbers, in order."""
        rows = [vars(one) | _samples(one.samples_ms) for one in listed if one is not None]
        return self._add_all(tables.Measurement, rows, listed)

    def add_late_refusals(self, refusals: Mapping[int, parts.LateRefusalFacts]) -> int:
        """Add the late refusals of trials by their numbers, unless they have one; how many."""
        table = tables.LateRefusal
        there = set(self._connection.scalars(select(table.trial_id).where(table.trial_id.in_(refusals))))
        rows = [{"trial_id": number} | vars(one) for number, one in refusals.items() if number not in there]
        if rows:
            self._add_shared(table, rows)
        return len(rows)

    def add_comparison(self, study_id: int, configuration_id: int, comparison: parts.ComparisonFacts) -> None:
        """Add a comparison with its samples and ratios."""
        values = {
            "study_id": study_id,
            "configuration_id": configuration_id,
            "environment_id": self.environment(comparison.environment),
            "concluded_at": comparison.concluded_at,
            "missing_baselines": dict(comparison.missing_baselines) if comparison.missing_baselines else None,
            "conclusive": conclusive(comparison),
        } | {name: getattr(comparison, name) for name in _CONDITIONS}
        created = insert(tables.Comparison).returning(tables.Comparison.id)
        owner = {"comparison_id": self._connection.execute(created, values).scalar_one()}
        contenders = [
            owner | {"name": name, "median_ms": one.median_ms} | _samples(one.samples_ms)
            for name, one in comparison.contenders.items()
        ]
        speed_ups = [owner | {"baseline": name} | vars(one) for name, one in comparison.speed_ups.items()]
        for table, rows in ((tables.Contender, contenders), (tables.SpeedUp, speed_ups)):
            if rows:
                self._connection.execute(_insert(table), rows)

    def _numbers_of(self, statement: Any, values: Values | Sequence[Values]) -> dict[str, int]:
        return {key: number for key, number in self._connection.execute(statement, values)}  # noqa: C416

    def _origin(self, origin: parts.Origin) -> int:
        return self._find_or_add(tables.Origin, {"uid": origin.uid}, {"created_at": origin.created_at})[0]

    def problem(self, problem: parts.ProblemFacts) -> int:
        """The number of a problem."""
        key = Problem(problem.axes, problem.dtype, problem.options).key
        return self._find_or_add(tables.Problem, {"key": key}, dict(vars(problem)))[0]

    def _digested(self, table: type[tables.Device | tables.Environment], facts: parts.DeviceFacts | Environment) -> int:
        """Digests are made here from the facts: one from outside could give a device another one's results."""
        columns = {name: getattr(facts, name) for name in tables.digested_columns(table)}
        return self._find_or_add(table, {"digest": tables.digest_of(table, facts)}, columns)[0]

    def _find_or_add(self, table: type[tables.Base], identity: Values, rest: Values) -> tuple[int, bool]:
        """The number of the row of that identity, and whether it is new."""
        place = (table.__tablename__, tuple(identity.values()))
        if place in self._known:
            return self._known[place], False
        columns = table.__table__.c
        query = select(columns.id).where(*(columns[name] == value for name, value in identity.items()))
        number = self._connection.scalar(query)
        created = number is None
        if number is None:
            self._add_shared(table, [identity | rest])
            number = self._connection.execute(query).scalar_one()
        self._known[place] = int(number)
        return int(number), created

    def _add_shared(self, table: type[tables.Base], rows: Sequence[Values]) -> None:
        self._connection.execute(self._adding(table), list(rows))

    def _adding(self, table: type[tables.Base], *returning: str) -> Insert:
        return _insert_unless_there(self._connection.dialect.name, table, *returning)

    def _add_all(self, table: type[tables.Base], rows: Sequence[Values], listed: Sequence[object]) -> list[int | None]:
        """Add a row for each value that is not None; the rows' numbers in the values' order, None for None."""
        numbers: Iterable[int] = ()
        if rows:
            numbers = self._connection.scalars(_insert_in_order(table), rows)
        given = iter(numbers)
        return [None if one is None else next(given) for one in listed]


# Statements are put together once: that takes longer than running them.
_CONFIGURATIONS = select(tables.Configuration.key, tables.Configuration.id).where(
    tables.Configuration.key.in_(bindparam("keys", expanding=True))
)
_BUILDS = select(tables.Build.id, *(getattr(tables.Build, name) for name in _BUILD_IDENTITY)).where(
    # With a variant goes one build, or a few by different compilers; one binary may be that of many variants.
    tables.Build.variant_digest.in_(bindparam("digests", expanding=True))
)


@cache
def _insert(table: type[tables.Base]) -> Insert:
    return insert(table)


@cache
def _insert_in_order(table: type[tables.Base]) -> Insert:
    """Its rows give their numbers, in order."""
    return insert(table).returning(table.__table__.c.id, sort_by_parameter_order=True)


@cache
def _insert_unless_there(dialect: str, table: type[tables.Base], *returning: str) -> Insert:
    """Adding rows that another writer may be adding at this moment; on PostgreSQL writers do not wait."""
    adding = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    adding = adding.on_conflict_do_nothing()
    return adding.returning(*(table.__table__.c[name] for name in returning)) if returning else adding


def _beginning(study: parts.StudyFacts) -> Values:
    warm_starts = None if study.warm_starts is None else [dict(vars(one)) for one in study.warm_starts]
    return {"begun_at": study.begun_at, "warm_starts": warm_starts}


def _build_identity(build: parts.BuildFacts) -> _Identity:
    return tuple(getattr(build, name) for name in _BUILD_IDENTITY)


def _samples(samples_ms: Sequence[float]) -> Values:
    return {"sample_count": len(samples_ms), "samples_ms": list(samples_ms)}
