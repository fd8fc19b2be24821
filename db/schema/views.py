"""The views for people who ask with SQL, and what they share with the questions in Python.

Which trials stand, which of them are best, and what belongs to a trial are stated here once: `best` the view is
`winners` the statement. A change here needs another revision; a test says so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Dialect,
    Label,
    Select,
    SQLColumnExpression,
    Subquery,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    null,
    select,
    table,
    text,
    union_all,
)
from sqlalchemy.orm import aliased

from tunebench.db.schema import tables
from tunebench.db.schema.columns import Moment
from tunebench.tuner.result import CacheRegime, TrialStatus

AnySelect: TypeAlias = Select[*tuple[Any, ...]]
Condition: TypeAlias = ColumnElement[bool]

CORRECT: Condition = tables.Trial.status == literal_column(f"'{TrialStatus.CORRECT.value}'")
"""Spelt out because a partial index serves a constant only, not a bound parameter."""

DEVICE_UUID: ColumnElement[str] = func.coalesce(tables.Environment.__table__.c.device_uuid, tables.Device.uuid)
"""The very device of a trial, in such a query: where that was not recorded, the one that its study began on."""

CONFIRMED_AT: ColumnElement[datetime] = case((tables.Comparison.conclusive, tables.Comparison.concluded_at))
"""When a trial won its newest comparison; NULL where it was inconclusive, so that its speed-ups are unconfirmed."""

CONFIRMED_MS: ColumnElement[float] = case((tables.Comparison.conclusive, tables.Comparison.best_ms))
"""A trial's median in that comparison; NULL likewise."""


def with_parts(query: AnySelect) -> AnySelect:
    """A query of trials, joined with what each is a trial of and the newest comparison that it has won.

    A conclusive comparison comes before one that confirms nothing, see `CONFIRMED_AT`. A trial that was refused since
    has won nothing.
    """
    newer = aliased(tables.Comparison, name="newer")
    newest = (
        select(newer.id)
        .where(newer.study_id == tables.Trial.study_id, newer.configuration_id == tables.Trial.configuration_id)
        .order_by(newer.conclusive.desc(), newer.concluded_at.desc(), newer.id.desc())
        .limit(1)
        .correlate(tables.Trial)
        .scalar_subquery()
    )
    return (
        query.join(tables.Study, tables.Study.id == tables.Trial.study_id)
        .join(tables.Problem, tables.Problem.id == tables.Study.problem_id)
        .join(tables.Device, tables.Device.id == tables.Study.device_id)
        .join(tables.Configuration, tables.Configuration.id == tables.Trial.configuration_id)
        .join(tables.Environment, tables.Environment.id == tables.Trial.environment_id)
        .outerjoin(tables.Comparison, and_(tables.Comparison.id == newest, tables.Trial.median_ms.is_not(None)))
    )


RANKED_TOGETHER = (
    *(tables.Study.kernel, tables.Study.source_digest, tables.Study.problem_id),
    *(tables.Device.name, tables.Device.architecture, tables.Study.compiler),
)
"""Studies that are equal in these are ranked against each other, in each cache regime: they share a board."""


def _boards(conditions: Sequence[Condition], group: Sequence[SQLColumnExpression[Any]] = RANKED_TOGETHER) -> AnySelect:
    """The board of each study that meets the conditions."""
    return (
        select(
            tables.Study.id.label("study_id"), func.min(tables.Study.id).over(partition_by=tuple(group)).label("board")
        )
        .join(tables.Device, tables.Device.id == tables.Study.device_id)
        .where(*conditions)
    )


