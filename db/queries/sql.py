"""Any user's SQL, answered without a chance to write, within limits of time and memory.

On SQLite a process of its own asks: the file is opened for reading, `query_only` is on, and an authorizer lets a
statement read tables and call functions and nothing else (no ATTACH, which would create files; no PRAGMA). On
PostgreSQL the statement is the query of a server-side cursor in a READ ONLY transaction, which makes it one statement,
and one that reads. What a role may read on the server, the server's own functions and its memory are for the server's
administrator to limit.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tunebench.db.connection.database import Database
from tunebench.db.connection.engine import file_of, first_line, reason_of, translated
from tunebench.db.connection.location import file_uri
from tunebench.db.connection.reading import tidy
from tunebench.db.queries import sql_process
from tunebench.db.queries.sql_process import ANSWER_BYTES, TooLargeError
from tunebench.tuner.command import run_command
from tunebench.tuner.errors import DatabaseError, UserError

Cell: TypeAlias = str | int | float | bool | None
_Found: TypeAlias = tuple[list[str], list[list[Cell]], bool]
"""Columns, rows, and whether there are no more."""

_FIRST_PIECE, _LARGEST_PIECE = 1, 1000
"""Rows that are fetched at a time from a server: few until their size is known."""

_GRACE_SECONDS = 1.0
"""Seconds that the query process may take beyond its limit. It checks the limit itself, except within one long step."""


@dataclass(frozen=True)
class Answer:
    """The result of a query.

    Attributes:
        columns: their names, each different; a repeated one has a number behind it.
        rows: text, numbers, true and false or None; anything else as text.
        complete: False where there were more rows than the limit.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    complete: bool


def ask(database: Database, sql: str, *, limit: int | None = None, seconds: float = 60.0) -> Answer:
    """Return the rows of one SELECT.

    Args:
        limit: at most so many rows; None for all.
        seconds: it is stopped after so long.

    Raises:
        UserError: the SQL is wrong, does more than read, or takes too long.
    """
    if "\0" in sql or not sql.strip() or sql.encode(errors="replace").decode() != sql:
        raise UserError("the SQL is empty, or holds a NUL or what is not UTF-8: give one SELECT")
    if not 0 < seconds < 1e6:
        raise UserError(f"a time limit of {seconds} s is not legal: give more than 0 and less than a million")
    if limit is not None and limit < 0:
        raise UserError(f"a limit of {limit} rows is not legal: give 0 or more")
    file = file_of(database.url)
    asked = _ask_server(database, sql, limit, seconds) if file is None else _ask_file(file, sql, limit, seconds)
    columns, rows, complete = asked
    return Answer(_distinct(columns), tuple(map(tuple, rows)), complete)


def _cell(value: Any) -> Cell:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value.hex() if isinstance(value, bytes) else str(value)


def _distinct(columns: Sequence[str]) -> tuple[str, ...]:
    names: list[str] = []
    for column in columns:
        name, number = column, 2
        while name in names:
            name, number = f"{column}_{number}", number + 1
        names.append(name)
    return tuple(names)


def _ask_file(file: Path, sql: str, limit: int | None, seconds: float) -> _Found:
    """See `sql_process`, which is the process that does it."""
    request = sql_process.Request(uri=file_uri(file, read_only=True), sql=sql, limit=limit, seconds=seconds)
    child = [sys.executable, "-I", "-S", sql_process.__file__]
    try:
        ended = run_command(child, seconds + _GRACE_SECONDS, given=json.dumps(request).encode())
    finally:
        tidy(file)
    if ended.code is None:
        raise _too_slow(seconds)
    if ended.code < 0:
        # Not every part of SQLite and Python survives that an allocation is refused.
        raise _too_much_memory()
    if ended.code > 0:
        raise RuntimeError(f"the process that asks the file failed: {ended.log}")
    lines = [json.loads(line) for line in ended.printed.splitlines()]
    last = lines[-1]
    if isinstance(last, dict):
        raise _refusal(file, seconds, **last)
    columns, *rows = lines[:-1]
    return columns, rows, last


