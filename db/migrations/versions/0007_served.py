"""What served the problems that were served without evidence: the winner of the duel, with its figures."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column; of what was counted before nothing is known."""
    op.add_column("tunebench_misses", sa.Column("served", sa.Text(), nullable=True))
