"""Queries about trials: the best, those that meet conditions, and their number."""

from __future__ import annotations

import enum
from collections.abc import Collection, Generator, Mapping
from datetime import datetime
from typing import Any, Unpack

from sqlalchemy import CTE, ColumnElement, Connection, Select, SQLColumnExpression, and_, func, select

from tunebench.db.connection.database import Database
from tunebench.db.queries import statements
from tunebench.db.queries.rows import BestRow, TrialRow
from tunebench.db.queries.statements import StudyConditions, everything_about, fields_of, study_conditions
from tunebench.db.schema import tables
from tunebench.db.schema.views import CORRECT, winners
from tunebench.tuner.configuration import Value
from tunebench.tuner.errors import DatabaseError, UserError
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import TrialStatus

_PAGE = 500
"""Number of trials fetched at a time, with all that is known of them."""


class Order(enum.StrEnum):
    """The order of trials."""

    NEWEST = "newest"
    """The newest study first, and in it the newest trial."""
    FASTEST = "fastest"
    """Correct trials only, the lowest median first."""


def best(
    database: Database, *, environments: Collection[int] | None = None, **conditions: Unpack[StudyConditions]
) -> list[BestRow]:
    """Return the best trial of each kernel, source, problem, device (name and architecture), compiler and regime.

    Args:
        environments: only trials that ran in one of these count, and only comparisons made in one; None for all.
        conditions: without a source, every version of the source that there are results of.
    """
    _require_known(conditions, StudyConditions)
    ordering = (tables.Study.kernel, tables.Problem.key, tables.Device.name, tables.Study.compiler, tables.Trial.id)
    return _best(database, winners(study_conditions(conditions), environments), *ordering)


def best_of_studies(database: Database, study_ids: Collection[int] | None = None) -> dict[int, BestRow]:
    """Return the best trial of each study that has a correct one, by its number; with cold caches where it has both.

    Args:
        study_ids: None for every study.
    """
    conditions = [] if study_ids is None else [tables.Study.id.in_(study_ids)]
    picked = winners(conditions, group=(tables.Study.id,))
    return {row.study_id: row for row in _best(database, picked, tables.Trial.regime.desc())}


def _best(database: Database, picked: CTE, *ordering: SQLColumnExpression[Any]) -> list[BestRow]:
    problems: dict[str, Problem] = {}
    with database.reading() as connection:
        found = connection.execute(everything_about(picked).order_by(*ordering))
        return [BestRow(**fields_of(row, problems)) for row in found]


class TrialConditions(StudyConditions, total=False):
    """Conditions that select trials.

    Attributes:
        status: one, or any of several.
        since, until: moments with a time zone; `until` is not included.
        tunables: values that the configuration has; of several values of one tunable, any.
    """

    status: TrialStatus | Collection[TrialStatus] | None
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
    **conditions: Unpack[TrialConditions],
) -> list[TrialRow]:
    """Return the trials that meet every condition given, see `TrialConditions`.

    Args:
        limit: None for all of them; `each_trial` has them one after the other.

    Raises:
        UserError: the fastest are asked for, of no correct ones.
    """
    return list(each_trial(database, order=order, limit=limit, offset=offset, **conditions))


def each_trial(
    database: Database,
    *,
    order: Order = Order.NEWEST,
    limit: int | None = None,
    offset: int = 0,
    **conditions: Unpack[TrialConditions],
) -> Generator[TrialRow, None, None]:
    """Yield the same trials one after the other, in memory that does not grow with their number.

    They are all of one state of the database, which lasts until the iterator is exhausted or closed.
    """
    problems: dict[str, Problem] = {}
    with database.reading() as connection:
        picked = _picked(connection, order, conditions).limit(limit).offset(offset)
        numbers = connection.execute(picked, execution_options={"stream_results": True}).scalars()
        for page in numbers.partitions(_PAGE):
            chosen = select(tables.Trial.id.label("trial_id")).where(tables.Trial.id.in_(page)).cte("picked")
            rows = {row.trial_id: row for row in connection.execute(everything_about(chosen))}
            if len(rows) != len(page):
                raise DatabaseError(f"{database.name}: rows that trials refer to are missing: see 'tunebench db check'")
            for number in page:
                yield TrialRow(**fields_of(rows[number], problems))


def _picked(connection: Connection, order: Order, conditions: TrialConditions) -> Select[int]:
    """Return the numbers of the trials that meet the conditions, in order."""
    _require_known(conditions, TrialConditions)
    of_studies, status = study_conditions(conditions), conditions.get("status")
    statuses = [status] if isinstance(status, TrialStatus) else status
    if order is Order.FASTEST and statuses is not None and TrialStatus.CORRECT not in statuses:
        raise UserError(f"the fastest are correct trials, not {' or '.join(statuses)}: leave out one of the two")
    ordering: tuple[ColumnElement[Any], ...] = (tables.Trial.study_id.desc(), tables.Trial.number.desc())
    found: list[ColumnElement[bool]] = []
    if order is Order.FASTEST:
        ordering = (tables.Trial.median_ms.asc(), tables.Trial.id.asc())
        found.append(CORRECT)
    # The index by study and status serves where there is a condition on the study, if only that it exists.
    studies = select(tables.Study.id).where(*of_studies)
    if (of_studies or statuses is not None) and order is not Order.FASTEST:
        found.append(tables.Trial.study_id.in_(studies))
    if (trial_id := conditions.get("trial_id")) is not None:
        found.append(tables.Trial.id == trial_id)
    if statuses is not None:
        found.append(tables.Trial.status.in_([one.value for one in statuses]))
    if of_studies and order is Order.FASTEST:
        found.append(statements.of_many(connection, studies))
    since, until = conditions.get("since"), conditions.get("until")
    times = [tables.Trial.recorded_at >= since] if since is not None else []
    times += [tables.Trial.recorded_at < until] if until is not None else []
    if times:
        found.append(statements.unless_many(connection, and_(*times)))
    if tunables := conditions.get("tunables"):
        found.append(statements.unless_many(connection, statements.with_values(connection, tunables)))
    return select(tables.Trial.id).where(*found).order_by(*ordering)


def _require_known(conditions: Mapping[str, object], kind: type) -> None:
    if unknown := conditions.keys() - kind.__annotations__.keys():
        raise TypeError(f"no condition is called {', '.join(sorted(unknown))}")


def kernels_with_results(database: Database) -> list[str]:
    """Return the names of the kernels that there are studies of."""
    with database.reading() as connection:
        return list(connection.scalars(select(tables.Study.kernel).distinct().order_by(tables.Study.kernel)))


def count_rows(database: Database) -> tuple[int, int]:
    """Return how many studies and how many trials there are."""
    with database.reading() as connection:
        counts = [select(func.count()).select_from(table) for table in (tables.Study, tables.Trial)]
        studies, in_all = (connection.scalar(count) or 0 for count in counts)
    return studies, in_all
