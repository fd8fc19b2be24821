"""Where the kernel of a trial was, in its environment."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column; of older rows nothing is known."""
    op.add_column("tunebench_environments", sa.Column("kernel_path", sa.Text(), nullable=True))
