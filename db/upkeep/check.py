"""Summary of a results database, and a check that it is as tunebench writes it."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import SQLAlchemyError

from tunebench.db.connection.database import Database, upgrade_database
from tunebench.db.connection.engine import connect_file, file_of
from tunebench.db.entries.decode import configuration_of, problem_of
from tunebench.db.schema import tables
from tunebench.db.schema.creation import triggers
from tunebench.db.schema.documents import build_columns, comparison_columns, trial_columns
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.scratch import scratch

_SHOWN = 3


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        subject: what was looked at.
        problems: what is wrong, a line each; empty where all is well.
        looked_at: how many rows, or other parts of a database, were looked at.
    """

    subject: str
    problems: tuple[str, ...]
    looked_at: int

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True)
class TrialCount:
    """The number of trials of a kernel on a device that ended in one way."""

    kernel: str
    device: str
    status: str
    trials: int


@dataclass(frozen=True)
class Statistics:
    """The size of a database.

    Attributes:
        rows: by table.
        trials: by kernel, device and status, in that order.
        bytes: of the file with its write-ahead log, or of the tables on a server.
    """

    revision: str
    rows: Mapping[str, int]
    trials: tuple[TrialCount, ...]
    bytes: int


def statistics(database: Database) -> Statistics:
    """Count what is in a database."""
    grouping = (tables.Study.kernel, tables.Device.name, tables.Trial.status)
    counts = (
        select(*grouping, func.count())
        .select_from(tables.Trial)
        .join(tables.Study, tables.Study.id == tables.Trial.study_id)
        .join(tables.Device, tables.Device.id == tables.Study.device_id)
        .group_by(*grouping)
        .order_by(*grouping)
    )
    with database.reading() as connection:
        revision = connection.execute(text("SELECT version_num FROM tunebench_version")).scalar_one()
        return Statistics(
            revision=str(revision),
            rows={
                name: connection.scalar(select(func.count()).select_from(table)) or 0
                for name, table in sorted(tables.Base.metadata.tables.items())
            },
            trials=tuple(TrialCount(*row) for row in connection.execute(counts)),
            bytes=_bytes(database, connection),
        )


def _bytes(database: Database, connection: Connection) -> int:
    file = file_of(database.url)
    if file is not None:
        parts = (file, Path(f"{file}-wal"))
        return sum(part.stat().st_size for part in parts if part.exists())
    sizes = text(
        "SELECT pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'tunebench\\_%'"
    )
    return sum(connection.scalars(sizes))


def inspect_database(database: Database) -> list[Finding]:
    """Run every check of a database on all of its rows; nothing is changed."""
    file = file_of(database.url)
    checks: dict[str, Callable[[Connection], tuple[int, list[str]]]] = {
        "the append-only triggers are on": _check_server_triggers
    }
    if file is not None:
        checks = {
            "the file's pages": _check_pages,
            "every reference has its row": _check_references,
            "tables, indexes, triggers and views are tunebench's": lambda _: _check_schema(file),
        }
    rows = {subject: partial(_check_each, table=table, check=check) for subject, (table, check) in _OF_ROWS.items()}
    return [_finding(database, subject, check) for subject, check in (checks | rows).items()]


def _finding(database: Database, subject: str, check: Callable[[Connection], tuple[int, list[str]]]) -> Finding:
    try:
        with database.reading() as connection:
            looked_at, problems = check(connection)
    except (DatabaseError, SQLAlchemyError, sqlite3.Error) as error:
        looked_at, problems = 0, [str(error)]
    more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
    return Finding(subject, (*problems[:_SHOWN], *more), looked_at)


def _check_pages(connection: Connection) -> tuple[int, list[str]]:
    lines = [str(line) for (line,) in connection.exec_driver_sql("PRAGMA integrity_check")]
    pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    return int(pages), [line for line in lines if line != "ok"]


def _check_references(connection: Connection) -> tuple[int, list[str]]:
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    referring = [table for table in tables.Base.metadata.tables.values() if table.foreign_keys]
    looked_at = sum(connection.scalar(select(func.count()).select_from(table)) or 0 for table in referring)
    return looked_at, [
        f"{table} row {row} refers to a row of {parent} that is not there" for table, row, parent, _ in broken
    ]


def _check_schema(file: Path) -> tuple[int, list[str]]:
    """Compare with a database made now: a trigger that is gone lets rows be changed, one too many changes them."""
    expected, found = _own_schema(), _schema(file)
    own = {name: sql for name, sql in expected.items() if not name.startswith("view ")}
    expected, found = expected | _programs(own, expected), found | _programs(own, found)
    missing = [f"{name} is missing" for name in expected.keys() - found.keys()]
    foreign = [f"{name} is not tunebench's" for name in found.keys() - expected.keys()]
    changed = [
        f"{name} is not as tunebench makes it"
        for name in expected.keys() & found.keys()
        if expected[name] != found[name]
    ]
    return len(found), sorted(missing + foreign + changed)


