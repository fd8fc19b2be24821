"""Everything about one trial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection, Row, literal, select

from tunebench.db.connection.engine import first_line
from tunebench.db.entries.decode import carried_of, configuration_of, reasons_of, regime_of
from tunebench.db.entries.rows import CONDITIONS, digested_columns
from tunebench.db.queries.rows import TrialRow
from tunebench.db.queries.statements import everything_about, fields_of
from tunebench.db.schema.tables import (
    BuildFiguresRecord,
    BuildRecord,
    ComparisonRecord,
    ConfigurationRecord,
    ContenderRecord,
    DeviceRecord,
    EnvironmentRecord,
    LateRefusalRecord,
    MeasurementRecord,
    OriginRecord,
    SpeedUpRecord,
    StudyRecord,
    TrialRecord,
    VerdictRecord,
    VerdictStageRecord,
)
from tunebench.tuner.build import KernelFigures
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.environment import Environment
from tunebench.tuner.errors import DatabaseError, UserError
from tunebench.tuner.result import (
    CONTROL,
    Baseline,
    Comparison,
    Conditions,
    ErrorFigures,
    Measurement,
    Ratio,
    Stage,
    Verdict,
)
from tunebench.tuner.timing.statistics import Samples, control_ratio

if TYPE_CHECKING:
    from tunebench.db.connection.database import Database

AnyRow: TypeAlias = Row[*tuple[Any, ...]]


@dataclass(frozen=True)
class StudyDetails:
    """The study of a trial.

    Attributes:
        begun_at: UTC.
        origin: the uid of the database that the study began in.
    """

    space_digest: str
    begun_at: datetime
    origin: str


@dataclass(frozen=True)
class BuildDetails:
    """A trial's build, as far as a database keeps it.

    Attributes:
        code_sha256, code_bytes: digest and size of the binary.
        log: the compiler's full output.
        seconds: what compiling took when it was made.
        cached: for this trial it came from the build cache.
        figures: by entry point.
    """

    variant_digest: str
    compiler: str
    compiler_version: str
    code_sha256: str
    code_bytes: int
    log: str
    seconds: float
    cached: bool
    figures: Mapping[str, KernelFigures]


@dataclass(frozen=True)
class WonComparison:
    """A comparison that a trial's configuration won in its study.

    Attributes:
        concluded_at: UTC.
    """

    concluded_at: datetime
    environment: Environment
    comparison: Comparison


@dataclass(frozen=True)
class TrialDetails:
    """One trial with everything that its result depends on.

    Attributes:
        device: its `index` is always 0: where a card sits is not recorded.
        build, verdict, measurement: None where the trial ended before. The verdict has the stage of a late refusal; the
            measurement and the comparisons are those that were made before it.
        seconds: what each phase took, by its name.
        comparisons: the newest first.
        carried_from: where the study had this configuration from when it began; None where the search proposed it.
    """

    row: TrialRow
    study: StudyDetails
    environment: Environment
    device: Device
    build: BuildDetails | None
    verdict: Verdict | None
    measurement: Measurement | None
    seconds: Mapping[str, float]
    comparisons: tuple[WonComparison, ...]
    carried_from: str | None = None


def trial_details(database: Database, trial_id: int) -> TrialDetails:
    """Everything about the trial of that number.

    Raises:
        UserError: there is no such trial.
        DatabaseError: the database cannot be read, or holds what tunebench does not write.
    """
    with database.reading() as connection:
        # A number beyond 64 bits is no trial's; asked for as it is, it would be an error of the driver's.
        trial = _row(connection, TrialRecord, TrialRecord.id, trial_id) if 0 < trial_id < 2**63 else None
        if trial is None:
            raise UserError(f"{database.name} has no trial {trial_id}: 'tunebench trials' lists those that there are")
        picked = select(literal(trial_id).label("trial_id")).cte("picked")
        study = _require(connection, StudyRecord, trial.study_id)
        try:
            row = TrialRow(**fields_of(connection.execute(everything_about(picked)).one(), {}))
            carried = carried_of(study.carried) or ()
            return TrialDetails(
                row=row,
                study=StudyDetails(
                    study.space_digest, study.begun_at, _require(connection, OriginRecord, study.origin_id).uid
                ),
                environment=_environment(connection, trial.environment_id),
                device=_device(connection, study.device_id),
                build=_build(connection, trial),
                verdict=_verdict(connection, trial),
                measurement=_measurement(connection, trial.measurement_id),
                seconds=_seconds(trial),
                comparisons=_comparisons(connection, trial),
                carried_from=next((one.origin for one in carried if one.configuration == row.configuration), None),
            )
        except (TypeError, ValueError) as error:
            # The values' own invariants: what breaks them is not of tunebench's writing.
            raise DatabaseError(
                f"{database.name}: trial {trial_id} is not as tunebench writes it: {first_line(error)}"
            ) from error


def _row(connection: Connection, table: Any, column: Any, value: object) -> AnyRow | None:
    return connection.execute(select(table.__table__).where(column == value)).one_or_none()


def _require(connection: Connection, table: Any, number: int) -> AnyRow:
    row = _row(connection, table, table.id, number)
    if row is None:
        raise DatabaseError(f"row {number} of {table.__tablename__} is not there: 'tunebench db check' says what is")
    return row


def _parts(connection: Connection, table: type[DeviceRecord | EnvironmentRecord], number: int) -> dict[str, Any]:
    row = _require(connection, table, number)
    return {name: getattr(row, name) for name in digested_columns(table)}


def _environment(connection: Connection, number: int) -> Environment:
    return Environment(**_parts(connection, EnvironmentRecord, number))


def _device(connection: Connection, number: int) -> Device:
    parts = _parts(connection, DeviceRecord, number)
    return Device(**{**parts, "index": 0, "kind": DeviceKind(parts["kind"])})


def _build(connection: Connection, trial: AnyRow) -> BuildDetails | None:
    if trial.build_id is None:
        return None
    row = _require(connection, BuildRecord, trial.build_id)
    figures = BuildFiguresRecord.__table__
    of_build = select(figures).where(BuildFiguresRecord.build_id == row.id).order_by(BuildFiguresRecord.entry_point)
    return BuildDetails(
        variant_digest=row.variant_digest,
        compiler=row.compiler,
        compiler_version=row.compiler_version,
        code_sha256=row.code_sha256,
        code_bytes=row.code_bytes,
        log=row.log,
        seconds=row.seconds,
        cached=trial.build_cached,
        figures={
            one.entry_point: KernelFigures(one.registers, one.spill_stores, one.spill_loads, one.stack, one.shared)
            for one in connection.execute(of_build)
        },
    )


def _verdict(connection: Connection, trial: AnyRow) -> Verdict | None:
    if trial.verdict_id is None:
        return None
    row = _require(connection, VerdictRecord, trial.verdict_id)
    table = VerdictStageRecord
    steps = select(table.name, table.passed, table.seconds, table.detail)
    stages = connection.execute(steps.where(table.verdict_id == trial.verdict_id).order_by(table.position))
    verdict = Verdict(
        passed=row.passed,
        stages=tuple(Stage(*stage) for stage in stages),
        tolerance=_number(row.tolerance),
        errors=None if row.untouched is None else _error_figures(row),
        reason=row.reason,
    )
    late = _row(connection, LateRefusalRecord, LateRefusalRecord.trial_id, trial.id)
    return verdict if late is None else verdict.refused_by(Stage(late.stage, False, late.seconds, late.detail))


def _error_figures(row: AnyRow) -> ErrorFigures:
    return ErrorFigures(
        max_absolute=_number(row.max_absolute),
        max_relative=_number(row.max_relative),
        relative_norm=_number(row.relative_norm),
        reference_max_relative=_number(row.reference_max_relative),
        reference_relative_norm=_number(row.reference_relative_norm),
        first_wrong_index=row.first_wrong_index,
        untouched=row.untouched,
    )


def _number(value: float | None) -> float:
    """A stored figure; NaN is stored as NULL."""
    return math.nan if value is None else value


def _measurement(connection: Connection, number: int | None) -> Measurement | None:
    if number is None:
        return None
    row = _require(connection, MeasurementRecord, number)
    return Measurement(
        samples_ms=_samples(row.samples_ms),
        median_ms=row.median_ms,
        low_ms=row.low_ms,
        high_ms=row.high_ms,
        regime=regime_of(row.regime),
        clock=row.clock,
        conditions=_conditions(row),
    )


def _conditions(row: AnyRow) -> Conditions:
    return Conditions(**{name: getattr(row, name) for name in CONDITIONS})


def _samples(values: object) -> tuple[float, ...]:
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        raise DatabaseError(f"the database holds {values!r:.80} where samples belong: it was not written by tunebench")
    return tuple(float(value) for value in values)


def _seconds(trial: AnyRow) -> dict[str, float]:
    phases = trial.seconds
    if not isinstance(phases, dict) or not all(type(value) in (int, float) for value in phases.values()):
        raise DatabaseError(f"the database holds {phases!r:.80} where seconds by phase belong")
    return phases


def _comparisons(connection: Connection, trial: AnyRow) -> tuple[WonComparison, ...]:
    table = ComparisonRecord
    query = (
        select(*table.__table__.columns, ConfigurationRecord.key)
        .join(ConfigurationRecord, ConfigurationRecord.id == table.configuration_id)
        .where(table.study_id == trial.study_id, table.configuration_id == trial.configuration_id)
        .order_by(table.concluded_at.desc(), table.id.desc())
    )
    return tuple(
        WonComparison(row.concluded_at, _environment(connection, row.environment_id), _comparison(connection, row))
        for row in connection.execute(query).all()
    )


def _comparison(connection: Connection, row: AnyRow) -> Comparison:
    number, sides, ratios = row.id, ContenderRecord, SpeedUpRecord
    contenders = connection.execute(
        select(sides.name, sides.median_ms, sides.samples_ms).where(sides.comparison_id == number).order_by(sides.name)
    ).all()
    columns = (ratios.baseline, ratios.ratio, ratios.low, ratios.high, ratios.rounds, ratios.confidence)
    speedups = connection.execute(select(*columns).where(ratios.comparison_id == number)).all()
    by_baseline = {
        Baseline(one.baseline): Ratio(one.ratio, one.low, one.high, one.rounds, one.confidence) for one in speedups
    }
    samples_ms = {one.name: _samples(one.samples_ms) for one in contenders}
    return Comparison(
        best=configuration_of(row.key),
        medians_ms={one.name: one.median_ms for one in contenders},
        samples_ms=samples_ms,
        speedups={baseline: by_baseline[baseline] for baseline in Baseline if baseline in by_baseline},
        missing={Baseline(name): reason for name, reason in reasons_of(row.missing_baselines).items()},
        control=_control(samples_ms),
        conditions=_conditions(row),
    )


def _control(samples_ms: Samples) -> Ratio | None:
    """The second copy is one of the default configuration, where that took part, else of the reference."""
    pivot = next((name for name in (Baseline.DEFAULT, Baseline.REFERENCE) if name in samples_ms), None)
    return control_ratio(samples_ms, pivot) if pivot is not None and CONTROL in samples_ms else None
