"""A SQLite file from outside: what is in it, its journal mode, a copy of it."""

from __future__ import annotations

import glob
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tunebench.db.connection.engine import BUSY_SECONDS, connect_file
from tunebench.db.schema.tables import VERSION_TABLE
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.files import is_open_database, remove_abandoned

_SMALLEST_PAGE = 512


@dataclass(frozen=True)
class FileState:
    """The content of a file that should be a database.

    Attributes:
        revision: None where there is nothing in it yet, or no file.
        in_wal_mode: whether readers and the one writer do not wait for each other.
    """

    revision: str | None
    in_wal_mode: bool


def look_at(file: Path) -> FileState:
    """Return the state of a SQLite file; change nothing in it.

    It is read through SQLite alone: see `require_closed`.

    Raises:
        DatabaseError: it is not a database, not tunebench's, or cannot be read.
        sqlite3.Error: it is damaged.
    """
    _require_file(file)
    if not file.exists():
        return FileState(None, False)
    with _explained(file), closing(connect_file(file, read_only=True)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        (journal_mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        in_wal_mode = journal_mode == "wal"
        if VERSION_TABLE not in tables:
            if tables:
                raise DatabaseError(f"{file} is a database of something else: name another file with --db")
            return FileState(None, in_wal_mode)
        revisions = [revision for (revision,) in connection.execute(f"SELECT version_num FROM {VERSION_TABLE}")]
    if len(revisions) != 1 or not isinstance(revisions[0], str):
        raise DatabaseError(f"{file} holds {len(revisions)} revisions instead of one: restore a backup")
    return FileState(revisions[0], in_wal_mode)


def _require_file(file: Path) -> None:
    """Refuse what SQLite would wait for or write into: a folder, a pipe, a device.

    Raises:
        DatabaseError: it is one, or cannot be reached or read.
    """
    try:
        found = file.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise DatabaseError(f"cannot read {file}: {error.strerror}") from error
    if stat.S_ISDIR(found.st_mode):
        raise DatabaseError(f"cannot read {file}: it is a folder; name a file with --db")
    # SQLite takes a file with less than a page in it for an empty one.
    if not stat.S_ISREG(found.st_mode) or 0 < found.st_size < _SMALLEST_PAGE:
        raise DatabaseError(f"{file} is not a database: name another file with --db")
    if not os.access(file, os.R_OK):
        raise DatabaseError(f"cannot read {file}: permission denied")


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Tell a file that never was a database from one that is damaged."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_NOTADB":
            raise DatabaseError(f"{file} is not a database: name another file with --db") from error
        raise


def require_closed(file: Path) -> None:
    """Refuse to read a file by hand that this process has open as a database.

    That would drop the process's locks on it: see `is_open_database`.

    Raises:
        DatabaseError: it is such a file.
    """
    if is_open_database(file):
        raise DatabaseError(f"{file} is a database that is open: name another file, or an export of it")


def require_folder(file: Path, *, create: bool) -> None:
    """Make sure that a file can be created.

    Args:
        create: its folder as well; a folder that the user named and that is not there is rather a mistake.

    Raises:
        DatabaseError: it cannot.
    """
    try:
        if create:
            file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseError(f"cannot create {file.parent}: {error.strerror}; say where with --db") from error
    if not file.parent.is_dir():
        raise DatabaseError(f"cannot create {file}: folder {file.parent} does not exist")
    if not os.access(file.parent, os.W_OK):
        raise DatabaseError(f"cannot create {file}: folder {file.parent} cannot be written")


def use_wal(file: Path) -> None:
    """Switch a file to WAL mode, creating it where it is missing.

    SQLite does not wait for a lock here, so this does. A file system that has no WAL keeps the mode it has.

    Raises:
        sqlite3.Error: the file cannot be written, or stays locked.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    _make_private(file)
    with closing(connect_file(file, read_only=False)) as connection:
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def _make_private(file: Path) -> None:
    """Create a file for its user alone; SQLite gives the files that it puts beside it the same mode."""
    with suppress(OSError):  # it is there, and its user's to decide on; or SQLite says what is wrong
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def back_up(file: Path, occasion: str) -> Path:
    """Copy a database beside itself, under a name with the occasion that no earlier copy has.

    Raises:
        DatabaseError: the copy could not be written.
    """
    copy = file.with_name(f"{file.name}.{occasion}.backup")
    number = 1
    while copy.exists():
        number += 1
        copy = file.with_name(f"{file.name}.{occasion}.{number}.backup")
    partial = copy.with_name(f"{copy.name}.{os.getpid()}.partial")
    remove_abandoned(file.parent, f"{glob.escape(file.name)}.")
    _make_private(partial)
    try:
        with (
            closing(connect_file(file, read_only=True)) as source,
            closing(sqlite3.connect(partial)) as target,
        ):
            source.backup(target)
        partial.replace(copy)
    except (OSError, sqlite3.Error) as error:
        raise DatabaseError(f"cannot back up {file} to {copy} before changing it: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return copy
