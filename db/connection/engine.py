"""Location of the database, connections to it, and the translation of its errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from tunebench.db.connection.location import default_location, file_at, file_named, file_uri, without_secrets
from tunebench.db.connection.reading import read_file
from tunebench.tuner.disk import has_room
from tunebench.tuner.errors import DatabaseError

BUSY_SECONDS = 60.0
"""Seconds that a writer waits for another one; a transaction of ours takes milliseconds."""

_CONNECT_SECONDS = 10
_DIALECTS = ("sqlite", "postgresql")
_WRITES = "tunebench_writes"


def locate(url_or_path: str | Path | None) -> URL:
    """Return the database's URL: a SQLAlchemy URL as it is; anything else is the path of a SQLite file.

    Args:
        url_or_path: None for the environment variable TUNEBENCH_DB, or else a file in the user's data folder.

    Raises:
        DatabaseError: not a URL, or of a database that tunebench does not work with.
    """
    if (file := file_named(url_or_path)) is not None:
        return URL.create("sqlite", database=str(file))
    try:
        url = make_url(str(url_or_path or default_location()))
    except (ArgumentError, ValueError):
        # The text is not shown: it may hold a password.
        raise DatabaseError("the database URL cannot be read: write it as dialect://user:password@host/name") from None
    if url.get_backend_name() not in _DIALECTS:
        raise DatabaseError(
            f"'{url.drivername}' is not supported: use a {' or '.join(_DIALECTS)} URL, or a file's path"
        )
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:" or url.database.startswith("file:") or url.query:
            shown = without_secrets(url.render_as_string())
            raise DatabaseError(f"'{shown}' is not the URL of a file: use sqlite:///PATH without options, or the path")
        url = URL.create("sqlite", database=str(file_at(url.database)))
    return url


def file_of(url: URL) -> Path | None:
    """Return the SQLite file that a located URL means; None for a server."""
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def name_of(url: URL) -> str:
    """Return the database's name for messages: the file, or the URL without its secrets."""
    return str(file_of(url) or without_secrets(url.render_as_string()))


def connect_file(file: Path, *, read_only: bool) -> sqlite3.Connection:
    """Return a plain connection to a SQLite file that leaves BEGIN to its user and waits `BUSY_SECONDS` for a lock."""
    if read_only:
        return read_file(file, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    uri = file_uri(file, read_only=False)
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def make_engine(url: URL, *, read_only: bool = False, foreign_keys: bool = True) -> Engine:
    """Return an engine for a located URL; nothing is connected yet.

    Raises:
        DatabaseError: the driver is unknown or not installed.
    """
    file = file_of(url)
    if file is not None:
        engine = create_engine(url, creator=lambda: connect_file(file, read_only=read_only), poolclass=QueuePool)
        _set_up_sqlite(engine, read_only=read_only, foreign_keys=foreign_keys)
        return engine
    arguments: dict[str, Any] = {}
    if url.get_driver_name() in ("psycopg", "psycopg2") and "connect_timeout" not in url.query:
        arguments["connect_timeout"] = _CONNECT_SECONDS
    try:
        if url.get_dialect().is_async:
            raise DatabaseError(
                f"'{url.drivername}' is asynchronous, which tunebench is not: use postgresql+psycopg "
                "(pip install 'psycopg[binary]')"
            )
        engine = create_engine(url, connect_args=arguments, pool_pre_ping=True)
    except NoSuchModuleError:
        raise DatabaseError(f"'{url.drivername}' is not known: use postgresql, or postgresql+psycopg") from None
    except ImportError as error:
        package = "'psycopg[binary]'" if error.name == "psycopg" else error.name
        raise DatabaseError(
            f"'{url.drivername}' needs the Python package '{error.name}': pip install {package}"
        ) from error
    if read_only:

        @event.listens_for(engine, "connect")
        def refuse_writes(connection: Any, _record: object) -> None:
            connection.cursor().execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
            connection.commit()

    return engine


def for_writing(engine: Engine) -> Engine:
    """Return the same engine, whose transactions take SQLite's write lock when they begin.

    A transaction that begins by reading and then wants to write fails at once when another has written in between,
    however long the timeout; one that begins with the lock waits for it.
    """
    return engine.execution_options(**{_WRITES: True})


def _set_up_sqlite(engine: Engine, *, read_only: bool, foreign_keys: bool) -> None:
    @event.listens_for(engine, "connect")
    def set_pragmas(connection: Any, _record: object) -> None:
        connection.execute(f"PRAGMA foreign_keys = {int(foreign_keys)}")
        # Without this, INSERT OR REPLACE removes rows behind the back of the triggers that refuse it.
        connection.execute("PRAGMA recursive_triggers = 1")
        if read_only:
            connection.execute("PRAGMA query_only = 1")
            # The views of a file from elsewhere may call nothing but harmless functions. When writing, this would also
            # forbid the JSON functions of our own constraints, which some SQLite versions do not call harmless.
            connection.execute("PRAGMA trusted_schema = 0")
        else:
            # In WAL mode a killed process loses nothing, and a power failure at most the last transactions.
            connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turn SQLAlchemy's errors into a `DatabaseError` of one line.

    Args:
        where: the database as messages call it.
    """
    try:
        yield
    except SQLAlchemyError as error:
        raise as_database_error(error, where) from error
    except sqlite3.Error as error:
        raise _of(error, where) from error
    except UnicodeDecodeError as error:
        # Python cannot even decode SQLite's own message, which quotes the damaged schema.
        raise DatabaseError(f"{where}: {reason_of('', 'SQLITE_CORRUPT', Path(where))}") from error


def as_database_error(error: SQLAlchemyError, where: str) -> DatabaseError:
    """Return the error in one line, with what to do where that is known."""
    origin = getattr(error, "orig", None) or error
    return origin if isinstance(origin, DatabaseError) else _of(origin, where)


def _of(error: BaseException, where: str) -> DatabaseError:
    reason = reason_of(error, getattr(error, "sqlite_errorname", ""), Path(where))
    return DatabaseError(f"{where}: {reason}")


def reason_of(error: object, code: str, file: Path) -> str:
    """Return the reason of an error, with what to do where that is known.

    Args:
        code: SQLite's name of it; empty for a server's.
    """
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"another process has kept the database locked for {BUSY_SECONDS:.0f} s: end it, or try again"
    # In WAL mode a full disk can also show as an I/O error of the shared memory's file.
    if code.startswith("SQLITE_FULL") or (code.startswith("SQLITE_IOERR") and not has_room(file.parent)):
        return "the disk is full: make room, and run the same command again"
    if code.startswith("SQLITE_CANTOPEN"):
        return "the file cannot be opened or created: check its folder, or name another file with --db"
    if code.startswith("SQLITE_READONLY"):
        return "the file or its folder cannot be written"
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return "the file is not a database, or is damaged: restore a backup"
    return first_line(error)


def first_line(error: object) -> str:
    """Return the first line of an error's text; drivers add the statement, hints and positions below it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
