"""Writing the parts of a study as rows, inside a transaction that the caller began.

What many results share (a device, a problem, a configuration, a build) is found by its identity or else created; two
writers that create the same one at the same moment end up with the same row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from tunebench.db.schema.tables import (
    OWN_ORIGIN,
    Base,
    BuildFiguresRecord,
    BuildRecord,
    ComparisonRecord,
    ConfigurationRecord,
    ContenderRecord,
    DeviceRecord,
    EnvironmentRecord,
    LateRefusalRecord,
    MeasurementRecord,
    ProblemRecord,
    SpeedUpRecord,
    StudyRecord,
    TrialRecord,
    VerdictRecord,
    VerdictStageRecord,
)
from tunebench.tuner.build import Build
from tunebench.tuner.device import Device
from tunebench.tuner.environment import Environment
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Comparison, Conditions, Measurement, Stage, TrialResult, Verdict
from tunebench.tuner.search.warm_start import Carried
from tunebench.tuner.space import Configuration
from tunebench.tuner.study.history import StudyDescription

CONDITIONS = tuple(one.name for one in fields(Conditions))
"""The columns that say what state the device was in."""


def study_row(connection: Connection, description: StudyDescription, carried: Sequence[Carried] = ()) -> int:
    """The number of the study of that description that began in this database.

    Args:
        carried: what it begins with from earlier ones, where it is new.
    """
    identity = {
        "origin_id": OWN_ORIGIN,
        "kernel": description.kernel,
        "source_digest": description.source_digest,
        "space_digest": description.space_digest,
        "problem_id": problem_row(connection, description.problem),
        "device_id": device_row(connection, description.device),
        "compiler": description.compiler.value,
        "sampler": description.sampler,
        "seed": description.seed,
    }
    began = [{"configuration": dict(one.configuration), "origin": one.origin} for one in carried]
    beginning = {"begun_at": datetime.now(UTC), "carried": began}
    return _find_or_create(connection, StudyRecord, identity, beginning)[0]


def find_study(connection: Connection, description: StudyDescription) -> Row[int, Any] | None:
    """The number and carried configurations of the study that `study_row` would find; None where it is new."""
    table, words = StudyRecord, ("kernel", "source_digest", "space_digest", "compiler", "sampler", "seed")
    query = (
        select(table.id, table.carried)
        .join(ProblemRecord, ProblemRecord.id == table.problem_id)
        .join(DeviceRecord, DeviceRecord.id == table.device_id)
        .where(table.origin_id == OWN_ORIGIN, ProblemRecord.key == description.problem.key)
        .where(DeviceRecord.digest == _digest(DeviceRecord, description.device))
        .where(*(getattr(table, word) == getattr(description, word) for word in words))
    )
    return connection.execute(query).one_or_none()


def problem_row(connection: Connection, problem: Problem) -> int:
    """The number of a problem."""
    parts = {"dtype": problem.dtype, "axes": dict(problem.axes), "options": dict(problem.options)}
    return _find_or_create(connection, ProblemRecord, {"key": problem.key}, parts)[0]


def device_row(connection: Connection, device: Device) -> int:
    """The number of a device with exactly these facts, whatever its CUDA index."""
    return _by_digest(connection, DeviceRecord, device)


def environment_row(connection: Connection, environment: Environment) -> int:
    """The number of an environment."""
    return _by_digest(connection, EnvironmentRecord, environment)


def trial_row(connection: Connection, study_id: int, environment_id: int, number: int, result: TrialResult) -> int:
    """Add a trial with its build, verdict and measurement."""
    build, verdict, measurement = result.build, result.verdict, result.measurement
    values = {
        "study_id": study_id,
        "number": number,
        "configuration_id": _configuration_row(connection, result.configuration),
        "environment_id": environment_id,
        "status": result.status.value,
        "build_id": _build_row(connection, build) if build else None,
        "build_cached": build.cached if build else None,
        "verdict_id": _verdict_row(connection, verdict) if verdict else None,
        "verdict_passed": verdict.passed if verdict else None,
        "measurement_id": _measurement_row(connection, measurement) if measurement else None,
        "median_ms": measurement.median_ms if measurement else None,
        "regime": measurement.regime.value if measurement else None,
        "recorded_at": datetime.now(UTC),
        "seconds": dict(result.seconds),
        "message": result.message,
    }
    return _add(connection, TrialRecord, values)


def late_refusal_row(connection: Connection, study_id: int, number: int, stage: Stage) -> None:
    """Refuse a correct trial of a study by a stage that was asked later; one that is refused already stays as it is."""
    refusal = {"stage": stage.name, "seconds": stage.seconds, "detail": stage.detail, "recorded_at": datetime.now(UTC)}
    trial = select(TrialRecord.id).where(TrialRecord.study_id == study_id, TrialRecord.number == number)
    trial_id = connection.execute(trial).scalar_one()
    connection.execute(unless_there(connection, LateRefusalRecord), {"trial_id": trial_id, **refusal})


def comparison_row(connection: Connection, study_id: int, environment_id: int, comparison: Comparison) -> int:
    """Add the comparison that ends a study, with its samples and ratios."""
    values = {
        "study_id": study_id,
        "configuration_id": _configuration_row(connection, comparison.best),
        "environment_id": environment_id,
        "concluded_at": datetime.now(UTC),
        "missing_baselines": {name.value: reason for name, reason in comparison.missing.items()} or None,
    } | _known(comparison.conditions)
    comparison_id = _add(connection, ComparisonRecord, values)
    contenders = [
        {
            "comparison_id": comparison_id,
            "name": name,
            "median_ms": median_ms,
            "sample_count": len(comparison.samples_ms[name]),
            "samples_ms": list(comparison.samples_ms[name]),
        }
        for name, median_ms in comparison.medians_ms.items()
    ]
    connection.execute(insert(ContenderRecord), contenders)
    speedups = [
        {
            "comparison_id": comparison_id,
            "baseline": baseline.value,
            "ratio": ratio.value,
            "low": ratio.low,
            "high": ratio.high,
            "rounds": ratio.rounds,
            "confidence": ratio.confidence,
        }
        for baseline, ratio in comparison.speedups.items()
    ]
    connection.execute(insert(SpeedUpRecord), speedups)
    return comparison_id


def _configuration_row(connection: Connection, configuration: Configuration) -> int:
    return _find_or_create(connection, ConfigurationRecord, {"key": configuration.key}, {})[0]


def _build_row(connection: Connection, build: Build) -> int:
    identity = {
        "variant_digest": build.variant_digest,
        "compiler": build.compiler.value,
        "compiler_version": build.compiler_version,
        "code_sha256": hashlib.sha256(build.code).hexdigest(),
    }
    values = {"code_bytes": len(build.code), "log": build.log, "seconds": build.seconds}
    build_id, created = _find_or_create(connection, BuildRecord, identity, values)
    if created and build.figures:
        rows = [
            {
                "build_id": build_id,
                "entry_point": entry_point,
                "registers": figures.registers,
                "spill_stores": figures.spill_stores,
                "spill_loads": figures.spill_loads,
                "stack": figures.stack,
                "shared": figures.shared,
            }
            for entry_point, figures in build.figures.items()
        ]
        connection.execute(insert(BuildFiguresRecord), rows)
    return build_id


def _verdict_row(connection: Connection, verdict: Verdict) -> int:
    errors = verdict.errors
    values = {
        "passed": verdict.passed,
        "reason": verdict.reason,
        "tolerance": verdict.tolerance,
        "max_absolute": errors.max_absolute if errors else None,
        "max_relative": errors.max_relative if errors else None,
        "relative_norm": errors.relative_norm if errors else None,
        "reference_max_relative": errors.reference_max_relative if errors else None,
        "reference_relative_norm": errors.reference_relative_norm if errors else None,
        "first_wrong_index": errors.first_wrong_index if errors else None,
        "untouched": errors.untouched if errors else None,
    }
    verdict_id = _add(connection, VerdictRecord, values)
    stages = [
        {
            "verdict_id": verdict_id,
            "position": position,
            "name": stage.name,
            "passed": stage.passed,
            "seconds": stage.seconds,
            "detail": stage.detail,
        }
        for position, stage in enumerate(verdict.stages)
    ]
    if stages:
        connection.execute(insert(VerdictStageRecord), stages)
    return verdict_id


def _measurement_row(connection: Connection, measurement: Measurement) -> int:
    values = {
        "median_ms": measurement.median_ms,
        "low_ms": measurement.low_ms,
        "high_ms": measurement.high_ms,
        "regime": measurement.regime.value,
        "clock": measurement.clock,
        "sample_count": len(measurement.samples_ms),
        "samples_ms": list(measurement.samples_ms),
    } | _known(measurement.conditions)
    return _add(connection, MeasurementRecord, values)


def _known(conditions: Conditions) -> dict[str, Any]:
    return {name: value for name, value in vars(conditions).items() if value is not None}


def _by_digest(connection: Connection, table: type[DeviceRecord | EnvironmentRecord], value: object) -> int:
    """The row that has a value's attributes in its columns of the same names."""
    parts = {name: getattr(value, name) for name in digested_columns(table)}
    return _find_or_create(connection, table, {"digest": digest_of(parts)}, parts)[0]


