"""The state of the device while a time was taken: control call, clocks, temperature, throttling, other processes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_NUMBER: sa.types.TypeEngine[float] = sa.DOUBLE_PRECISION().with_variant(sa.REAL(), "sqlite")

_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("control_ms", _NUMBER),
    ("sm_clock_mhz", _WHOLE),
    ("memory_clock_mhz", _WHOLE),
    ("temperature_c", _WHOLE),
    ("throttle_reasons", sa.Text()),
    ("foreign_processes", _WHOLE),
)


def upgrade() -> None:
    """Add the columns; of what was measured before, nothing is known."""
    for table in ("tunebench_measurements", "tunebench_comparisons"):
        for name, kind in _COLUMNS:
            op.add_column(table, sa.Column(name, kind, nullable=True))
