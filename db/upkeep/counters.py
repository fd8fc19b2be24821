"""Keeping counters with a trial that is recorded already: they add to its document, and change nothing in it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update

from tunebench.db.connection.database import Database
from tunebench.db.entries.codec import document_of
from tunebench.db.schema import tables
from tunebench.db.upkeep.prune import triggers_lifted
from tunebench.tuner.result import LaunchCounters


def keep_counters(database: Database, trial_id: int, counters: Sequence[LaunchCounters]) -> None:
    """Keep counters with a trial in place of those that it had, in one transaction.

    Raises:
        DatabaseError: the database cannot be written.
    """
    table, name = tables.Trial, tables.Trial.__tablename__
    with database.writing() as connection:
        trigger = f"{name}_refused_only" if connection.dialect.name == "postgresql" else f"{name}_no_update"
        query = select(table.document).where(table.id == trial_id).with_for_update()
        document = connection.execute(query).scalar_one() | {"counters": [document_of(one) for one in counters]}
        with triggers_lifted(connection, {name: trigger}):
            connection.execute(update(table).where(table.id == trial_id), {"document": document})
