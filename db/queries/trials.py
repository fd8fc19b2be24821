"""Questions to the results database, answered with typed rows."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, func, select

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
from tunebench.db.schema.tables import DeviceRecord, ProblemRecord, StudyRecord, TrialRecord
from tunebench.db.schema.views import CORRECT, winners
from tunebench.tuner.build import CompilerName
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import TrialStatus
from tunebench.tuner.space import Value

__all__ = [
    "BestRow",
    "Order",
    "TrialRow",
    "best",
    "count_rows",
    "kernels_with_results",
    "trials",
]


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
    ordering = (StudyRecord.kernel, ProblemRecord.key, DeviceRecord.name, StudyRecord.compiler, TrialRecord.id)
    query = everything_about(winners(conditions)).order_by(*ordering)
    problems: dict[str, Problem] = {}
    with database.reading() as connection:
        return [BestRow(**fields_of(row, problems)) for row in connection.execute(query)]


def trials(
    database: Database,
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
    tunables: Mapping[str, Value] | None = None,
    order: Order = Order.NEWEST,
    limit: int | None = 100,
    offset: int = 0,
) -> list[TrialRow]:
    """Trials that meet every condition given.

    Args:
        status: one, or any of several.
        device: a device's name.
        since, until: moments with a time zone; `until` is not included.
        tunables: values that the configuration has.
        limit: None for all of them.

    Raises:
        DatabaseError: the database cannot be read, or holds what tunebench does not write.
    """
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
    ordering: tuple[ColumnElement[Any], ...] = (TrialRecord.study_id.desc(), TrialRecord.number.desc())
    conditions: list[ColumnElement[bool]] = []
    if order is Order.FASTEST:
        ordering = (TrialRecord.median_ms.asc(), TrialRecord.id.asc())
        conditions.append(CORRECT)
    # The index by study and status serves where there is a condition on the study, if only that it exists.
    studies = select(StudyRecord.id).where(*of_studies)
    if (of_studies or status is not None) and order is not Order.FASTEST:
        conditions.append(TrialRecord.study_id.in_(studies))
    if trial_id is not None:
        conditions.append(TrialRecord.id == trial_id)
    statuses = [status] if isinstance(status, TrialStatus) else status
    if statuses is not None and not statuses:
        return []
    times = [TrialRecord.recorded_at >= since] if since is not None else []
    times += [TrialRecord.recorded_at < until] if until is not None else []
    problems: dict[str, Problem] = {}
    with database.reading() as connection:
        if statuses is not None:
            conditions.append(with_status(connection, statuses))
        if of_studies and order is Order.FASTEST:
            conditions.append(of_many(connection, studies))
        if times:
            conditions.append(unless_many(connection, and_(*times)))
        if tunables:
            conditions.append(unless_many(connection, with_values(connection, tunables)))
        picked = select(TrialRecord.id.label("trial_id")).where(*conditions).order_by(*ordering)
        query = everything_about(picked.limit(limit).offset(offset).cte("picked")).order_by(*ordering)
        return [TrialRow(**fields_of(row, problems)) for row in connection.execute(query)]


def kernels_with_results(database: Database) -> list[str]:
    """The names of the kernels that there are studies of.

    Raises:
        DatabaseError: the database cannot be read.
    """
    with database.reading() as connection:
        return list(connection.scalars(select(StudyRecord.kernel).distinct().order_by(StudyRecord.kernel)))


def count_rows(database: Database) -> tuple[int, int]:
    """How many studies and how many trials there are.

    Raises:
        DatabaseError: the database cannot be read.
    """
    with database.reading() as connection:
        tables = (StudyRecord, TrialRecord)
        studies, in_all = (connection.scalar(select(func.count()).select_from(table)) or 0 for table in tables)
    return studies, in_all
