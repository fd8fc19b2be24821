"""Problems that were served without evidence, and how often: counts, which unlike results are changed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_WORDS = sa.Text()
_MOMENT = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "tunebench_misses",
        sa.Column("id", _WHOLE, nullable=False),
        sa.Column("kernel", _WORDS, nullable=False),
        sa.Column("source_digest", _WORDS, nullable=False),
        sa.Column("path", _WORDS, nullable=False),
        sa.Column("problem_id", _WHOLE, nullable=False),
        sa.Column("device", _WORDS, nullable=False),
        sa.Column("architecture", _WORDS, nullable=False),
        sa.Column("calls", _WHOLE, nullable=False),
        sa.Column("first_at", _MOMENT, nullable=False),
        sa.Column("last_at", _MOMENT, nullable=False),
        sa.CheckConstraint("calls > 0", name=op.f("ck_tunebench_misses_calls")),
        sa.ForeignKeyConstraint(["problem_id"], ["tunebench_problems.id"], name="fk_tunebench_misses_problem_id"),
        sa.PrimaryKeyConstraint("id", name="pk_tunebench_misses"),
        sa.UniqueConstraint(
            "kernel", "source_digest", "problem_id", "device", "architecture", name="uq_tunebench_misses_identity"
        ),
        sqlite_strict=True,
    )
