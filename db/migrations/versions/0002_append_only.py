"""Rows are added, never changed or removed."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TABLES = (
    "origins",
    "devices",
    "environments",
    "problems",
    "configurations",
    "studies",
    "builds",
    "build_figures",
    "verdicts",
    "verdict_stages",
    "measurements",
    "trials",
    "comparisons",
    "contenders",
    "speed_ups",
)

_MESSAGE = "results are only ever added, never changed or removed"


def upgrade() -> None:
    """Refuse UPDATE and DELETE on every table.

    A program that removes results on purpose lifts this inside its own transaction: on SQLite it drops the table's
    triggers and creates them again from their text in `sqlite_schema`, on PostgreSQL it disables and enables them. Both
    roll back with the transaction. A migration that rebuilds a table on SQLite has to create its triggers again.
    """
    if op.get_bind().dialect.name == "sqlite":
        for table in _TABLES:
            for deed in ("update", "delete"):
                op.execute(
                    f"CREATE TRIGGER tunebench_{table}_no_{deed} BEFORE {deed.upper()} ON tunebench_{table} "
                    f"BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END"
                )
        return
    op.execute(
        "CREATE FUNCTION tunebench_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_MESSAGE}'; END $$"
    )
    for table in _TABLES:
        op.execute(
            f"CREATE TRIGGER tunebench_{table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON tunebench_{table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION tunebench_refuse()"
        )
