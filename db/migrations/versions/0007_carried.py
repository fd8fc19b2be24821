"""What a study began with from earlier ones, and what a trial's run depends on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add two columns; of older rows nothing is known."""
    json = sa.JSON().with_variant(sa.Text(), "sqlite")
    op.add_column("tunebench_studies", sa.Column("carried", json, nullable=True))
    op.add_column("tunebench_trials", sa.Column("run_key", sa.Text(), nullable=True))
