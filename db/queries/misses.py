"""Problems that were served without evidence: counting them, and asking which there are."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, exists, select
from sqlalchemy.dialects import postgresql, sqlite

from tunebench.db.connection.database import Database
from tunebench.db.entries.decode import problem_of
from tunebench.db.entries.entry import ProblemFacts
from tunebench.db.entries.writer import Writer
from tunebench.db.queries.rows import Missed, MissRow
from tunebench.db.schema.tables import DeviceTable, MissTable, ProblemTable, StudyTable, TrialTable
from tunebench.db.schema.views import CORRECT


def add_misses(database: Database, found: Iterable[Missed]) -> None:
    """Add to the counts.

    Raises:
        DatabaseError: the database cannot be written.
    """
    now = datetime.now(UTC)
    with database.writing() as connection:
        writer = Writer(connection)
        inserting = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        for one in found:
            problem = ProblemFacts(one.problem.dtype, dict(one.problem.axes), dict(one.problem.options))
            row = {
                "kernel": one.kernel,
                "source_digest": one.source_digest,
                "path": one.path,
                "problem_id": writer.problem(problem),
                "device": one.device_name,
                "architecture": one.architecture,
                "calls": one.calls,
                "first_at": now,
                "last_at": now,
            }
            adding = inserting(MissTable).values(row)
            more = {
                "calls": MissTable.calls + adding.excluded.calls,
                "last_at": adding.excluded.last_at,
                "path": adding.excluded.path,
            }
            identity = ("kernel", "source_digest", "problem_id", "device", "architecture")
            connection.execute(adding.on_conflict_do_update(index_elements=identity, set_=more))


def misses(
    database: Database, *, kernel: str | None = None, device: str | None = None, tuned: bool = False
) -> list[MissRow]:
    """What was served without evidence, the most used first.

    Args:
        device: a device's name.
        tuned: also those that there are results for by now.

    Raises:
        DatabaseError: the database cannot be read, or holds what tunebench does not write.
    """
    has_results = exists(
        select(TrialTable.id)
        .join(StudyTable, StudyTable.id == TrialTable.study_id)
        .join(DeviceTable, DeviceTable.id == StudyTable.device_id)
        .where(
            CORRECT,
            StudyTable.kernel == MissTable.kernel,
            StudyTable.source_digest == MissTable.source_digest,
            StudyTable.problem_id == MissTable.problem_id,
            DeviceTable.name == MissTable.device,
        )
        .correlate(MissTable)
    )
    conditions: list[ColumnElement[bool]] = [] if tuned else [~has_results]
    if kernel is not None:
        conditions.append(MissTable.kernel == kernel)
    if device is not None:
        conditions.append(MissTable.device == device)
    query = (
        select(MissTable, ProblemTable, has_results.label("tuned"))
        .join(ProblemTable, ProblemTable.id == MissTable.problem_id)
        .where(*conditions)
        .order_by(MissTable.calls.desc(), MissTable.id)
    )
    with database.reading() as connection:
        return [
            MissRow(
                kernel=row.kernel,
                source_digest=row.source_digest,
                path=row.path,
                problem=problem_of(row.key, row.dtype, row.axes, row.options),
                device_name=row.device,
                architecture=row.architecture,
                calls=row.calls,
                first_at=row.first_at,
                last_at=row.last_at,
                tuned=bool(row.tuned),
            )
            for row in connection.execute(query)
        ]
