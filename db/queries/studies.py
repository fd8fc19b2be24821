"""Queries about studies: their list, their final comparisons, and the environments that they ran under."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import and_, func, select

from tunebench.db.connection.database import Database
from tunebench.db.entries.entry import RecordedComparison
from tunebench.db.entries.reader import Reader, reading
from tunebench.db.queries.rows import StudyRow
from tunebench.db.schema import tables
from tunebench.db.schema.views import CORRECT
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.environment import Environment
from tunebench.tuner.result import Comparison
from tunebench.tuner.study.history import StudyDescription
from tunebench.tuner.versions import Versions

_OF_WINNER = and_(
    tables.Trial.study_id == tables.Comparison.study_id,
    tables.Trial.configuration_id == tables.Comparison.configuration_id,
)
_OF_STUDY = ("begun_at", *(one.name for one in fields(StudyDescription)))


@dataclass(frozen=True)
class EnvironmentRow:
    """An environment that trials of a study ran under.

    Attributes:
        trials: how many did.
        first_at, last_at: when the first and the last of them were recorded; UTC.
    """

    environment: Environment
    trials: int
    first_at: datetime
    last_at: datetime


def studies(
    database: Database, *, kernels: Collection[str] | None = None, study_ids: Collection[int] | None = None
) -> list[StudyRow]:
    """Return the studies with trials in them, by kernel, problem and device, and the one with the newest trial first.

    Args:
        kernels, study_ids: only those; None for all.
    """
    counted = select(
        tables.Trial.study_id, func.count().label("trials"), func.max(tables.Trial.recorded_at).label("last_at")
    ).group_by(tables.Trial.study_id)
    if study_ids is not None:
        counted = counted.where(tables.Trial.study_id.in_(study_ids))
    of_study = counted.subquery()
    query = (
        select(tables.Study.id, of_study.c.trials, of_study.c.last_at)
        .join(of_study, of_study.c.study_id == tables.Study.id)
        .join(tables.Problem, tables.Problem.id == tables.Study.problem_id)
        .join(tables.Device, tables.Device.id == tables.Study.device_id)
        .order_by(tables.Study.kernel, tables.Problem.key, tables.Device.name, of_study.c.last_at.desc())
    )
    if kernels is not None:
        query = query.where(tables.Study.kernel.in_(kernels))
    with reading(database) as reader:
        rows = reader.connection.execute(query).all()
        found = reader.studies([row.id for row in rows])
        return [
            StudyRow(
                study_id=row.id,
                **{name: getattr(study, name) for name in _OF_STUDY},
                trials=row.trials,
                last_at=row.last_at,
            )
            for row, study in zip(rows, found, strict=True)
        ]


def _newest(reader: Reader, study_id: int) -> tuple[Configuration, RecordedComparison] | None:
    """The newest conclusive comparison of a study whose winner still stands, else the newest, and its winner."""
    newest = (
        select(tables.Comparison.id)
        .join(tables.Trial, _OF_WINNER)
        .where(tables.Comparison.study_id == study_id, CORRECT)
        .order_by(
            tables.Comparison.conclusive.desc(), tables.Comparison.concluded_at.desc(), tables.Comparison.id.desc()
        )
        .limit(1)
    )
    number = reader.connection.scalar(newest)
    return None if number is None else reader.comparison(number)


def newest_comparison(database: Database, study_id: int) -> Comparison | None:
    """Return the study's newest conclusive comparison, else its newest, whose winner still stands; None without any."""
    with reading(database) as reader:
        found = _newest(reader, study_id)
        return None if found is None else found[1].won_by(found[0])


@dataclass(frozen=True)
class Conclusion:
    """The state of a study when its final comparison was made.

    Attributes:
        trials: that it has by now.
        versions: of the newest conclusive comparison whose winner still stands.
    """

    trials: int
    versions: Versions


def conclusion(database: Database, study_id: int) -> Conclusion | None:
    """Return what concluded a study; None where nothing has, rounds were inconclusive, or its winner was refused."""
    with reading(database) as reader:
        found = _newest(reader, study_id)
        if found is None or not found[1].won_by(found[0]).conclusive:
            return None
        versions = (getattr(found[1].environment, one.name) for one in fields(Versions))
        counted = select(func.count()).select_from(tables.Trial).where(tables.Trial.study_id == study_id)
        return Conclusion(reader.connection.scalar(counted) or 0, Versions(*versions))


def environments(database: Database, study_id: int) -> list[EnvironmentRow]:
    """Return the environments that the study's trials ran under, the earliest first."""
    first_at, last_at = func.min(tables.Trial.recorded_at), func.max(tables.Trial.recorded_at)
    query = (
        select(tables.Trial.environment_id, func.count(), first_at, last_at)
        .where(tables.Trial.study_id == study_id)
        .group_by(tables.Trial.environment_id)
        .order_by(first_at)
    )
    with reading(database) as reader:
        rows = reader.connection.execute(query).all()
        return [EnvironmentRow(reader.environment(row[0]), row[1], row[2], row[3]) for row in rows]
