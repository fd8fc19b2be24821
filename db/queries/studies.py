"""What a report shows of studies beyond their trials: their facts, their final comparison and their environments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import and_, func, select

from tunebench.db.connection.database import Database
from tunebench.db.entries.entry import StudyFacts
from tunebench.db.entries.live import device_of, ratio_of
from tunebench.db.entries.reader import reading
from tunebench.db.queries.rows import StudyRow
from tunebench.db.schema.tables import (
    ComparisonTable,
    DeviceTable,
    ProblemTable,
    StudyTable,
    TrialTable,
)
from tunebench.db.schema.views import CORRECT
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.environment import Environment
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Ratio


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
    query = (
        select(StudyTable.id, of_study.c.trials, of_study.c.last_at)
        .join(of_study, of_study.c.study_id == StudyTable.id)
        .join(ProblemTable, ProblemTable.id == StudyTable.problem_id)
        .join(DeviceTable, DeviceTable.id == StudyTable.device_id)
        .order_by(StudyTable.kernel, ProblemTable.key, DeviceTable.name, of_study.c.last_at.desc())
    )
    if kernels is not None:
        query = query.where(StudyTable.kernel.in_(kernels))
    with reading(database) as reader:
        rows = reader.connection.execute(query).all()
        found = reader.studies([row.id for row in rows])
        return [_study(row.id, facts, row.trials, row.last_at) for row, facts in zip(rows, found, strict=True)]


def newest_comparison(database: Database, study_id: int) -> ComparisonRow | None:
    """The study's newest comparison whose winner still stands; None where there is none.

    Raises:
        DatabaseError: the database cannot be read, or holds what tunebench does not write.
    """
    newest = (
        select(ComparisonTable.id)
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
    with reading(database) as reader:
        number = reader.connection.scalar(newest)
        if number is None:
            return None
        configuration, facts = reader.comparison(number)
    return ComparisonRow(
        configuration=configuration,
        concluded_at=facts.concluded_at,
        contenders=tuple(ContenderRow(name, one.median_ms, one.samples_ms) for name, one in facts.contenders.items()),
        speed_ups={baseline: ratio_of(one) for baseline, one in facts.speed_ups.items()},
        missing=facts.missing_baselines or {},
    )


def environments(database: Database, study_id: int) -> list[EnvironmentRow]:
    """The environments that the study's trials ran under, the earliest first.

    Raises:
        DatabaseError: the database cannot be read.
    """
    first_at, last_at = func.min(TrialTable.recorded_at), func.max(TrialTable.recorded_at)
    query = (
        select(TrialTable.environment_id, func.count(), first_at, last_at)
        .where(TrialTable.study_id == study_id)
        .group_by(TrialTable.environment_id)
        .order_by(first_at)
    )
    with reading(database) as reader:
        rows = reader.connection.execute(query).all()
        return [EnvironmentRow(reader.environment(row[0]), row[1], row[2], row[3]) for row in rows]


def _study(study_id: int, facts: StudyFacts, trials: int, last_at: datetime) -> StudyRow:
    return StudyRow(
        study_id=study_id,
        kernel=facts.kernel,
        source_digest=facts.source_digest,
        problem=Problem(facts.problem.axes, facts.problem.dtype, facts.problem.options),
        device=device_of(facts.device),
        compiler=facts.compiler,
        sampler=facts.sampler,
        seed=facts.seed,
        begun_at=facts.begun_at,
        trials=trials,
        last_at=last_at,
    )
