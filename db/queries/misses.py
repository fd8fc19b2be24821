"""Problems that were run without evidence: counting them, and listing them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import exists, select
from sqlalchemy.dialects import postgresql, sqlite

from tunebench.db.connection.database import Database
from tunebench.db.entries.writer import Writer
from tunebench.db.queries.rows import Missed, MissRow
from tunebench.db.queries.statements import PROBLEM, problem_in
from tunebench.db.schema import tables
from tunebench.db.schema.views import CORRECT

_ALIKE = ("kernel", "source_digest", "path", "architecture", "calls", "first_at", "last_at", "served")
"""Columns that a row of an answer has under the same names."""


def add_misses(database: Database, found: Iterable[Missed]) -> None:
    """Add to the counts."""
    now = datetime.now(UTC)
    with database.writing() as connection:
        writer = Writer(connection)
        inserting = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        for one in found:
            row: dict[str, Any] = vars(one) | {"first_at": now, "last_at": now}
            row |= {"problem_id": writer.problem(row.pop("problem")), "device": row.pop("device_name")}
            adding = inserting(tables.Miss).values(row)
            more: dict[str, Any] = {name: adding.excluded[name] for name in ("last_at", "path", "served")}
            more["calls"] = tables.Miss.calls + adding.excluded.calls
            identity = ("kernel", "source_digest", "problem_id", "device", "architecture")
            connection.execute(adding.on_conflict_do_update(index_elements=identity, set_=more))


def misses(
    database: Database, *, kernel: str | None = None, device: str | None = None, tuned: bool = False
) -> list[MissRow]:
    """Return the problems that were run without evidence, the most frequent first.

    Args:
        device: a device's name.
        tuned: also those that there are results for by now.
    """
    has_results = exists(
        select(tables.Trial.id)
        .join(tables.Study, tables.Study.id == tables.Trial.study_id)
        .join(tables.Device, tables.Device.id == tables.Study.device_id)
        .where(
            CORRECT,
            tables.Study.kernel == tables.Miss.kernel,
            tables.Study.source_digest == tables.Miss.source_digest,
            tables.Study.problem_id == tables.Miss.problem_id,
            tables.Device.name == tables.Miss.device,
        )
        .correlate(tables.Miss)
    )
    asked = {tables.Miss.kernel: kernel, tables.Miss.device: device}
    conditions = [column == value for column, value in asked.items() if value is not None]
    conditions += [] if tuned else [~has_results]
    query = (
        select(
            *(getattr(tables.Miss, name) for name in _ALIKE), tables.Miss.device, *PROBLEM, has_results.label("tuned")
        )
        .join(tables.Problem, tables.Problem.id == tables.Miss.problem_id)
        .where(*conditions)
        .order_by(tables.Miss.calls.desc(), tables.Miss.id)
    )
    with database.reading() as connection:
        return [
            MissRow(
                **{name: getattr(row, name) for name in _ALIKE},
                problem=problem_in(row),
                device_name=row.device,
                tuned=bool(row.tuned),
            )
            for row in connection.execute(query)
        ]
