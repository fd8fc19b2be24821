"""The very device of each result: devices of one model share a study."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column; what was recorded before is of the device that its study began on."""
    op.add_column("tunebench_environments", sa.Column("device_uuid", sa.Text(), nullable=True))
