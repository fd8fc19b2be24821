"""A comparison says which of its baselines could not be timed, and why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column; on SQLite that leaves the table's triggers as they are."""
    kind = sa.JSON().with_variant(sa.Text(), "sqlite")
    op.add_column("tunebench_comparisons", sa.Column("missing_baselines", kind, nullable=True))
