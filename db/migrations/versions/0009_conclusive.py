"""Which comparisons are conclusive: not those whose interval says nothing, or that told equals apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

from tunebench.tuner.result import CONTROL, Baseline, Ratio, is_conclusive
from tunebench.tuner.timing.statistics import control_ratio

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_TABLE = "tunebench_comparisons"


def upgrade() -> None:
    """Add the column, and find out what it is of the comparisons that there are."""
    truth = sa.Boolean().with_variant(sa.Integer(), "sqlite")
    op.add_column(_TABLE, sa.Column("conclusive", truth, server_default=sa.true(), nullable=False))
    connection = op.get_bind()
    if inconclusive := list(_inconclusive(connection)):
        _mark(connection, inconclusive)


def _inconclusive(connection: sa.Connection) -> Iterator[int]:
    over_reference = {
        number: Ratio(*figures)
        for number, *figures in connection.execute(
            sa.text(
                "SELECT comparison_id, ratio, low, high, rounds, confidence FROM tunebench_speed_ups "
                "WHERE baseline = :reference"
            ),
            {"reference": Baseline.REFERENCE.value},
        )
    }
    for number in connection.execute(sa.text(f"SELECT id FROM {_TABLE} ORDER BY id")).scalars().all():
        if not is_conclusive(_control_of(connection, number), over_reference.get(number)):
            yield number


def _control_of(connection: sa.Connection, number: int) -> Ratio | None:
    """How much faster the second copy of a baseline seemed than the first; None where no such copy took part."""
    query = sa.text("SELECT name, CAST(samples_ms AS TEXT) FROM tunebench_contenders WHERE comparison_id = :number")
    rows: list[Any] = list(connection.execute(query, {"number": number}))
    samples = {name: tuple(json.loads(text)) for name, text in rows}
    pivot = next((one.value for one in (Baseline.DEFAULT, Baseline.REFERENCE) if one in samples), None)
    return control_ratio(samples, pivot) if pivot is not None and CONTROL in samples else None


def _mark(connection: sa.Connection, numbers: list[int]) -> None:
    """Change rows whose table refuses changes; the trigger is lifted inside the migration's transaction."""
    change = sa.text(f"UPDATE {_TABLE} SET conclusive = false WHERE id = :number")
    rows = [{"number": number} for number in numbers]
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(f"ALTER TABLE {_TABLE} DISABLE TRIGGER {_TABLE}_append_only"))
        connection.execute(change, rows)
        connection.execute(sa.text(f"ALTER TABLE {_TABLE} ENABLE TRIGGER {_TABLE}_append_only"))
        return
    name = f"{_TABLE}_no_update"
    trigger = connection.execute(
        sa.text("SELECT sql FROM sqlite_master WHERE name = :name"), {"name": name}
    ).scalar_one()
    connection.execute(sa.text(f"DROP TRIGGER {name}"))
    connection.execute(change, rows)
    connection.exec_driver_sql(trigger)
