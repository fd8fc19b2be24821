"""What the database knows of a kernel from before a study began."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, select

from tunebench.db.decode import carried_of, configuration_of, problem_of
from tunebench.db.models import (
    ConfigurationRecord,
    DeviceRecord,
    ProblemRecord,
    StudyRecord,
    TrialRecord,
)
from tunebench.db.rows import find_study
from tunebench.db.store import Database
from tunebench.tuner.earlier import EarlierStudy, EarlierTrial, distance
from tunebench.tuner.history import Carried, StudyDescription

_MOST_STUDIES = 8
_MOST_TRIALS = 256


@dataclass(frozen=True)
class Beginning:
    """What a study began with, or is to begin with.

    Attributes:
        study: its number; None where it is new.
        moment: when it began, or begins.
        carried: what it began with; None where it is new, or began before that was recorded.
        earlier: studies from before it, the nearest first.
    """

    study: int | None
    moment: datetime
    carried: tuple[Carried, ...] | None
    earlier: tuple[EarlierStudy, ...]


def beginning_of(database: Database, description: StudyDescription) -> Beginning:
    """What there is to begin a study with, or what it began with; the same every time that it is resumed.

    Earlier studies are the nearest eight of the same kernel on the same kind of device, GPU or CPU; of each, the first
    256 trials that were recorded before this one began.

    Raises:
        DatabaseError: the database cannot be read, or holds what tunebench does not write.
    """
    with database.reading() as connection:
        study = find_study(connection, description)
        moment = study.begun_at if study else datetime.now(UTC)
        found = [
            (_distance(row, description), row)
            for row in connection.execute(_others(description, study.id if study else None))
            if row.begun_at < moment
        ]
        earlier: list[EarlierStudy] = []
        for away, row in sorted(found, key=lambda pair: (pair[0], pair[1].id)):
            if len(earlier) < _MOST_STUDIES and (trials := _trials(connection, row.id, moment)):
                earlier.append(EarlierStudy(_describe(row, description), away, trials))
        carried = carried_of(study.carried) if study else None
        return Beginning(study.id if study else None, moment, carried, tuple(earlier))


def _others(description: StudyDescription, study_id: int | None) -> Any:
    query = (
        select(
            StudyRecord.id,
            StudyRecord.begun_at,
            StudyRecord.source_digest,
            *(column.label(f"problem_{column.name}") for column in ProblemRecord.__table__.columns),
            DeviceRecord.name.label("device"),
            DeviceRecord.architecture,
        )
        .join(ProblemRecord, ProblemRecord.id == StudyRecord.problem_id)
        .join(DeviceRecord, DeviceRecord.id == StudyRecord.device_id)
        .where(and_(StudyRecord.kernel == description.kernel, DeviceRecord.kind == description.device.kind.value))
    )
    return query if study_id is None else query.where(StudyRecord.id != study_id)


def _distance(row: Row[Any], description: StudyDescription) -> float:
    problem = problem_of(row.problem_key, row.problem_dtype, row.problem_axes, row.problem_options)
    return distance(
        problem,
        description.problem,
        same_device=row.device == description.device.name,
        same_architecture=row.architecture == description.device.architecture,
        same_source=row.source_digest == description.source_digest,
    )


def _describe(row: Row[Any], description: StudyDescription) -> str:
    problem = problem_of(row.problem_key, row.problem_dtype, row.problem_axes, row.problem_options)
    older = "" if row.source_digest == description.source_digest else ", another version of the source"
    return f"{problem} on {row.device}{older}"


def _trials(connection: Connection, study_id: int, before: datetime) -> list[EarlierTrial]:
    """A study's first trials; none where nothing in it was timed."""
    query = (
        select(TrialRecord.id, ConfigurationRecord.key, TrialRecord.median_ms)
        .join(ConfigurationRecord, ConfigurationRecord.id == TrialRecord.configuration_id)
        .where(TrialRecord.study_id == study_id, TrialRecord.recorded_at < before)
        .order_by(TrialRecord.number)
        .limit(_MOST_TRIALS)
    )
    trials = [
        EarlierTrial(f"trial {number}", configuration_of(key), median_ms)
        for number, key, median_ms in connection.execute(query)
    ]
    return trials if any(trial.time_ms is not None for trial in trials) else []
