"""The version of cuDNN, in the environment of a trial."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column; of older rows nothing is known."""
    op.add_column("tunebench_environments", sa.Column("cudnn", sa.Text(), nullable=True))