def winners(
    conditions: Sequence[Condition] = (),
    environments: Collection[int] | None = None,
    group: Sequence[SQLColumnExpression[Any]] = RANKED_TOGETHER,
) -> CTE:
    """The best trials among studies that meet the conditions: a table `picked` of `trial_id`.

    A board's newest conclusive comparison decides for its regime, whatever else there is; inconclusive ones confirm
    nothing. Only for the regimes that are left open are trials looked at: the fastest of every study (one step into an
    index, however many it has), and where there is one, the older comparisons.

    Args:
        environments: only trials that ran in one of these count, and only comparisons made in one; None for all.
        group: what studies of one board have in common.
    """
    eligible = CORRECT
    comparisons = select(
        tables.Comparison.study_id, tables.Comparison.configuration_id, tables.Comparison.concluded_at
    ).where(tables.Comparison.conclusive)
    if environments is not None:
        eligible = and_(CORRECT, tables.Trial.environment_id.in_(environments))
        comparisons = comparisons.where(tables.Comparison.environment_id.in_(environments))
    won = comparisons.subquery("won")
    boards = _boards(conditions, group).cte("boards")
    age = func.rank().over(partition_by=boards.c.board, order_by=won.c.concluded_at.desc())
    aged = (
        select(boards.c.board, won.c.study_id, won.c.configuration_id, age.label("age"))
        .join(won, won.c.study_id == boards.c.study_id)
        .subquery("aged")
    )
    newest = (
        select(aged.c.board, _winner(aged.c.study_id, aged.c.configuration_id, eligible), _never())
        .where(aged.c.age == 1)
        .subquery("newest")
    )
    confirmed = _first_of(newest, tables.Trial.regime).cte("confirmed")
    regimes = union_all(*(select(literal(regime.value).label("regime")) for regime in CacheRegime)).cte("regimes")
    decided = select(literal(1)).where(confirmed.c.board == boards.c.board, confirmed.c.regime == regimes.c.regime)
    fastest = (
        select(tables.Trial.id)
        .where(tables.Trial.study_id == boards.c.study_id, tables.Trial.regime == regimes.c.regime, eligible)
        .order_by(tables.Trial.median_ms, tables.Trial.id)
        .limit(1)
        .correlate(boards, regimes)
        .scalar_subquery()
    )
    undecided = (
        select(boards.c.study_id, boards.c.board, regimes.c.regime, fastest.label("trial_id"))
        .select_from(boards)
        .join(regimes, literal(1) == literal(1))
        .where(~decided.correlate(boards, regimes).exists())
        .cte("undecided")
    )
    screened = select(undecided.c.board, undecided.c.trial_id, _never(), undecided.c.regime)
    older = (
        select(
            undecided.c.board,
            _winner(won.c.study_id, won.c.configuration_id, eligible),
            won.c.concluded_at,
            undecided.c.regime,
        )
        .select_from(undecided)
        .join(won, won.c.study_id == undecided.c.study_id)
    )
    found = undecided.c.trial_id.is_not(None)
    offers = union_all(screened.where(found), older.where(found)).subquery("offers")
    rest = _first_of(offers, offers.c.regime).cte("rest")
    return union_all(select(confirmed.c.trial_id), select(rest.c.trial_id)).cte("picked")


def _never() -> Label[Any]:
    return cast(null(), Moment()).label("confirmed_at")


def _winner(
    study_id: SQLColumnExpression[int], configuration_id: SQLColumnExpression[int], eligible: Condition
) -> Label[int]:
    """The trial of a comparison's configuration; a sub-select, or else SQLite begins with the trials."""
    return (
        select(tables.Trial.id)
        .where(tables.Trial.study_id == study_id, tables.Trial.configuration_id == configuration_id, eligible)
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
        partition_by=(offers.c.board, tables.Trial.regime),
        order_by=(moment.is_(None), moment.desc(), tables.Trial.median_ms, tables.Trial.id),
    )
    placed = (
        select(offers.c.board, tables.Trial.regime, offers.c.trial_id, place.label("place"))
        .select_from(offers)
        .join(tables.Trial, tables.Trial.id == offers.c.trial_id)
        .where(tables.Trial.regime == regime)
        .subquery()
    )
    return select(placed.c.board, placed.c.regime, placed.c.trial_id).where(placed.c.place == 1)


def _named(*columns: Any) -> dict[str, Any]:
    return {column.key: column for column in columns}


