"""What a study began with from earlier ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column; of older rows nothing is known."""
    json = sa.JSON().with_variant(sa.Text(), "sqlite")
    op.add_column("tunebench_studies", sa.Column("carried", json, nullable=True))
