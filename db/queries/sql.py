"""SQL of anyone's, answered without any chance to write.

On SQLite the file is opened for reading, `query_only` is on, and an authorizer lets a statement read tables and call
functions and nothing else (no ATTACH, which would create files; no PRAGMA). On PostgreSQL the statement is the query of
a server-side cursor in a READ ONLY transaction, which makes it one statement, and one that reads. What a role may read
on the server, and the server's own functions, are for the server's administrator to limit.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tunebench.db.connection.database import Database
from tunebench.db.connection.engine import connect_file, file_of, first_line, translated
from tunebench.tuner.errors import DatabaseError, UserError

Cell: TypeAlias = str | int | float | bool | None

_LARGEST_BYTES = 64 << 20
"""The longest text or SQL that SQLite may handle here: a compiler's log fits, `randomblob(1e9)` does not."""

_STEPS_BETWEEN_LOOKS = 10_000
"""Virtual-machine steps of SQLite between looks at the clock: well below a millisecond."""

_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE)
_FORBIDDEN_FUNCTIONS = ("load_extension", "fts3_tokenizer", "readfile", "writefile", "edit")


@dataclass(frozen=True)
class Answer:
    """What a query returned.

    Attributes:
        columns: their names, each different; a repeated one has a number behind it.
        rows: text, numbers, true and false or None; anything else as text.
        complete: False where there were more rows than asked for.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    complete: bool


def ask(database: Database, sql: str, *, limit: int | None = None, seconds: float = 60.0) -> Answer:
    """The rows of one SELECT.

    Args:
        limit: at most so many rows; None for all.
        seconds: it is stopped after so long.

    Raises:
        UserError: the SQL is wrong, does more than read, or takes too long.
        DatabaseError: the database cannot be read.
    """
    if "\0" in sql or not sql.strip():
        raise UserError("the SQL is empty or holds a NUL: give one SELECT")
    if not 0 < seconds < 1e6:
        raise UserError(f"a time limit of {seconds} s is not legal: give more than 0 and less than a million")
    file = file_of(database.url)
    wanted = None if limit is None else limit + 1
    if file is not None:
        columns, rows = _ask_file(file, sql, wanted, seconds)
    else:
        columns, rows = _ask_server(database, sql, wanted, seconds)
    shown = rows if limit is None else rows[:limit]
    return Answer(_distinct(columns), tuple(tuple(map(_cell, row)) for row in shown), len(shown) == len(rows))


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


def _ask_file(file: Path, sql: str, wanted: int | None, seconds: float) -> tuple[list[str], list[Any]]:
    with translated(str(file)), closing(connect_file(file, read_only=True)) as connection:
        connection.execute("PRAGMA query_only = 1")
        connection.execute("PRAGMA trusted_schema = 0")
        connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_authorizer(_authorize)
        deadline = time.monotonic() + seconds
        connection.set_progress_handler(lambda: int(time.monotonic() > deadline), _STEPS_BETWEEN_LOOKS)
        with _explained(seconds):
            cursor = connection.execute(sql)
            if cursor.description is None:
                raise _not_reading()
            rows = cursor.fetchall() if wanted is None else cursor.fetchmany(wanted)
            return [name for name, *_ in cursor.description], rows


def _authorize(action: int, _first: str | None, second: str | None, _database: str | None, _source: str | None) -> int:
    if action in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and second not in _FORBIDDEN_FUNCTIONS):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _not_reading() -> UserError:
    return UserError("only one SELECT is asked at a time: a query reads, and never changes anything")


@contextmanager
def _explained(seconds: float) -> Iterator[None]:
    """Say what SQLite's refusals of a statement mean; damage of the file goes on to the caller."""
    try:
        yield
    except (sqlite3.Warning, sqlite3.ProgrammingError) as error:
        raise _not_reading() from error
    except sqlite3.DataError as error:
        raise UserError(f"the query cannot be answered: {first_line(error)}") from error
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorname", "")
        if code == "SQLITE_INTERRUPT":
            raise _too_slow(seconds) from error
        if code == "SQLITE_AUTH" or "not authorized" in str(error):
            raise _not_reading() from error
        if code in ("SQLITE_ERROR", "SQLITE_TOOBIG", "SQLITE_RANGE", "SQLITE_READONLY"):
            raise UserError(f"the query cannot be answered: {first_line(error)}") from error
        raise


def _too_slow(seconds: float) -> UserError:
    return UserError(f"the query was stopped after {seconds:g} s: ask for less, or allow more with --seconds")


def _ask_server(database: Database, sql: str, wanted: int | None, seconds: float) -> tuple[list[str], list[Any]]:
    if database.url.get_driver_name() not in ("", "psycopg"):
        raise UserError(
            f"queries need the driver psycopg, not '{database.url.get_driver_name()}': use postgresql+psycopg"
        )
    with translated(database.name), database.engine.connect() as connection:
        import psycopg

        server: Any = connection.connection.driver_connection
        try:
            with server.transaction(force_rollback=True):
                server.execute("SET TRANSACTION READ ONLY")
                server.execute(f"SET LOCAL statement_timeout = {max(1, int(seconds * 1e3))}")
                with server.cursor(name="tunebench_query") as cursor:
                    cursor.execute(sql)
                    names = [column.name for column in cursor.description or ()]
                    return names, cursor.fetchall() if wanted is None else cursor.fetchmany(wanted)
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
