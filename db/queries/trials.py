"""Questions to the results database, answered with typed rows."""

from __future__ import annotations

import enum
from collections.abc import Collection, Generator, Mapping
from datetime import datetime
from typing import Any, TypedDict, Unpack

from sqlalchemy import ColumnElement, Connection, Select, and_, func, select

from tunebench.db.connection.database import Database
from tunebench.db.queries.rows import BestRow, TrialRow
from tunebench.db.queries.statements import (
    everything_about,
    fields_of,
    of_many,
    study_conditions,
    unless_many,
    with_status,
    with_values,
)
from tunebench.db.schema.tables import DeviceTable, MeasurementTable, ProblemTable, StudyTable, TrialTable
from tunebench.db.schema.views import CORRECT, winners
from tunebench.tuner.build import CompilerName
from tunebench.tuner.configuration import Value
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import TrialStatus

__all__ = [
    "BestRow",
    "Conditions",
    "Order",
    "TrialRow",
    "best",
    "best_of_studies",
    "count_rows",
    "each_trial",
    "kernels_with_results",
    "trials",
]


_PAGE = 500
"""Trials at a time, with all that is known of them."""


class Order(enum.StrEnum):
    """The order of trials."""

    NEWEST = "newest"
    """The newest study first, and in it the newest trial."""
    FASTEST = "fastest"
    """Correct trials only, the lowest median first."""


def best(
    database: Database,
    *,
    kernel: str | None = None,
    source_digest: str | None = None,
    problem: Problem | None = None,
    dtype: str | None = None,
    device: str | None = None,
    architecture: str | None = None,
    compiler: CompilerName | None = None,
) -> list[BestRow]:
    """The best trial of each kernel, source, problem, kind of device (name and architecture), compiler and regime.

    Args:
        source_digest: None for every version of the source that there are results of.
        device: a device's name.

    Raises:
        DatabaseError: the database cannot be read, or holds what tunebench does not write.
    """
    conditions = study_conditions(
        study_columns={"kernel": kernel, "source_digest": source_digest, "compiler": compiler and compiler.value},
        problem_columns={"key": problem and problem.key, "dtype": dtype},
        device_columns={"name": device, "architecture": architecture},
    )
    ordering = (StudyTable.kernel, ProblemTable.key, DeviceTable.name, StudyTable.compiler, TrialTable.id)
    query = everything_about(winners(conditions)).order_by(*ordering)
    problems: dict[str, Problem] = {}
    with database.reading() as connection:
        return [BestRow(**fields_of(row, problems)) for row in connection.execute(query)]


def best_of_studies(database: Database, study_ids: Collection[int] | None = None) -> dict[int, BestRow]:
    """The best trial of each study that has a correct one, by the study's number; with cold caches where it has both.

    Args:
        study_ids: None for every study.

    Raises:
        DatabaseError: the database cannot be read, or holds what tunebench does not write.
    """
    conditions = [] if study_ids is None else [StudyTable.id.in_(study_ids)]
    query = everything_about(winners(conditions, group=(StudyTable.id,))).order_by(MeasurementTable.regime.desc())
    problems: dict[str, Problem] = {}
    with database.reading() as connection:
        rows = (BestRow(**fields_of(row, problems)) for row in connection.execute(query))
        return {row.study_id: row for row in rows}


class Conditions(TypedDict, total=False):
    """What trials can be asked for; each that is given must hold, and None is as good as leaving it out.

    Attributes:
        status: one, or any of several.
        device: a device's name.
        since, until: moments with a time zone; `until` is not included.
        tunables: values that the configuration has; of several values of one tunable, any.
    """

    kernel: str | None
    source_digest: str | None
    status: TrialStatus | Collection[TrialStatus] | None
    problem: Problem | None
    dtype: str | None
    device: str | None
    architecture: str | None
    compiler: CompilerName | None
    sampler: str | None
    study_id: int | None
    trial_id: int | None
    since: datetime | None
    until: datetime | None
    tunables: Mapping[str, Value | Collection[Value]] | None


