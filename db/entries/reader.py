"""Reading a whole database as entries, in pieces, so that a million trials are never in memory at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Connection, Select, func, select

from tunebench.db.connection.database import Database
from tunebench.db.entries.codec import parts_of, value_of
from tunebench.db.entries.decode import configuration_of, json_of
from tunebench.db.entries.entry import Entry, Origin, RecordedComparison, RecordedStudy, RecordedTrial
from tunebench.db.entries.strict_json import EntryError
from tunebench.db.schema import tables
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device
from tunebench.tuner.environment import Environment
from tunebench.tuner.errors import DatabaseError, UserError
from tunebench.tuner.problem import Problem

_PAGE = 500
"""Trials at a time: their compilers' logs are in memory as well, and every table takes one query."""

Values: TypeAlias = dict[str, Any]
_Rows: TypeAlias = dict[int, Values]


@dataclass(frozen=True)
class StudyFilter:
    """A choice of studies; None for any kernel, or any number."""

    kernel: str | None = None
    study_id: int | None = None


def matching_studies(database: Database, which: StudyFilter) -> list[int]:
    """The numbers of the chosen studies, in order.

    Raises:
        UserError: there is none.
    """
    query = select(tables.Study.id).order_by(tables.Study.id)
    if which.kernel is not None:
        query = query.where(tables.Study.kernel == which.kernel)
    if which.study_id is not None:
        query = query.where(tables.Study.id == which.study_id)
    with database.reading() as connection:
        found = list(connection.scalars(query))
    if not found and which != StudyFilter():
        named = [f"kernel '{which.kernel}'"] if which.kernel is not None else []
        named += [f"number {which.study_id}"] if which.study_id is not None else []
        raise UserError(f"{database.name} has no study of {' and '.join(named)}: 'tunebench trials' shows what it has")
    return found


def count_trials(database: Database, studies: Sequence[int] | None = None) -> int:
    """How many trials these studies have; all of them for None."""
    query = select(func.count()).select_from(tables.Trial)
    with database.reading() as connection:
        if studies is None:
            return connection.scalar(query) or 0
        return sum(connection.scalar(query.where(tables.Trial.study_id == study)) or 0 for study in studies)


def scan(database: Database, studies: Sequence[int] | None = None) -> Iterator[Entry]:
    """Every trial with everything about it, by study and number; of a study that has none, the study.

    It is one transaction: what other processes record meanwhile is not seen.

    Args:
        studies: their numbers; None for all.
    """
    of_study = select(*tables.Trial.__table__.columns).order_by(tables.Trial.number).limit(_PAGE)
    with reading(database) as reader:
        chosen = reader.connection.scalars(select(tables.Study.id).order_by(tables.Study.id)).all()
        for study_id in chosen if studies is None else studies:
            last, query = -1, of_study.where(tables.Trial.study_id == study_id)
            while page := _rows(reader.connection, query.where(tables.Trial.number > last)):
                yield from reader.entries(page)
                last = page[-1]["number"]
            if last < 0:
                yield Entry(reader.study(study_id), None)


@contextmanager
def reading(database: Database) -> Iterator[Reader]:
    """A reader of parts of the database, all of them as they were at one moment."""
    with database.reading() as connection, _naming(database.name):
        yield Reader(connection)