def _refusal(file: Path, seconds: float, type: str, message: str, code: str) -> UserError:
    """Say in one line why the process's question ended."""
    if type == TooLargeError.__name__:
        return _too_large()
    if type == MemoryError.__name__:
        return _too_much_memory()
    if code == "SQLITE_INTERRUPT":
        return _too_slow(seconds)
    if type in ("Warning", "ProgrammingError") or code == "SQLITE_AUTH" or "not authorized" in message:
        return _not_reading()
    if type == "DataError" or code in ("SQLITE_ERROR", "SQLITE_TOOBIG", "SQLITE_RANGE", "SQLITE_READONLY"):
        return UserError(f"the query cannot be answered: {first_line(message)}")
    # Python cannot even decode SQLite's own message where it quotes a damaged schema.
    code = "SQLITE_CORRUPT" if type == UnicodeDecodeError.__name__ else code
    return DatabaseError(f"{file}: {reason_of(message, code, file)}")


def _not_reading() -> UserError:
    return UserError("only one SELECT is asked at a time: a query reads, and never changes anything")


def _too_large() -> UserError:
    return UserError(
        f"the answer is larger than {ANSWER_BYTES >> 20} MiB: ask for fewer rows or columns, or export them"
    )


def _too_much_memory() -> UserError:
    return UserError(f"the query needs more than {sql_process.HEAP_BYTES >> 20} MiB of memory: ask for less")


def _too_slow(seconds: float) -> UserError:
    return UserError(f"the query was stopped after {seconds:g} s: ask for less, or allow more with --seconds")


def _hold_to(deadline: float, server: Any) -> None:
    """Give the server's next statement, of which every fetch is one, what is left of the time."""
    left_ms = max(1, int((deadline - time.monotonic()) * 1e3))
    server.execute(f"SET LOCAL statement_timeout = {left_ms}")


def _fetched(cursor: Any, limit: int | None, hold: Callable[[], None]) -> tuple[list[list[Cell]], bool]:
    """Fetch the rows in pieces that grow, never a thousand large ones at once; return whether they are all.

    What one row of the server takes cannot be limited from here.
    """
    rows: list[list[Cell]] = []
    size, piece = 0, _FIRST_PIECE
    while True:
        hold()
        found = cursor.fetchmany(piece)
        for row in found:
            if len(rows) == limit:
                return rows, False
            rows.append([_cell(value) for value in row])
            size += sum(sys.getsizeof(cell) for cell in rows[-1])
        if size > ANSWER_BYTES:
            raise _too_large()
        if not found:
            return rows, True
        room = len(rows) * (ANSWER_BYTES - size) // max(size, 1)
        piece = max(1, min(2 * piece, _LARGEST_PIECE, room))


def _ask_server(database: Database, sql: str, limit: int | None, seconds: float) -> _Found:
    if database.url.get_driver_name() not in ("", "psycopg"):
        raise UserError(
            f"queries need the driver psycopg, not '{database.url.get_driver_name()}': use postgresql+psycopg"
        )
    deadline = time.monotonic() + seconds
    with translated(database.name), database.engine.connect() as connection:
        import psycopg

        server: Any = connection.connection.driver_connection
        try:
            with server.transaction(force_rollback=True):
                server.execute("SET TRANSACTION READ ONLY")
                with server.cursor(name="tunebench_query") as cursor:
                    _hold_to(deadline, server)
                    cursor.execute(sql)
                    columns = [column.name for column in cursor.description or ()]
                    return columns, *_fetched(cursor, limit, lambda: _hold_to(deadline, server))
        except psycopg.errors.QueryCanceled as error:
            raise _too_slow(seconds) from error
        except (psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.FeatureNotSupported) as error:
            raise _not_reading() from error
        except psycopg.OperationalError as error:
            raise DatabaseError(f"{database.name}: {first_line(error)}") from error
        except psycopg.Error as error:
            raise UserError(f"the query cannot be answered: {first_line(error)}") from error
        finally:
            # Whatever the query has set in its session goes with it.
            connection.invalidate()
