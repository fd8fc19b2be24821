"""The SQL behind the questions: which trials are meant, then everything about those few.

The two are apart so that the first works on indexes alone. On SQLite, without statistics, what it visits is what its
text says: a study's conditions stand in a subquery over the small tables, and its trials are then taken from an index
in the order wanted, which lets a limit end the search early however many trials there are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Label,
    Row,
    Select,
    SQLColumnExpression,
    Subquery,
    and_,
    case,
    cast,
    exists,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    union_all,
)
from sqlalchemy.orm import aliased

from tunebench.db.entries.decode import configuration_of, problem_of, regime_of, status_of
from tunebench.db.schema.columns import Moment
from tunebench.db.schema.tables import (
    ComparisonRecord,
    ConfigurationRecord,
    DeviceRecord,
    LateRefusalRecord,
    MeasurementRecord,
    ProblemRecord,
    SpeedUpRecord,
    StudyRecord,
    TrialRecord,
)
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Baseline, CacheRegime, Ratio, TrialStatus, late_message
from tunebench.tuner.space import Configuration, Value

AnySelect: TypeAlias = Select[*tuple[Any, ...]]
Condition: TypeAlias = ColumnElement[bool]

_FEW = 50_000
"""So many trials are found through an index and sorted in some ten milliseconds."""

_STANDS: Condition = ~exists().where(LateRefusalRecord.trial_id == TrialRecord.id)

_RECORDED_CORRECT: Condition = TrialRecord.status == literal_column(f"'{TrialStatus.CORRECT.value}'")
"""Spelt out because a partial index serves a constant only, not a bound parameter."""

CORRECT: Condition = and_(_RECORDED_CORRECT, _STANDS)

STATUS: ColumnElement[str] = case(
    (LateRefusalRecord.trial_id.is_not(None), literal_column(f"'{TrialStatus.CORRECTNESS.value}'")),
    else_=TrialRecord.status,
)
"""A trial's status as it stands, where its late refusal is joined."""