def own_origin(connection: Connection) -> Origin:
    """The origin of studies that begin in this database."""
    own = connection.execute(
        select(tables.Origin.uid, tables.Origin.created_at).where(tables.Origin.id == tables.OWN_ORIGIN)
    )
    return Origin(*own.one())


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Raise errors about what the database holds as a `DatabaseError` that names it."""
    try:
        yield
    except EntryError as error:
        raise DatabaseError(f"{where} holds what tunebench does not write: {error}") from error
    except DatabaseError as error:
        # A column's own refusal does not know which database it is of.
        if str(error).startswith(where):
            raise
        raise DatabaseError(f"{where}: {error}") from error


def _rows(connection: Connection, query: Select[Any]) -> list[Values]:
    return [dict(row) for row in connection.execute(query).mappings()]


def _only(row: Values, part: type) -> Values:
    return {one.name: row[one.name] for one in parts_of(part) if one.name in row}


class Reader:
    """Everything about the trials of a page, one query a table; studies and environments are kept between pages.

    Its methods raise an `EntryError` for what tunebench does not write.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._studies: dict[int, RecordedStudy] = {}
        self._environments: dict[int, Environment] = {}

    def trial(self, trial_id: int) -> tuple[RecordedStudy, RecordedTrial] | None:
        """One trial with everything about it, and its study; None where there is none of that number."""
        return self.trials([trial_id]).get(trial_id)

    def trials(self, trial_ids: Collection[int]) -> dict[int, tuple[RecordedStudy, RecordedTrial]]:
        """Some trials with everything about them, and their studies, by number; those that there are."""
        page = _rows(self.connection, select(*tables.Trial.__table__.columns).where(tables.Trial.id.in_(trial_ids)))
        entries = zip(page, self.entries(page), strict=True)
        return {row["id"]: (entry.study, entry.trial) for row, entry in entries if entry.trial is not None}

    def study(self, study_id: int) -> RecordedStudy:
        """The study of that number."""
        (study,) = self.studies([study_id])
        return study

    def studies(self, study_ids: Sequence[int]) -> Iterator[RecordedStudy]:
        """The studies of these numbers, in their order."""
        for start in range(0, len(study_ids), _PAGE):
            page = study_ids[start : start + _PAGE]
            self._load_studies(page)
            yield from (self._studies[study_id] for study_id in page)

    def environment(self, environment_id: int) -> Environment:
        """The environment of that number."""
        if environment_id not in self._environments:
            row = self._by_id(tables.Environment, [environment_id])[environment_id]
            self._environments[environment_id] = value_of(Environment, _only(row, Environment))
        return self._environments[environment_id]

    def comparison(self, comparison_id: int) -> tuple[Configuration, RecordedComparison]:
        """The comparison of that number, and the configuration that won it."""
        row = self._by_id(tables.Comparison, [comparison_id])[comparison_id]
        won = self._by_id(tables.Configuration, [row["configuration_id"]])[row["configuration_id"]]
        return configuration_of(won["key"]), self._comparison(row)

    def entries(self, page: list[Values]) -> Iterator[Entry]:
        """The trials of these rows of their table."""
        self._load_studies(row["study_id"] for row in page)
        configurations = self._by_id(tables.Configuration, (row["configuration_id"] for row in page))
        builds = self._by_id(tables.Build, {row["build_id"] for row in page} - {None})
        comparisons = self._comparisons({row["study_id"] for row in page}, {row["configuration_id"] for row in page})
        for row in page:
            build = builds.get(row["build_id"])
            trial = _document(row) | {
                "number": row["number"],
                "configuration": json_of(configurations[row["configuration_id"]]["key"], "a configuration"),
                "environment": self.environment(row["environment_id"]),
                "build": build and _document(build),
                "recorded_at": row["recorded_at"],
                "comparisons": comparisons.get((row["study_id"], row["configuration_id"]), []),
            }
            try:
                recorded = value_of(RecordedTrial, trial)
            except EntryError as error:
                raise EntryError(f"trial {row['id']}: {error}") from None
            yield Entry(self._studies[row["study_id"]], recorded)

    def _load_studies(self, study_ids: Iterable[int]) -> None:
        rows = self._by_id(tables.Study, set(study_ids) - self._studies.keys())
        shared = [
            (name, part, self._by_id(table, {row[f"{name}_id"] for row in rows.values()}))
            for name, table, part in (
                ("origin", tables.Origin, Origin),
                ("problem", tables.Problem, Problem),
                ("device", tables.Device, Device),
            )
        ]
        for study_id, row in rows.items():
            shared_parts = {name: _only(known[row[f"{name}_id"]], part) for name, part, known in shared}
            self._studies[study_id] = value_of(RecordedStudy, _only(row, RecordedStudy) | shared_parts)

    def _comparisons(
        self, studies: Collection[int], configurations: Collection[int]
    ) -> dict[tuple[int, int], list[RecordedComparison]]:
        """By study and configuration, oldest first. A study has few, so that all of its are looked at."""
        query = select(*tables.Comparison.__table__.columns).where(tables.Comparison.study_id.in_(studies))
        ordered = query.order_by(tables.Comparison.concluded_at, tables.Comparison.id)
        rows = [row for row in _rows(self.connection, ordered) if row["configuration_id"] in configurations]
        found = defaultdict(list)
        for row in rows:
            found[row["study_id"], row["configuration_id"]].append(self._comparison(row))
        return found

    def _comparison(self, row: Values) -> RecordedComparison:
        own = {"environment": self.environment(row["environment_id"]), "concluded_at": row["concluded_at"]}
        return value_of(RecordedComparison, _document(row) | own)

    def _by_id(self, table: type[tables.Base], numbers: Iterable[int]) -> _Rows:
        distinct = sorted(set(numbers))
        if not distinct:
            return {}
        query = select(*table.__table__.columns).where(table.__table__.c.id.in_(distinct))
        rows = {row["id"]: row for row in _rows(self.connection, query)}
        if len(rows) != len(distinct):
            missing = next(number for number in distinct if number not in rows)
            raise EntryError(f"row {missing} of {table.__tablename__} is referred to and is not there")
        return rows


def _document(row: Values) -> Values:
    document = row["document"]
    if not isinstance(document, dict):
        raise EntryError(f"{document!r:.80} is not a document")
    return document