def trials(
    database: Database,
    *,
    order: Order = Order.NEWEST,
    limit: int | None = 100,
    offset: int = 0,
    **conditions: Unpack[Conditions],
) -> list[TrialRow]:
    """Trials that meet every condition given, see `Conditions`.

    Args:
        limit: None for all of them; `each_trial` has them one after the other.

    Raises:
        DatabaseError: the database cannot be read, or holds what tunebench does not write.
    """
    return list(each_trial(database, order=order, limit=limit, offset=offset, **conditions))


def each_trial(
    database: Database,
    *,
    order: Order = Order.NEWEST,
    limit: int | None = None,
    offset: int = 0,
    **conditions: Unpack[Conditions],
) -> Generator[TrialRow, None, None]:
    """The same trials one after the other, in memory that does not grow with their number.

    They are all of one state of the database, which lasts until the iterator is exhausted or closed.

    Raises:
        DatabaseError: the database cannot be read, or holds what tunebench does not write.
    """
    problems: dict[str, Problem] = {}
    with database.reading() as connection:
        picked = _picked(connection, order, **conditions).limit(limit).offset(offset)
        numbers = connection.execute(picked, execution_options={"stream_results": True}).scalars()
        for page in numbers.partitions(_PAGE):
            wanted = select(TrialTable.id.label("trial_id")).where(TrialTable.id.in_(page)).cte("picked")
            rows = {row.id: row for row in connection.execute(everything_about(wanted))}
            if len(rows) != len(page):
                raise DatabaseError(f"{database.name}: rows that trials refer to are missing: see 'tunebench db check'")
            for number in page:
                yield TrialRow(**fields_of(rows[number], problems))


def _picked(
    connection: Connection,
    order: Order,
    *,
    kernel: str | None = None,
    source_digest: str | None = None,
    status: TrialStatus | Collection[TrialStatus] | None = None,
    problem: Problem | None = None,
    dtype: str | None = None,
    device: str | None = None,
    architecture: str | None = None,
    compiler: CompilerName | None = None,
    sampler: str | None = None,
    study_id: int | None = None,
    trial_id: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    tunables: Mapping[str, Value | Collection[Value]] | None = None,
) -> Select[int]:
    """The numbers of the trials that meet the conditions, in order."""
    of_studies = study_conditions(
        study_columns={
            "id": study_id,
            "kernel": kernel,
            "source_digest": source_digest,
            "compiler": compiler and compiler.value,
            "sampler": sampler,
        },
        problem_columns={"key": problem and problem.key, "dtype": dtype},
        device_columns={"name": device, "architecture": architecture},
    )
    ordering: tuple[ColumnElement[Any], ...] = (TrialTable.study_id.desc(), TrialTable.number.desc())
    found: list[ColumnElement[bool]] = []
    if order is Order.FASTEST:
        ordering = (TrialTable.median_ms.asc(), TrialTable.id.asc())
        found.append(CORRECT)
    # The index by study and status serves where there is a condition on the study, if only that it exists.
    studies = select(StudyTable.id).where(*of_studies)
    if (of_studies or status is not None) and order is not Order.FASTEST:
        found.append(TrialTable.study_id.in_(studies))
    if trial_id is not None:
        found.append(TrialTable.id == trial_id)
    if status is not None:
        found.append(with_status(connection, [status] if isinstance(status, TrialStatus) else status))
    if of_studies and order is Order.FASTEST:
        found.append(of_many(connection, studies))
    times = [TrialTable.recorded_at >= since] if since is not None else []
    times += [TrialTable.recorded_at < until] if until is not None else []
    if times:
        found.append(unless_many(connection, and_(*times)))
    if tunables:
        found.append(unless_many(connection, with_values(connection, tunables)))
    return select(TrialTable.id).where(*found).order_by(*ordering)


def kernels_with_results(database: Database) -> list[str]:
    """The names of the kernels that there are studies of.

    Raises:
        DatabaseError: the database cannot be read.
    """
    with database.reading() as connection:
        return list(connection.scalars(select(StudyTable.kernel).distinct().order_by(StudyTable.kernel)))


def count_rows(database: Database) -> tuple[int, int]:
    """How many studies and how many trials there are.

    Raises:
        DatabaseError: the database cannot be read.
    """
    with database.reading() as connection:
        tables = (StudyTable, TrialTable)
        studies, in_all = (connection.scalar(select(func.count()).select_from(table)) or 0 for table in tables)
    return studies, in_all