_SPEED_UPS = {baseline: aliased(SpeedUpRecord, name=f"over_{baseline.value}") for baseline in Baseline}
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
    conditions = _equal(StudyRecord, study_columns)
    for table, reference, columns in (
        (ProblemRecord, StudyRecord.problem_id, problem_columns),
        (DeviceRecord, StudyRecord.device_id, device_columns),
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
    recorded = TrialRecord.status.in_([status.value for status in statuses])
    late = select(LateRefusalRecord.trial_id)
    changed = {TrialStatus.CORRECT, TrialStatus.CORRECTNESS} & set(statuses)
    if len(changed) != 1 or connection.scalar(late.limit(1)) is None:
        return recorded
    if TrialStatus.CORRECTNESS in changed:
        return or_(recorded, TrialRecord.id.in_(late))
    return and_(recorded, _STANDS)


def unless_many(connection: Connection, condition: Condition) -> Condition:
    """The same condition on trials, in a form that is fast whether it holds for few trials or for many.

    Few are looked up by the condition's own index; many are met soon enough on the way through the newest.
    """
    some = select(literal(1)).select_from(TrialRecord).where(condition).limit(_FEW + 1)
    if (connection.scalar(select(func.count()).select_from(some.subquery())) or 0) > _FEW:
        return condition
    # An expression that no index serves, and a sub-select that its own index does.
    return TrialRecord.id.in_(select(TrialRecord.id).where(condition).correlate(None))


def of_many(connection: Connection, studies: AnySelect) -> Condition:
    """Trials of these studies, in a form that is fast in the order of times whether they have few trials or many.

    Few are found by study and sorted; of many, a walk through all in that order soon meets enough.
    """
    condition = TrialRecord.study_id.in_(studies)
    some = select(literal(1)).select_from(TrialRecord).where(condition, _RECORDED_CORRECT).limit(_FEW + 1)
    if (connection.scalar(select(func.count()).select_from(some.subquery())) or 0) > _FEW:
        # An expression that the index by study does not serve.
        return (TrialRecord.study_id + 0).in_(studies)
    return condition


def with_values(connection: Connection, values: Mapping[str, Value]) -> Condition:
    """Trials whose configuration has these values.

    A configuration's key is canonical JSON, so that a pair stands in it exactly as it is written here, followed by a
    comma or the closing brace; inside a text value its quotes would be escaped.
    """
    position = func.instr if connection.dialect.name == "sqlite" else func.strpos
    key = ConfigurationRecord.key
    pairs = [Configuration({name: value}).key[1:-1] for name, value in values.items()]
    found = [or_(*(position(key, pair + end) > 0 for end in (",", "}"))) for pair in pairs]
    return TrialRecord.configuration_id.in_(select(ConfigurationRecord.id).where(*found))


def winners(conditions: Sequence[Condition]) -> CTE:
    """The best trials among studies that meet the conditions: a table `picked` of `trial_id`.

    Studies whose results are ranked against each other share a board. A board's newest comparison decides for its
    regime, whatever else there is; only for the regimes that are left open are trials looked at: the fastest of every
    study (one step into an index, however many it has), and where there is one, the older comparisons.
    """
    group = (
        *(StudyRecord.kernel, StudyRecord.source_digest, StudyRecord.problem_id),
        *(DeviceRecord.name, DeviceRecord.architecture, StudyRecord.compiler),
    )
    boards = (
        select(StudyRecord.id.label("study_id"), func.min(StudyRecord.id).over(partition_by=group).label("board"))
        .join(DeviceRecord, DeviceRecord.id == StudyRecord.device_id)
        .where(*conditions)
        .cte("boards")
    )
    age = func.rank().over(partition_by=boards.c.board, order_by=ComparisonRecord.concluded_at.desc())
    aged = (
        select(boards.c.board, ComparisonRecord.study_id, ComparisonRecord.configuration_id, age.label("age"))
        .join(ComparisonRecord, ComparisonRecord.study_id == boards.c.study_id)
        .subquery("aged")
    )
    newest = (
        select(aged.c.board, _winner(aged.c.study_id, aged.c.configuration_id), _never())
        .where(aged.c.age == 1)
        .subquery("newest")
    )
    confirmed = _first_of(newest, TrialRecord.regime).cte("confirmed")
    regimes = union_all(*(select(literal(regime.value).label("regime")) for regime in CacheRegime)).cte("regimes")
    decided = select(literal(1)).where(confirmed.c.board == boards.c.board, confirmed.c.regime == regimes.c.regime)
    fastest = (
        select(TrialRecord.id)
        .where(TrialRecord.study_id == boards.c.study_id, TrialRecord.regime == regimes.c.regime, CORRECT)
        .order_by(TrialRecord.median_ms, TrialRecord.id)
        .limit(1)
        .correlate(boards, regimes)
        .scalar_subquery()
    )
    undecided = (
        select(boards.c.study_id, boards.c.board, regimes.c.regime, fastest.label("trial_id"))
        .select_from(boards)
        .join(regimes, literal(True))
        .where(~decided.correlate(boards, regimes).exists())
        .cte("undecided")
    )
    screened = select(undecided.c.board, undecided.c.trial_id, _never(), undecided.c.regime)
    older = (
        select(
            undecided.c.board,
            _winner(ComparisonRecord.study_id, ComparisonRecord.configuration_id),
            ComparisonRecord.concluded_at,
            undecided.c.regime,
        )
        .select_from(undecided)
        .join(ComparisonRecord, ComparisonRecord.study_id == undecided.c.study_id)
    )
    found = undecided.c.trial_id.is_not(None)
    offers = union_all(screened.where(found), older.where(found)).subquery("offers")
    rest = _first_of(offers, offers.c.regime).cte("rest")
    return union_all(select(confirmed.c.trial_id), select(rest.c.trial_id)).cte("picked")


def _never() -> Label[Any]:
    return cast(null(), Moment()).label("confirmed_at")


def _winner(study_id: SQLColumnExpression[int], configuration_id: SQLColumnExpression[int]) -> Label[int]:
    """The correct trial of a comparison's configuration; a sub-select, or else SQLite begins with the trials."""
    return (
        select(TrialRecord.id)
        .where(TrialRecord.study_id == study_id, TrialRecord.configuration_id == configuration_id, CORRECT)
        .scalar_subquery()
        .label("trial_id")
    )


def _first_of(offers: Subquery, regime: SQLColumnExpression[Any]) -> AnySelect:
    """The best offer of each board in each regime: confirmed before screened, then newer, then faster.

    Args:
        offers: `board`, `trial_id` and `confirmed_at`.
        regime: of the trial; an offer for another one does not count.
    """
    moment = offers.c.confirmed_at
    place = func.row_number().over(
        partition_by=(offers.c.board, TrialRecord.regime),
        order_by=(moment.is_(None), moment.desc(), TrialRecord.median_ms, TrialRecord.id),
    )
    placed = (
        select(offers.c.board, TrialRecord.regime, offers.c.trial_id, place.label("place"))
        .select_from(offers)
        .join(TrialRecord, TrialRecord.id == offers.c.trial_id)
        .where(TrialRecord.regime == regime)
        .subquery()
    )
    return select(placed.c.board, placed.c.regime, placed.c.trial_id).where(placed.c.place == 1)


def everything_about(picked: CTE) -> AnySelect:
    """All that a `TrialRow` says of the trials in `picked.trial_id`."""
    newer = aliased(ComparisonRecord, name="newer")
    newest = (
        select(newer.id)
        .where(newer.study_id == TrialRecord.study_id, newer.configuration_id == TrialRecord.configuration_id)
        .order_by(newer.concluded_at.desc(), newer.id.desc())
        .limit(1)
        .correlate(TrialRecord)
        .scalar_subquery()
    )
    standing = LateRefusalRecord.trial_id.is_(None)
    query = (
        select(
            TrialRecord.id,
            TrialRecord.study_id,
            TrialRecord.number,
            StudyRecord.kernel,
            StudyRecord.source_digest,
            ProblemRecord.key.label("problem_key"),
            ProblemRecord.dtype,
            ProblemRecord.axes,
            ProblemRecord.options,
            DeviceRecord.name.label("device_name"),
            DeviceRecord.uuid.label("device_uuid"),
            DeviceRecord.architecture,
            StudyRecord.compiler,
            StudyRecord.sampler,
            StudyRecord.seed,
            STATUS.label("status"),
            ConfigurationRecord.key.label("configuration_key"),
            MeasurementRecord.median_ms,
            MeasurementRecord.low_ms,
            MeasurementRecord.high_ms,
            MeasurementRecord.regime,
            TrialRecord.recorded_at,
            TrialRecord.message,
            LateRefusalRecord.stage.label("refusing_stage"),
            LateRefusalRecord.detail.label("refusing_detail"),
            ComparisonRecord.concluded_at,
            *(column for baseline in Baseline for column in _ratio_columns(baseline)),
        )
        .select_from(picked)
        .join(TrialRecord, TrialRecord.id == picked.c.trial_id)
        .join(StudyRecord, StudyRecord.id == TrialRecord.study_id)
        .join(ProblemRecord, ProblemRecord.id == StudyRecord.problem_id)
        .join(DeviceRecord, DeviceRecord.id == StudyRecord.device_id)
        .join(ConfigurationRecord, ConfigurationRecord.id == TrialRecord.configuration_id)
        .outerjoin(LateRefusalRecord, LateRefusalRecord.trial_id == TrialRecord.id)
        # One that was refused late has no time and has won nothing.
        .outerjoin(MeasurementRecord, and_(MeasurementRecord.id == TrialRecord.measurement_id, standing))
        .outerjoin(ComparisonRecord, and_(ComparisonRecord.id == newest, standing))
    )
    for baseline, table in _SPEED_UPS.items():
        over = and_(table.comparison_id == ComparisonRecord.id, table.baseline == baseline.value)
        query = query.outerjoin(table, over)
    return query


def _ratio_columns(baseline: Baseline) -> list[ColumnElement[Any]]:
    return [getattr(_SPEED_UPS[baseline], part).label(f"{baseline.value}_{part}") for part in _RATIO]


def fields_of(row: Row[*tuple[Any, ...]], problems: dict[str, Problem]) -> dict[str, Any]:
    """A `TrialRow`'s fields from a row of `everything_about`.

    Args:
        problems: those of earlier rows by key, added to here.

    Raises:
        DatabaseError: the row holds what tunebench does not write.
    """
    key, stage = row.problem_key, row.refusing_stage
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
        "message": row.message if stage is None else late_message(stage, row.refusing_detail),
        "confirmed_at": row.concluded_at,
        **{f"over_{baseline.value}": _ratio(row, baseline) for baseline in Baseline},
    }


def _ratio(row: Row[*tuple[Any, ...]], baseline: Baseline) -> Ratio | None:
    values = _RATIO_OF[baseline](row)
    return None if values[0] is None else Ratio(*values)
