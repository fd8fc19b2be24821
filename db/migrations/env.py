"""Alembic's entry point; run by `connection.upgrade`, which hands over a connection inside its transaction."""

from __future__ import annotations

from alembic import context

from tunebench.db.schema.tables import TABLE_PREFIX, VERSION_TABLE, Base


def _ours(name: str | None, kind: str, _parents: object) -> bool:
    """Leave Optuna's tables, and anyone else's in the same database, alone."""
    return kind != "table" or (name is not None and name.startswith(TABLE_PREFIX))


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # Optuna's own revision is in `alembic_version` of the same database.
    version_table=VERSION_TABLE,
    include_name=_ours,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
