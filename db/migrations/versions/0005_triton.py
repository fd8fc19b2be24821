"""The compiler `triton`, in the constraints that list the compilers."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_BEFORE = "compiler IN ('nvrtc', 'cpu', 'inline')"
_AFTER = "compiler IN ('nvrtc', 'cpu', 'inline', 'triton')"
_TABLES = ("builds", "studies")


def upgrade() -> None:
    """Change the constraints; every row that there is meets the new ones.

    On SQLite their text is changed where the schema keeps it, as its documentation has it for changes that no row
    depends on (https://www.sqlite.org/lang_altertable.html, section 7). Rebuilding tables would take triggers.
    """
    if op.get_bind().dialect.name == "postgresql":
        for table in _TABLES:
            op.drop_constraint(op.f(f"ck_tunebench_{table}_compiler"), f"tunebench_{table}", type_="check")
            op.create_check_constraint(op.f(f"ck_tunebench_{table}_compiler"), f"tunebench_{table}", _AFTER)
        return
    version = int(op.get_bind().exec_driver_sql("PRAGMA schema_version").scalar_one())
    op.get_bind().exec_driver_sql("PRAGMA writable_schema = ON")
    for table in _TABLES:
        op.get_bind().exec_driver_sql(
            "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = ?",
            (_BEFORE, _AFTER, f"tunebench_{table}"),
        )
    op.get_bind().exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    op.get_bind().exec_driver_sql("PRAGMA writable_schema = RESET")
