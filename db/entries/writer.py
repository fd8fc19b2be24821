"""The one way into the tables: the rows that entries are made of, found by identity or added, many at a time.

What many results share (a device, a problem, a configuration, a build) is found by its identity or else created; two
writers that create the same one at the same moment end up with the same row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from sqlalchemy import Connection, Insert, Select, bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from tunebench.db.entries.codec import document_of
from tunebench.db.entries.entry import STUDY_WORDS, LateRefusal, RecordedComparison, RecordedStudy, RecordedTrial
from tunebench.db.schema import tables
from tunebench.db.schema.documents import build_columns, comparison_columns, trial_columns
from tunebench.tuner.build import BuildRecord
from tunebench.tuner.device import Device
from tunebench.tuner.environment import Environment
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import TrialStatus

Values: TypeAlias = dict[str, Any]
Placed: TypeAlias = tuple[int, int, RecordedTrial]
"""The numbers of a trial's study and of its configuration, and the trial with its own number in the study."""

_Identity: TypeAlias = tuple[Any, ...]

# A row's document is without what the row refers to or has in columns of its own.
_BESIDE_TRIAL = ("number", "configuration", "environment", "build", "recorded_at", "comparisons")
_BESIDE_COMPARISON = ("environment", "concluded_at")

_IDENTITIES: dict[type[tables.Base], tuple[str, ...]] = {
    tables.Origin: ("uid",),
    tables.Device: ("digest",),
    tables.Environment: ("digest",),
    tables.Problem: ("key",),
    tables.Configuration: ("key",),
    tables.Study: ("origin_id", "problem_id", "device_id", *STUDY_WORDS),
    tables.Build: ("variant_digest", "compiler", "compiler_version", "code_sha256"),
}
"""The columns that identify a row of what many results share."""


class Writer:
    """Finds or adds the parts of entries inside a transaction that the caller began.

    Attributes:
        added: how many rows of the tables that many results share were new.

    Args:
        environments: the numbers of those that are known to be there.
    """

    def __init__(self, connection: Connection, environments: Mapping[Environment, int] | None = None) -> None:
        self.added: Counter[type[tables.Base]] = Counter()
        self._connection = connection
        self._known: dict[type[tables.Base], dict[_Identity, int]] = defaultdict(dict)
        self._environments = dict(environments or {})

    def study(self, study: RecordedStudy) -> int:
        """The number of a study."""
        origin = self._number(tables.Origin, study.origin.uid, rest={"created_at": study.origin.created_at})
        problem, device = self.problem(study.problem), self.device(study.device)
        words = (getattr(study, name) for name in STUDY_WORDS)
        warm_starts = None if study.warm_starts is None else [document_of(one) for one in study.warm_starts]
        beginning = {"begun_at": study.begun_at, "warm_starts": warm_starts}
        return self._number(tables.Study, origin, problem, device, *words, rest=beginning)

    def problem(self, problem: Problem) -> int:
        """The number of a problem."""
        return self._number(tables.Problem, problem.key, rest=document_of(problem))

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
        known = self._numbers(tables.Configuration, dict.fromkeys((key,) for key in sorted(set(keys))), lambda _: {})
        return {key: known[key,] for key in keys}

    def add_trials(self, trials: Sequence[Placed]) -> None:
        """Add trials with their builds; their comparisons apart."""
        if not trials:
            return
        builds, rows = self._builds([trial.build for _, _, trial in trials]), []
        for (study_id, configuration_id, trial), build_id in zip(trials, builds, strict=True):
            document = document_of(trial, *_BESIDE_TRIAL)
            place = {
                "study_id": study_id,
                "number": trial.number,
                "configuration_id": configuration_id,
                "environment_id": self.environment(trial.environment),
                "build_id": build_id,
                "recorded_at": trial.recorded_at,
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

    def _builds(self, listed: Sequence[BuildRecord | None]) -> list[int | None]:
        """The numbers of builds, in order. Of two with one identity the first one's log and seconds are kept."""
        names = _IDENTITIES[tables.Build]
        identities = [None if build is None else tuple(getattr(build, name) for name in names) for build in listed]
        builds = {one: build for one, build in zip(reversed(identities), reversed(listed), strict=True) if one}
        known = self._numbers(tables.Build, builds, _of_build)
        return [None if one is None else known[one] for one in identities]

    def _digested(self, table: type[tables.Device | tables.Environment], facts: Device | Environment) -> int:
        """Digests are made here from the facts: one from outside could give a device another one's results."""
        columns = {name: getattr(facts, name) for name in tables.digested_columns(table)}
        return self._number(table, tables.digest_of(table, facts), rest=columns)

    def _number(self, table: type[tables.Base], *identity: Any, rest: Values) -> int:
        return self._numbers(table, {identity: rest}, dict)[identity]

    def _numbers(
        self, table: type[tables.Base], rows: Mapping[_Identity, Any], rest_of: Callable[[Any], Values]
    ) -> Mapping[_Identity, int]:
        """The numbers of a table's rows by their identities; what is not there is added.

        Args:
            rows: by identity; `rest_of` one of them is a row's other columns.
        """
        known, names = self._known[table], _IDENTITIES[table]
        if new := {identity: row for identity, row in rows.items() if identity not in known}:
            finding = _finding(table, one=len(new) == 1)
            sought = dict(zip(names, next(iter(new)), strict=True)) | {"first": [first for first, *_ in new]}
            known |= self._found(finding, sought, new)
            missing = [
                dict(zip(names, identity, strict=True)) | rest_of(row)
                for identity, row in new.items()
                if identity not in known
            ]
            if missing:
                created = self._found(_insert_unless_there(self._connection.dialect.name, table), missing, new)
                known |= created
                self.added[table] += len(created)
                if len(created) < len(missing):
                    # Another writer was first.
                    known |= self._found(finding, sought, new)
        return known

    def _found(self, statement: Any, values: Any, sought: Collection[_Identity]) -> dict[_Identity, int]:
        """The numbers that a statement returns, by identity; one that is alone need not be as it was given."""
        rows = self._connection.execute(statement, values)
        return {next(iter(sought)) if len(sought) == 1 else tuple(identity): number for number, *identity in rows}


# Statements are put together once: that takes longer than running them.
@cache
def _finding(table: type[tables.Base], *, one: bool) -> Select[*tuple[Any, ...]]:
    """One row by its identity; many by its first column: with a variant, too, goes one build, or a few."""
    columns = [table.__table__.c[name] for name in _IDENTITIES[table]]
    equal = [column == bindparam(column.name) for column in columns]
    conditions = equal if one else [columns[0].in_(bindparam("first", expanding=True))]
    return select(table.__table__.c.id, *columns).where(*conditions)


@cache
def _insert(table: type[tables.Base]) -> Insert:
    return insert(table)


@cache
def _insert_unless_there(dialect: str, table: type[tables.Base]) -> ReturningInsert[*tuple[Any, ...]]:
    """Adding rows that another writer may be adding at this moment; on PostgreSQL writers do not wait."""
    adding = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    returned = (table.__table__.c[name] for name in ("id", *_IDENTITIES[table]))
    return adding.on_conflict_do_nothing().returning(*returned)


def _of_build(build: BuildRecord) -> Values:
    document = document_of(build)
    return build_columns(document) | {"document": document}