def _digest(table: type[DeviceRecord | EnvironmentRecord], value: object) -> str:
    return digest_of({name: getattr(value, name) for name in digested_columns(table)})


def digested_columns(table: type[DeviceRecord | EnvironmentRecord]) -> list[str]:
    """The columns that such a row's digest is made of."""
    return [column.name for column in table.__table__.columns if column.name not in ("id", "digest")]


def digest_of(parts: Mapping[str, Any]) -> str:
    """The digest of a device's or an environment's row, from its other columns by name.

    What is NULL is left out, so that a row keeps its digest when its table gets another column.
    """
    known = {name: value for name, value in parts.items() if value is not None}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _add(connection: Connection, table: type[Base], values: Mapping[str, Any]) -> int:
    return int(connection.execute(insert(table).returning(table.__table__.c.id), values).scalar_one())


def _find_or_create(
    connection: Connection, table: type[Base], identity: Mapping[str, Any], rest: Mapping[str, Any]
) -> tuple[int, bool]:
    """The number of the row of that identity, and whether it is new."""
    number = table.__table__.c.id
    wanted = select(number).where(*(table.__table__.c[name] == value for name, value in identity.items()))
    found = connection.scalar(wanted)
    if found is not None:
        return int(found), False
    # Another writer may have been first since; on PostgreSQL writers do not wait for each other.
    created = connection.scalar(unless_there(connection, table).returning(number), {**identity, **rest})
    if created is not None:
        return int(created), True
    return int(connection.execute(wanted).scalar_one()), False


def unless_there(connection: Connection, table: type[Base]) -> sqlite.Insert | postgresql.Insert:
    """Adding rows that another writer may be adding at this moment; on PostgreSQL writers do not wait."""
    creation = sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)
    return creation.on_conflict_do_nothing()
