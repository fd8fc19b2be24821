"""What a report shows of studies beyond their trials: their facts, their final comparison and their environments."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import and_, func, select

from tunebench.db.connection.database import Database
from tunebench.db.entries.decode import configuration_of, problem_of, reasons_of
from tunebench.db.schema.tables import (
    ComparisonTable,
    ConfigurationTable,
    ContenderTable,
    DeviceTable,
    EnvironmentTable,
    ProblemTable,
    SpeedUpTable,
    StudyTable,
    TrialTable,
)
from tunebench.db.schema.views import CORRECT
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.environment import Environment
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Ratio
from tunebench.tuner.space import Configuration

_Facts = TypeVar("_Facts")


@dataclass(frozen=True)
class StudyRow:
    """A study that has trials.

    Attributes:
        study_id: its number in this database.
        trials: how many it has.
        last_at: when the newest of them was recorded; UTC.
    """

    study_id: int
    kernel: str
    source_digest: str
    problem: Problem
    device: Device
    compiler: str
    sampler: str
    seed: int
    begun_at: datetime
    trials: int
    last_at: datetime


@dataclass(frozen=True)
class ContenderRow:
    """One contender of a comparison, such as `best` or `reference`.

    Attributes:
        samples_ms: the n-th samples of all contenders of a comparison belong to the same round.
    """

    name: str
    median_ms: float
    samples_ms: tuple[float, ...]


@dataclass(frozen=True)
class ComparisonRow:
    """The newest interleaved comparison of a study.

    Attributes:
        speed_ups: of the best over each baseline, by the baseline's name.
        missing: why a baseline that was wanted could not be timed, by its name.
    """

    configuration: Configuration
    concluded_at: datetime
    contenders: tuple[ContenderRow, ...]
    speed_ups: Mapping[str, Ratio]
    missing: Mapping[str, str] = field(default_factory=dict)

    def contender(self, name: str) -> ContenderRow | None:
        """The contender of that name, if it took part."""
        return next((contender for contender in self.contenders if contender.name == name), None)


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
    """The studies with trials in them, by kernel, problem and device, and the one with the newest trial first.

    Args:
        kernels, study_ids: only those; None for all.

    Raises:
        DatabaseError: the database cannot be read, or holds what tunebench does not write.
    """
    counted = select(
        TrialTable.study_id, func.count().label("trials"), func.max(TrialTable.recorded_at).label("last_at")
    ).group_by(TrialTable.study_id)
    if study_ids is not None:
        counted = counted.where(TrialTable.study_id.in_(study_ids))
    of_study = counted.subquery()
    columns = [
        column.label(f"{prefix}_{column.name}")
        for prefix, table in (("study", StudyTable), ("problem", ProblemTable), ("device", DeviceTable))
        for column in table.__table__.columns
    ]
    query = (
        select(*columns, of_study.c.trials, of_study.c.last_at)
        .join(of_study, of_study.c.study_id == StudyTable.id)
        .join(ProblemTable, ProblemTable.id == StudyTable.problem_id)
        .join(DeviceTable, DeviceTable.id == StudyTable.device_id)
        .order_by(StudyTable.kernel, ProblemTable.key, DeviceTable.name, of_study.c.last_at.desc())
    )
    if kernels is not None:
        query = query.where(StudyTable.kernel.in_(kernels))
    with database.reading() as connection:
        return [_study(row) for row in connection.execute(query)]


def newest_comparison(database: Database, study_id: int) -> ComparisonRow | None:
    """The study's newest comparison whose winner still stands; None where there is none.

    Raises:
        DatabaseError: the database cannot be read, or holds what tunebench does not write.
    """
    newest = (
        select(
            ComparisonTable.id,
            ComparisonTable.concluded_at,
            ComparisonTable.missing_baselines,
            ConfigurationTable.key,
        )
        .join(ConfigurationTable, ConfigurationTable.id == ComparisonTable.configuration_id)
        .join(
            TrialTable,
            and_(
                TrialTable.study_id == ComparisonTable.study_id,
                TrialTable.configuration_id == ComparisonTable.configuration_id,
            ),
        )
        .where(ComparisonTable.study_id == study_id, CORRECT)
        .order_by(ComparisonTable.concluded_at.desc(), ComparisonTable.id.desc())
        .limit(1)
    )
    with database.reading() as connection:
        found = connection.execute(newest).one_or_none()
        if found is None:
            return None
        contenders = connection.execute(
            select(ContenderTable.name, ContenderTable.median_ms, ContenderTable.samples_ms)
            .where(ContenderTable.comparison_id == found.id)
            .order_by(ContenderTable.name)
        ).all()
        ratio = (SpeedUpTable.ratio, SpeedUpTable.low, SpeedUpTable.high)
        ratios = connection.execute(
            select(SpeedUpTable.baseline, *ratio, SpeedUpTable.rounds, SpeedUpTable.confidence)
            .where(SpeedUpTable.comparison_id == found.id)
            .order_by(SpeedUpTable.baseline)
        ).all()
    return ComparisonRow(
        configuration=configuration_of(found.key),
        concluded_at=found.concluded_at,
        contenders=tuple(ContenderRow(row.name, row.median_ms, _samples(row.samples_ms)) for row in contenders),
        speed_ups={row.baseline: Ratio(row.ratio, row.low, row.high, row.rounds, row.confidence) for row in ratios},
        missing=reasons_of(found.missing_baselines),
    )


def environments(database: Database, study_id: int) -> list[EnvironmentRow]:
    """The environments that the study's trials ran under, the earliest first.

    Raises:
        DatabaseError: the database cannot be read.
    """
    of_study = (
        select(
            TrialTable.environment_id,
            func.count().label("trials"),
            func.min(TrialTable.recorded_at).label("first_at"),
            func.max(TrialTable.recorded_at).label("last_at"),
        )
        .where(TrialTable.study_id == study_id)
        .group_by(TrialTable.environment_id)
        .subquery()
    )
    query = (
        select(*EnvironmentTable.__table__.columns, of_study.c.trials, of_study.c.first_at, of_study.c.last_at)
        .join(of_study, of_study.c.environment_id == EnvironmentTable.id)
        .order_by(of_study.c.first_at)
    )
    with database.reading() as connection:
        return [
            EnvironmentRow(_facts(Environment, row._mapping), row.trials, row.first_at, row.last_at)
            for row in connection.execute(query)
        ]


def _study(row: Any) -> StudyRow:
    return StudyRow(
        study_id=row.study_id,
        kernel=row.study_kernel,
        source_digest=row.study_source_digest,
        problem=problem_of(row.problem_key, row.problem_dtype, row.problem_axes, row.problem_options),
        device=_device(row),
        compiler=row.study_compiler,
        sampler=row.study_sampler,
        seed=row.study_seed,
        begun_at=row.study_begun_at,
        trials=row.trials,
        last_at=row.last_at,
    )


def _device(row: Any) -> Device:
    columns = {name.removeprefix("device_"): value for name, value in row._mapping.items()}
    return _facts(Device, columns | {"index": 0, "kind": DeviceKind(row.device_kind)})


def _facts(kind: type[_Facts], columns: Mapping[Any, Any]) -> _Facts:
    """A dataclass from columns of its attributes' names."""
    return kind(**{field.name: columns[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def _samples(stored: object) -> tuple[float, ...]:
    legal = isinstance(stored, list) and all(isinstance(v, int | float) and 0 < v < math.inf for v in stored)
    if not legal:
        raise DatabaseError(f"the database holds {stored!r:.80} as samples: it was not written by tunebench")
    assert isinstance(stored, list)
    return tuple(float(value) for value in stored)
