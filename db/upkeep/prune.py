"""Removing results on purpose, and lifting the triggers that keep rows as they are, which nothing else does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, Table, func, select, text, union

from tunebench.db.connection.database import Database
from tunebench.db.connection.engine import file_of
from tunebench.db.connection.files import back_up
from tunebench.db.queries.statements import study_conditions
from tunebench.db.schema import tables
from tunebench.db.schema.columns import KEY
from tunebench.db.schema.views import CORRECT, AnySelect, Condition, winners
from tunebench.tuner.empty import require_said
from tunebench.tuner.errors import UserError

_GOING = Table(
    "tunebench_pruned",
    MetaData(),
    *(Column(name, KEY) for name in ("id", "study_id", "configuration_id", "build_id")),
    prefixes=["TEMPORARY"],
)
"""The trials that go, with what they refer to."""

_ORPHANS = {"builds": "build_id", "configurations": "configuration_id", "studies": "study_id"}
"""Tables whose rows go with the last trial that refers to them, and the trials' column that does."""

# In an order in which no row loses a row that it refers to. Writers take the tables in the opposite order.
_STEPS = {
    "tunebench_comparisons": "(study_id, configuration_id) IN "
    "(SELECT study_id, configuration_id FROM tunebench_pruned)",
    "tunebench_trials": "id IN (SELECT id FROM tunebench_pruned)",
} | {
    f"tunebench_{table}": f"id IN (SELECT {column} FROM tunebench_pruned) "
    f"AND NOT EXISTS (SELECT 1 FROM tunebench_trials t WHERE t.{column} = tunebench_{table}.id)"
    for table, column in _ORPHANS.items()
}


@dataclass(frozen=True)
class Pruning:
    """The choice of results that are to go.

    Attributes:
        kernel, source: only of this kernel; only of sources whose digest begins so.
        before: only trials recorded before this moment, which has a time zone.
        winners: also the best trials and all that have won a comparison, with those comparisons.
    """

    kernel: str | None = None
    source: str | None = None
    before: datetime | None = None
    winners: bool = False

    def __post_init__(self) -> None:
        require_said("kernel", self.kernel)
        require_said("source", self.source)


@dataclass(frozen=True)
class Pruned:
    """The result of a pruning, or of a rehearsal.

    Attributes:
        trials, studies: trials that go, and studies that have none left then.
        winners_kept: trials that meet the conditions and stay because they are the best, or have won a comparison.
        backup: the copy of the file as it was; None where nothing was removed, none was asked for, or on a server.
    """

    trials: int
    studies: int
    winners_kept: int
    backup: Path | None = None


def prune(database: Database, pruning: Pruning, *, dry_run: bool = True, backup: bool = True) -> Pruned:
    """Remove trials with all that only they refer to, in one transaction.

    Devices, problems and environments stay, and so do the copies for Optuna's tools, which the next run of a study
    makes anew. A study that loses trials can go on: it may try a configuration again that it has forgotten.

    Args:
        dry_run: only count.
        backup: first copy a SQLite file beside itself.

    Raises:
        UserError: no condition is given.
        DatabaseError: the database cannot be read, written or copied.
    """
    if pruning.kernel is None and pruning.source is None and pruning.before is None:
        raise UserError("this would remove every result: name a kernel, or say which with --source or --before")
    if dry_run:
        with database.reading() as connection:
            return _count(connection, pruning)
    with database.writing() as connection:
        if connection.dialect.name == "postgresql":
            # Whoever records waits until this is over, and what was counted is what goes.
            connection.execute(text(f"LOCK TABLE {', '.join(reversed(_STEPS))} IN SHARE ROW EXCLUSIVE MODE"))
        pruned = _count(connection, pruning)
        if not pruned.trials:
            return pruned
        file = file_of(database.url)
        copy = back_up(file, "before-prune") if backup and file is not None else None
        _remove(connection, pruning)
    return Pruned(pruned.trials, pruned.studies, pruned.winners_kept, copy)


def _conditions(pruning: Pruning) -> list[Condition]:
    of_studies = study_conditions({"kernel": pruning.kernel})
    if pruning.source is not None:
        of_studies.append(tables.Study.source_digest.startswith(pruning.source, autoescape=True))
    conditions = [tables.Trial.study_id.in_(select(tables.Study.id).where(*of_studies))] if of_studies else []
    return conditions + ([tables.Trial.recorded_at < pruning.before] if pruning.before is not None else [])


def _going(pruning: Pruning) -> AnySelect:
    """Return the trials that go, in the columns of `_GOING`."""
    going = select(*(getattr(tables.Trial, column.name) for column in _GOING.columns)).where(*_conditions(pruning))
    if pruning.winners:
        return going
    confirmed = (
        select(tables.Trial.id)
        .join(
            tables.Comparison,
            (tables.Comparison.study_id == tables.Trial.study_id)
            & (tables.Comparison.configuration_id == tables.Trial.configuration_id),
        )
        .where(tables.Comparison.conclusive, CORRECT)
    )
    kept = union(select(winners([]).c.trial_id), confirmed).subquery("kept")
    return going.where(tables.Trial.id.not_in(select(kept)))


def _count(connection: Connection, pruning: Pruning) -> Pruned:
    meant = connection.scalar(select(func.count()).select_from(tables.Trial).where(*_conditions(pruning))) or 0
    trials = func.count().label("trials")
    going = _going(pruning).subquery("going")
    of_studies = connection.execute(select(going.c.study_id, trials).group_by(going.c.study_id)).all()
    there = connection.execute(select(tables.Trial.study_id, trials).group_by(tables.Trial.study_id)).all()
    in_all = {study_id: count for study_id, count in there}  # noqa: C416
    emptied = sum(count == in_all[study_id] for study_id, count in of_studies)
    gone = sum(count for _, count in of_studies)
    return Pruned(trials=gone, studies=emptied, winners_kept=meant - gone)


def _remove(connection: Connection, pruning: Pruning) -> None:
    _GOING.create(connection)
    connection.execute(_GOING.insert().from_select([column.name for column in _GOING.columns], _going(pruning)))
    # Nothing else asks for the trials of a build, so that no index for it is kept.
    connection.execute(text("CREATE INDEX tunebench_prune_builds ON tunebench_trials (build_id)"))
    ending = "append_only" if connection.dialect.name == "postgresql" else "no_delete"
    with triggers_lifted(connection, {table: f"{table}_{ending}" for table in _STEPS}):
        for table, condition in _STEPS.items():
            connection.execute(text(f"DELETE FROM {table} WHERE {condition}"))
    connection.execute(text("DROP INDEX tunebench_prune_builds"))
    _GOING.drop(connection)


@contextmanager
def triggers_lifted(connection: Connection, names: Mapping[str, str]) -> Iterator[None]:
    """Allow what these triggers refuse inside this transaction; both ways roll back with it.

    Args:
        names: of the triggers, by table.
    """
    if connection.dialect.name == "postgresql":
        for deed in ("DISABLE", "ENABLE"):
            for table, trigger in names.items():
                connection.execute(text(f"ALTER TABLE {table} {deed} TRIGGER {trigger}"))
            if deed == "DISABLE":
                yield
        return
    found = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"))
    definitions = {name: sql for name, sql in found if name in names.values()}
    for name in definitions:
        connection.execute(text(f"DROP TRIGGER {name}"))
    yield
    for sql in definitions.values():
        connection.exec_driver_sql(sql)
