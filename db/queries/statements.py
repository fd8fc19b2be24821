"""The SQL behind the questions: which trials are meant, then everything about those few.

The two are apart so that the first works on indexes alone. On SQLite, without statistics, what it visits is what its
text says: a study's conditions stand in a subquery over the small tables, and its trials are then taken from an index
in the order wanted, which lets a limit end the search early however many trials there are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Row,
    and_,
    false,
    func,
    literal,
    or_,
    select,
)

from tunebench.db.entries.decode import configuration_of, problem_of, regime_of, status_of
from tunebench.db.schema.tables import (
    ComparisonTable,
    ConfigurationTable,
    DeviceTable,
    LateRefusalTable,
    MeasurementTable,
    ProblemTable,
    StudyTable,
    TrialTable,
)
from tunebench.db.schema.views import (
    MESSAGE,
    RECORDED_CORRECT,
    SPEED_UPS,
    STANDS,
    STATUS,
    WINNER,
    AnySelect,
    Condition,
    with_parts,
)
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Baseline, Ratio, TrialStatus

_FEW = 50_000
"""So many trials are found through an index and sorted in some ten milliseconds."""

_RATIO = ("ratio", "low", "high", "rounds", "confidence")
_RATIO_OF = {baseline: attrgetter(*(f"{baseline.value}_{part}" for part in _RATIO)) for baseline in Baseline}
"""The values of a ratio in a row of `everything_about`."""


def study_conditions(
    *,
    study_columns: Mapping[str, object],
    problem_columns: Mapping[str, object],
    device_columns: Mapping[str, object],
) -> list[Condition]:
    """Conditions on a study, from wanted values by column of its own, its problem's and its device's row.

    Args:
        study_columns, problem_columns, device_columns: None for a column whose value does not matter.
    """
    conditions = _equal(StudyTable, study_columns)
    for table, reference, columns in (
        (ProblemTable, StudyTable.problem_id, problem_columns),
        (DeviceTable, StudyTable.device_id, device_columns),
    ):
        if parts := _equal(table, columns):
            conditions.append(reference.in_(select(table.id).where(*parts)))
    return conditions


def _equal(table: Any, columns: Mapping[str, object]) -> list[Condition]:
    return [getattr(table, name) == value for name, value in columns.items() if value is not None]


def with_status(connection: Connection, statuses: Collection[TrialStatus]) -> Condition:
    """Trials that stand in one of these ways.

    Where nothing was refused late, as nearly always, that is how they were recorded, which an index serves.
    """
    recorded = TrialTable.status.in_([status.value for status in statuses])
    late = select(LateRefusalTable.trial_id)
    changed = {TrialStatus.CORRECT, TrialStatus.CORRECTNESS} & set(statuses)
    if len(changed) != 1 or connection.scalar(late.limit(1)) is None:
        return recorded
    if TrialStatus.CORRECTNESS in changed:
        return or_(recorded, TrialTable.id.in_(late))
    return and_(recorded, STANDS)


def unless_many(connection: Connection, condition: Condition) -> Condition:
    """The same condition on trials, in a form that is fast whether it holds for few trials or for many.

    Few are looked up by the condition's own index; many are met soon enough on the way through the newest.
    """
    some = select(literal(1)).select_from(TrialTable).where(condition).limit(_FEW + 1)
    if (connection.scalar(select(func.count()).select_from(some.subquery())) or 0) > _FEW:
        return condition
    # An expression that no index serves, and a sub-select that its own index does.
    return TrialTable.id.in_(select(TrialTable.id).where(condition).correlate(None))


def of_many(connection: Connection, studies: AnySelect) -> Condition:
    """Trials of these studies, in a form that is fast in the order of times whether they have few trials or many.

    Few are found by study and sorted; of many, a walk through all in that order soon meets enough.
    """
    condition = TrialTable.study_id.in_(studies)
    some = select(literal(1)).select_from(TrialTable).where(condition, RECORDED_CORRECT).limit(_FEW + 1)
    if (connection.scalar(select(func.count()).select_from(some.subquery())) or 0) > _FEW:
        # An expression that the index by study does not serve.
        return (TrialTable.study_id + 0).in_(studies)
    return condition


def with_values(connection: Connection, values: Mapping[str, Value | Collection[Value]]) -> Condition:
    """Trials whose configuration has these values; of several values of one tunable, any.

    A configuration's key is canonical JSON, so that a pair stands in it exactly as it is written here, followed by a
    comma or the closing brace; inside a text value its quotes would be escaped.
    """
    position = func.instr if connection.dialect.name == "sqlite" else func.strpos
    key = ConfigurationTable.key
    found = [
        or_(
            false(),
            *(position(key, Configuration({name: value}).key[1:-1] + end) > 0 for value in legal for end in (",", "}")),
        )
        for name, legal in ((name, [one] if isinstance(one, Value) else one) for name, one in values.items())
    ]
    return TrialTable.configuration_id.in_(select(ConfigurationTable.id).where(*found))


def everything_about(picked: CTE) -> AnySelect:
    """All that a `TrialRow` says of the trials in `picked.trial_id`."""
    query = (
        select(
            TrialTable.id,
            TrialTable.study_id,
            TrialTable.number,
            StudyTable.kernel,
            StudyTable.source_digest,
            ProblemTable.key.label("problem_key"),
            ProblemTable.dtype,
            ProblemTable.axes,
            ProblemTable.options,
            DeviceTable.name.label("device_name"),
            DeviceTable.uuid.label("device_uuid"),
            DeviceTable.architecture,
            StudyTable.compiler,
            StudyTable.sampler,
            StudyTable.seed,
            STATUS.label("status"),
            ConfigurationTable.key.label("configuration_key"),
            MeasurementTable.median_ms,
            MeasurementTable.low_ms,
            MeasurementTable.high_ms,
            MeasurementTable.regime,
            TrialTable.recorded_at,
            MESSAGE.label("message"),
            ComparisonTable.concluded_at,
            WINNER.median_ms.label("confirmed_ms"),
            *(column for baseline in Baseline for column in _ratio_columns(baseline)),
        )
        .select_from(picked)
        .join(TrialTable, TrialTable.id == picked.c.trial_id)
    )
    return with_parts(query)


def _ratio_columns(baseline: Baseline) -> list[ColumnElement[Any]]:
    return [getattr(SPEED_UPS[baseline], part).label(f"{baseline.value}_{part}") for part in _RATIO]


def fields_of(row: Row[*tuple[Any, ...]], problems: dict[str, Problem]) -> dict[str, Any]:
    """A `TrialRow`'s fields from a row of `everything_about`.

    Args:
        problems: those of earlier rows by key, added to here.

    Raises:
        DatabaseError: the row holds what tunebench does not write.
    """
    key = row.problem_key
    if key not in problems:
        problems[key] = problem_of(key, row.dtype, row.axes, row.options)
    return {
        "trial_id": row.id,
        "study_id": row.study_id,
        "number": row.number,
        "kernel": row.kernel,
        "source_digest": row.source_digest,
        "problem": problems[key],
        "device_name": row.device_name,
        "device_uuid": row.device_uuid,
        "architecture": row.architecture,
        "compiler": row.compiler,
        "sampler": row.sampler,
        "seed": row.seed,
        "status": status_of(row.status),
        "configuration": configuration_of(row.configuration_key),
        "median_ms": row.median_ms,
        "low_ms": row.low_ms,
        "high_ms": row.high_ms,
        "regime": None if row.regime is None else regime_of(row.regime),
        "recorded_at": row.recorded_at,
        "message": row.message,
        "confirmed_at": row.concluded_at,
        "confirmed_ms": row.confirmed_ms,
        **{f"over_{baseline.value}": _ratio(row, baseline) for baseline in Baseline},
    }


def _ratio(row: Row[*tuple[Any, ...]], baseline: Baseline) -> Ratio | None:
    values = _RATIO_OF[baseline](row)
    return None if values[0] is None else Ratio(*values)