FLAT: dict[str, SQLColumnExpression[Any]] = {
    "trial": tables.Trial.id,
    "study": tables.Trial.study_id,
    **_named(tables.Trial.number, tables.Study.kernel),
    "problem": tables.Problem.key,
    **_named(tables.Problem.dtype),
    "device": tables.Device.name,
    **_named(tables.Device.architecture, tables.Study.compiler, tables.Trial.status),
    "configuration": tables.Configuration.key,
    **_named(*(getattr(tables.Trial, f"{name}_ms") for name in ("median", "low", "high"))),
    **_named(tables.Trial.regime, tables.Trial.sample_count, tables.Trial.clock),
    **_named(*(getattr(tables.Comparison, f"{over}{end}") for over in tables.OVER for end in ("", "_low", "_high"))),
    "confirmed_at": CONFIRMED_AT,
    "confirmed_ms": CONFIRMED_MS,
    **_named(tables.Build.registers, tables.Build.spill_bytes, tables.Build.shared_bytes),
    "compile_seconds": tables.Build.seconds,
    **_named(tables.Trial.max_relative_error, tables.Trial.tolerance),
    **_named(tables.Study.source_digest, tables.Study.sampler, tables.Study.seed),
    **{name: column for name, column in tables.ENVIRONMENT_COLUMNS.items() if name != "device_uuid"},
    "device_uuid": DEVICE_UUID,
    "origin": tables.Origin.uid,
    **_named(tables.Trial.recorded_at, tables.Trial.message),
}
"""Everything about a trial, as the views call it; without functions that SQLite runs in trusted schemas only."""


def _trials_flat() -> AnySelect:
    # SQLite promises the name of a view's column only where it is spelt out.
    columns: list[Label[Any]] = [column.label(name) for name, column in FLAT.items()]
    return (
        with_parts(select(*columns).select_from(tables.Trial))
        .join(tables.Origin, tables.Origin.id == tables.Study.origin_id)
        .outerjoin(tables.Build, tables.Build.id == tables.Trial.build_id)
    )


_FLAT = table("trials_flat")


def _best() -> AnySelect:
    # Joined so that the few that are picked come first: SQLite would look through all trials of a kernel's studies.
    joined = text("picked CROSS JOIN trials_flat")
    is_picked = text("trials_flat.trial = picked.trial_id")
    return select(literal_column("trials_flat.*")).select_from(joined).where(is_picked).add_cte(winners())


def _leaderboard() -> AnySelect:
    """Each configuration at its best, by place.

    Studies are put on their boards first, by number, so that a million trials are sorted by numbers and not by text.
    """
    boards = _boards(()).subquery("boards")
    attempts = (
        select(
            tables.Trial.id.label("trial_id"),
            tables.Trial.median_ms,
            tables.Trial.regime,
            boards.c.board,
            func.row_number()
            .over(
                partition_by=(boards.c.board, tables.Trial.regime, tables.Trial.configuration_id),
                order_by=(tables.Trial.median_ms, tables.Trial.id),
            )
            .label("attempt"),
        )
        .select_from(boards)
        .join(tables.Trial, tables.Trial.study_id == boards.c.study_id)
        .where(CORRECT)
        .subquery("attempts")
    )
    board = (attempts.c.board, attempts.c.regime)
    fastest = func.min(attempts.c.median_ms).over(partition_by=board)
    placed = (
        select(
            attempts.c.trial_id,
            func.rank().over(partition_by=board, order_by=attempts.c.median_ms).label("place"),
            (attempts.c.median_ms / fastest).label("times_fastest"),
        )
        .where(attempts.c.attempt == 1)
        .subquery("placed")
    )
    return (
        select(placed.c.place, placed.c.times_fastest, literal_column("trials_flat.*"))
        .select_from(placed)
        .join(_FLAT, literal_column("trials_flat.trial") == placed.c.trial_id)
    )


VIEWS = ("trials_flat", "best", "leaderboard")
"""In the order in which they can be made."""


def views(dialect: Dialect) -> dict[str, str]:
    """The text of each view by its name, in the order in which they can be made."""
    statements = zip(VIEWS, (_trials_flat(), _best(), _leaderboard()), strict=True)
    constants = {"literal_binds": True}
    return {name: str(one.compile(dialect=dialect, compile_kwargs=constants)) for name, one in statements}


def make_views(connection: Connection) -> None:
    """Make the views; one of somebody else's of such a name is left alone, and an error."""
    for name, statement in views(connection.dialect).items():
        connection.exec_driver_sql(f"CREATE VIEW {name} AS {statement}")