def _programs(tables: Mapping[str, object], schema: Mapping[str, object]) -> dict[str, object]:
    """Return the program that SQLite runs for each view of a schema: the same, however the view is written.

    The installed SQLAlchemy decides how the text of a view is written.
    """
    views = {name: str(sql) for name, sql in schema.items() if name.startswith("view ")}
    with closing(sqlite3.connect(":memory:")) as connection:
        for sql in (*tables.values(), *views.values()):
            connection.execute(str(sql))
        return {name: _program(connection, name.removeprefix("view ")) for name in views}


def _program(connection: sqlite3.Connection, view: str) -> object:
    quoted = view.replace('"', '""')
    query = f'SELECT * FROM "{quoted}"'
    try:
        # An instruction's last column is a comment.
        instructions = [instruction[:-1] for instruction in connection.execute(f"EXPLAIN {query}")]
        return instructions, [name for name, *_ in connection.execute(f"{query} LIMIT 0").description]
    except sqlite3.Error as error:
        return str(error)


@cache
def _own_schema() -> dict[str, object]:
    with scratch() as folder:
        fresh = folder / "fresh.db"
        upgrade_database(fresh)
        return _schema(fresh)


def _schema(file: Path) -> dict[str, object]:
    """Return the SQL of tunebench's tables and their indexes, and of every trigger and view whatever it is on."""
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    with closing(connect_file(file, read_only=True)) as connection:
        rows = connection.execute(query).fetchall()
    return {
        f"{kind} {name}": " ".join(str(sql).split())
        for kind, name, table, sql in rows
        if str(table).startswith(tables.TABLE_PREFIX) or kind in ("trigger", "view")
    }


def _check_server_triggers(connection: Connection) -> tuple[int, list[str]]:
    on = set(connection.scalars(text("SELECT tgname FROM pg_trigger WHERE tgenabled = 'O'")))
    own = triggers("postgresql")
    return len(own), [f"trigger {name} is gone or disabled: rows can be changed" for name in own if name not in on]


def _check_key(row: Any) -> None:
    if configuration_of.__wrapped__(row.key).key != row.key:
        raise DatabaseError(f"{row.key!r:.80} is not a configuration's canonical key")


def _has_its_digest(table: type[tables.Device | tables.Environment]) -> tuple[type[tables.Base], Callable[[Any], None]]:
    def check(row: Any) -> None:
        if tables.digest_of(table, row) != row.digest:
            raise DatabaseError(f"row {row.id} of {table.__tablename__} was changed: its digest is another's")

    return table, check


def _is_its_document(
    table: type[tables.Base], columns_of: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> tuple[type[tables.Base], Callable[[Any], None]]:
    """The columns beside each document are what they are of it."""

    def check(row: Any) -> None:
        try:
            expected = columns_of(row.document)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise DatabaseError(f"row {row.id} of {table.__tablename__} has no document of tunebench's") from None
        wrong = [name for name, value in expected.items() if getattr(row, name) != value]
        if wrong:
            raise DatabaseError(f"row {row.id} of {table.__tablename__} has another {wrong[0]} than its document")

    return table, check


def _check_samples(row: Any) -> None:
    measurement = row.document.get("measurement") if isinstance(row.document, dict) else None
    samples = measurement.get("samples_ms") if isinstance(measurement, dict) else None
    times = isinstance(samples, list) and all(isinstance(one, int | float) and 0 < one < math.inf for one in samples)
    if measurement is not None and not times:
        raise DatabaseError(f"trial {row.id} has {json.dumps(samples)[:80]} where positive times belong")


_OF_ROWS: dict[str, tuple[type[tables.Base], Callable[[Any], object]]] = {
    "every problem decodes": (
        tables.Problem,
        lambda row: problem_of(row.key, row.dtype, row.axes, row.options),
    ),
    "every configuration decodes": (tables.Configuration, _check_key),
    "every device has its digest": _has_its_digest(tables.Device),
    "every environment has its digest": _has_its_digest(tables.Environment),
    "every build is its document": _is_its_document(tables.Build, build_columns),
    "every trial is its document": _is_its_document(tables.Trial, trial_columns),
    "every comparison is its document": _is_its_document(tables.Comparison, comparison_columns),
    "every sample is a time": (tables.Trial, _check_samples),
}
"""The checks of each row, by table."""


def _check_each(
    connection: Connection, table: type[tables.Base], check: Callable[[Any], object]
) -> tuple[int, list[str]]:
    """Read a table row by row, however large it is, and check each row."""
    query = select(*table.__table__.columns)
    rows = connection.execute(query, execution_options={"stream_results": True})
    problems, looked_at, row = [], 0, object()
    while row is not None:
        try:
            row = rows.fetchone()
            if row is not None:
                looked_at += 1
                check(row)
        except DatabaseError as error:
            problems.append(str(error))
    return looked_at, problems
