"""Results of earlier studies that a study begins with, and the record of which ones it began with."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, select

from tunebench.db.connection.database import Database
from tunebench.db.entries.decode import configuration_of
from tunebench.db.entries.reader import reading
from tunebench.db.entries.study_log import study_of
from tunebench.db.queries.statements import PROBLEM, problem_in
from tunebench.db.schema import tables
from tunebench.db.schema.views import CORRECT
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.search.warm_start import WORTH_KNOWING, EarlierStudy, EarlierTrial, WarmStart, distance
from tunebench.tuner.study.history import StudyDescription

_MOST_STUDIES = 8


@dataclass(frozen=True)
class BegunStudy:
    """A study that is on record.

    Attributes:
        study: its number.
        warm_starts: what it began with from earlier ones; empty where it began before that was recorded.
    """

    study: int
    warm_starts: tuple[WarmStart, ...]


def begun_study(database: Database, description: StudyDescription) -> BegunStudy | None:
    """Return the study of that description; None where it has not begun."""
    with reading(database) as reader:
        found = reader.connection.scalar(study_of(description))
        if found is None:
            return None
        warm_starts = reader.study(found).warm_starts or ()
        return BegunStudy(found, tuple(WarmStart(Configuration(one.configuration), one.origin) for one in warm_starts))


def earlier_studies(database: Database, description: StudyDescription) -> list[EarlierStudy]:
    """Return the studies to begin a study with: the nearest eight of the same kernel, on the same kind of device.

    Each has its fastest trials; a study without a correct trial is left out.
    """
    with database.reading() as connection:
        found = [(_distance(row, description), row) for row in connection.execute(_others(description))]
        nearest = sorted(found, key=lambda pair: (pair[0], pair[1].id))
        known = ((away, row, _trials(connection, row.id)) for away, row in nearest)
        earlier = (EarlierStudy(_describe(row, description), away, trials) for away, row, trials in known if trials)
        return list(itertools.islice(earlier, _MOST_STUDIES))


def _others(description: StudyDescription) -> Any:
    return (
        select(
            tables.Study.id,
            tables.Study.source_digest,
            *PROBLEM,
            tables.Device.name.label("device"),
            tables.Device.architecture,
        )
        .join(tables.Problem, tables.Problem.id == tables.Study.problem_id)
        .join(tables.Device, tables.Device.id == tables.Study.device_id)
        .where(and_(tables.Study.kernel == description.kernel, tables.Device.kind == description.device.kind.value))
    )


def _distance(row: Row[Any], description: StudyDescription) -> float:
    return distance(
        problem_in(row),
        description.problem,
        same_device=row.device == description.device.name,
        same_architecture=row.architecture == description.device.architecture,
        same_source=row.source_digest == description.source_digest,
    )


def _describe(row: Row[Any], description: StudyDescription) -> str:
    older = "" if row.source_digest == description.source_digest else ", another version of the source"
    return f"{problem_in(row)} on {row.device}{older}"


def _trials(connection: Connection, study_id: int) -> list[EarlierTrial]:
    """Return a study's fastest trials."""
    query = (
        select(tables.Trial.id, tables.Configuration.key, tables.Trial.median_ms)
        .join(tables.Configuration, tables.Configuration.id == tables.Trial.configuration_id)
        .where(tables.Trial.study_id == study_id, CORRECT)
        .order_by(tables.Trial.median_ms, tables.Trial.id)
        .limit(WORTH_KNOWING)
    )
    return [
        EarlierTrial(f"trial {number}", configuration_of(key), median_ms)
        for number, key, median_ms in connection.execute(query)
        if median_ms is not None
    ]
