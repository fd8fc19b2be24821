"""Making the tables with their triggers, the database's own origin, and the views."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from sqlalchemy import Connection, insert, text

from tunebench.db.schema import tables
from tunebench.db.schema.views import make_views

_MESSAGE = "results are only ever added, never changed or removed"

_KEPT = ("id", "study_id", "number", "configuration_id", "environment_id", "recorded_at")
_REFUSED = " AND ".join(
    ("OLD.status = 'correct' AND NEW.status = 'correctness'", *(f"NEW.{name} = OLD.{name}" for name in _KEPT))
)
"""The one change that is legal: a correct trial is refused."""

APPEND_ONLY = tuple(table for table in tables.Base.metadata.tables if table != tables.Miss.__tablename__)
"""The tables whose rows are neither changed nor removed."""


def create(connection: Connection, *, own_origin: bool = True) -> None:
    """Make everything that there is in an empty database.

    Args:
        own_origin: with the row of the database's own origin.
    """
    if connection.dialect.name == "postgresql":
        for table in tables.Base.metadata.tables.values():
            for index in table.indexes:
                some = index.dialect_options["sqlite"]["where"]
                index.dialect_options["postgresql"]["where"] = some
    tables.Base.metadata.create_all(connection, checkfirst=False)
    connection.execute(text(f"CREATE TABLE {tables.VERSION_TABLE} (version_num TEXT NOT NULL PRIMARY KEY)"))
    connection.execute(text(f"INSERT INTO {tables.VERSION_TABLE} VALUES (:revision)"), {"revision": tables.REVISION})
    if own_origin:
        connection.execute(insert(tables.Origin).values(uid=uuid.uuid4().hex, created_at=datetime.now(UTC)))
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(
            "CREATE OR REPLACE FUNCTION tunebench_refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{_MESSAGE}'; END $$"
        )
    for name, statement in triggers(connection.dialect.name).items():
        connection.exec_driver_sql(f"CREATE TRIGGER {name} {statement}")
    make_views(connection)


def triggers(dialect: str) -> dict[str, str]:
    """Return the definitions of the triggers that refuse changes, by their names.

    A program that removes results on purpose lifts this inside its own transaction: on SQLite it drops the table's
    triggers and creates them again from their text in `sqlite_schema`, on PostgreSQL it disables and enables them. Both
    roll back with the transaction.
    """
    found = {}
    trials = tables.Trial.__tablename__
    for table in APPEND_ONLY:
        if dialect == "sqlite":
            unless = f" WHEN NOT ({_REFUSED})" if table == trials else ""
            refuse = f"BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END"
            found[f"{table}_no_update"] = f"BEFORE UPDATE ON {table}{unless} {refuse}"
            found[f"{table}_no_delete"] = f"BEFORE DELETE ON {table} {refuse}"
            continue
        deeds = "DELETE OR TRUNCATE" if table == trials else "UPDATE OR DELETE OR TRUNCATE"
        refuse = "EXECUTE FUNCTION tunebench_refuse()"
        found[f"{table}_append_only"] = f"BEFORE {deeds} ON {table} FOR EACH STATEMENT {refuse}"
        if table == trials:
            found[f"{table}_refused_only"] = f"BEFORE UPDATE ON {table} FOR EACH ROW WHEN (NOT ({_REFUSED})) {refuse}"
    return found
