"""The one way into the tables: the rows that entries are made of, found by identity or added, many at a time.

What many results share (a device, a problem, a configuration, a build) is found by its identity or else created; two
writers that create the same one at the same moment end up with the same row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from sqlalchemy import Connection, Insert, bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tunebench.db.entries.codec import document_of
from tunebench.db.entries.entry import (
    STUDY_WORDS,
    LateRefusal,
    Origin,
    RecordedComparison,
    RecordedStudy,
    RecordedTrial,
)
from tunebench.db.schema import tables
from tunebench.db.schema.documents import build_columns, comparison_columns, trial_columns
from tunebench.tuner.build import BuildRecord
from tunebench.tuner.device import Device
from tunebench.tuner.environment import Environment
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import TrialStatus

Values: TypeAlias = dict[str, Any]
_Identity: TypeAlias = tuple[Any, ...]

# A row's document is without what the row refers to or has in columns of its own.
_BESIDE_TRIAL = ("number", "configuration", "environment", "build", "recorded_at", "comparisons")
_BESIDE_COMPARISON = ("environment", "concluded_at")
_BUILD_IDENTITY = ("variant_digest", "compiler", "compiler_version", "code_sha256")


@dataclass(frozen=True)
class PlacedTrial:
    """A trial with the numbers of its study and of its configuration, and its own number in the study."""

    study_id: int
    configuration_id: int
    number: int
    trial: RecordedTrial


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

    def study(self, study: RecordedStudy) -> int:
        """The number of a study."""
        identity = {
            "origin_id": self._origin(study.origin),
            "problem_id": self.problem(study.problem),
            "device_id": self.device(study.device),
        } | {name: getattr(study, name) for name in STUDY_WORDS}
        number, created = self._find_or_add(tables.Study, identity, _beginning(study))
        self.studies_added += created
        return number

    def device(self, device: Device) -> int:
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
        """Add trials with their builds; their comparisons apart."""
        if not trials:
            return
        builds = self._builds([placed.trial.build for placed in trials])
        rows = []
        for placed, build_id in zip(trials, builds, strict=True):
            document = document_of(placed.trial, *_BESIDE_TRIAL)
            place = {
                "study_id": placed.study_id,
                "number": placed.number,
                "configuration_id": placed.configuration_id,
                "environment_id": self.environment(placed.trial.environment),
                "build_id": build_id,
                "recorded_at": placed.trial.recorded_at,
            }
            rows.append(place | trial_columns(document) | {"document": document})
        self._connection.execute(_insert(tables.Trial), rows)

    def refuse(self, refusals: Mapping[int, LateRefusal]) -> int:
        """Refuse correct trials by their numbers, unless they were refused before; how many."""
        table, refused = tables.Trial, {number: document_of(one) for number, one in refusals.items()}
        unrefused, changed = table.status != TrialStatus.CORRECTNESS, 0
        query = select(table.id, table.document).where(table.id.in_(refusals), unrefused)
        for number, found in self._connection.execute(query).all():
            document = found | {"late_refusal": refused[number]}
            # On PostgreSQL another writer may have been first since.
            refusing = update(table).where(table.id == number, unrefused)
            row = self._connection.execute(refusing, trial_columns(document) | {"document": document})
            changed += row.rowcount
        return changed

    def _builds(self, listed: Sequence[BuildRecord | None]) -> list[int | None]:
        """The numbers of builds, in order. Of two with one identity the first one's log and seconds are kept."""
        by_identity = {_build_identity(build): build for build in reversed(listed) if build is not None}
        known = self._known_builds(by_identity)
        missing = [build for identity, build in by_identity.items() if identity not in known]
        if missing:
            creation = self._adding(tables.Build, "id", *_BUILD_IDENTITY)
            rows = [_build_row(build) for build in missing]
            created = {tuple(identity): number for number, *identity in self._connection.execute(creation, rows)}
            known |= created
            if len(created) < len(missing):
                # Another writer was first.
                known |= self._known_builds({_build_identity(build): build for build in missing})
        return [None if build is None else known[_build_identity(build)] for build in listed]

    def _known_builds(self, builds: Mapping[_Identity, BuildRecord]) -> dict[_Identity, int]:
        digests = sorted({build.variant_digest for build in builds.values()})
        rows = self._connection.execute(_BUILDS, {"digests": digests}) if digests else ()
        return {tuple(identity): number for number, *identity in rows}

    def add_comparison(self, study_id: int, configuration_id: int, comparison: RecordedComparison) -> None:
        """Add a comparison with its samples and ratios."""
        document = document_of(comparison, *_BESIDE_COMPARISON)
        place = {
            "study_id": study_id,
            "configuration_id": configuration_id,
            "environment_id": self.environment(comparison.environment),
            "concluded_at": comparison.concluded_at,
        }
        row = place | comparison_columns(document) | {"document": document}
        self._connection.execute(_insert(tables.Comparison), row)

    def _numbers_of(self, statement: Any, values: Values | Sequence[Values]) -> dict[str, int]:
        return {key: number for key, number in self._connection.execute(statement, values)}  # noqa: C416

    def _origin(self, origin: Origin) -> int:
        return self._find_or_add(tables.Origin, {"uid": origin.uid}, {"created_at": origin.created_at})[0]

    def problem(self, problem: Problem) -> int:
        """The number of a problem."""
        return self._find_or_add(tables.Problem, {"key": problem.key}, document_of(problem))[0]

    def _digested(self, table: type[tables.Device | tables.Environment], facts: Device | Environment) -> int:
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
            self._connection.execute(self._adding(table), identity | rest)
            number = self._connection.execute(query).scalar_one()
        self._known[place] = int(number)
        return int(number), created

    def _adding(self, table: type[tables.Base], *returning: str) -> Insert:
        return _insert_unless_there(self._connection.dialect.name, table, *returning)


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
def _insert_unless_there(dialect: str, table: type[tables.Base], *returning: str) -> Insert:
    """Adding rows that another writer may be adding at this moment; on PostgreSQL writers do not wait."""
    adding = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    adding = adding.on_conflict_do_nothing()
    return adding.returning(*(table.__table__.c[name] for name in returning)) if returning else adding


def _beginning(study: RecordedStudy) -> Values:
    warm_starts = None if study.warm_starts is None else [document_of(one) for one in study.warm_starts]
    return {"begun_at": study.begun_at, "warm_starts": warm_starts}


def _build_identity(build: BuildRecord) -> _Identity:
    return tuple(getattr(build, name) for name in _BUILD_IDENTITY)


def _build_row(build: BuildRecord) -> Values:
    document = document_of(build)
    return {name: document[name] for name in _BUILD_IDENTITY} | build_columns(document) | {"document": document}
