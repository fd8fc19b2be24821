"""A SQLite file from outside: what is in it, its journal mode, a copy of it."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tunebench.db.engine import BUSY_SECONDS, connect_file
from tunebench.db.models import VERSION_TABLE
from tunebench.tuner.errors import DatabaseError

_HEADER = b"SQLite format 3\0"
_WRITE_VERSION = 18
_WAL = 2


@dataclass(frozen=True)
class FileState:
    """What was found where a database should be.

    Attributes:
        revision: None where there is nothing in it yet, or no file.
        in_wal_mode: readers and the one writer do not wait for each other.
    """

    revision: str | None
    in_wal_mode: bool


def look_at(file: Path) -> FileState:
    """What is in a SQLite file; changes nothing in it.

    Raises:
        DatabaseError: it is not a database, not tunebench's, or cannot be read.
        sqlite3.Error: it is damaged.
    """
    try:
        with file.open("rb") as stream:
            header = stream.read(100)
    except FileNotFoundError:
        return FileState(None, False)
    except OSError as error:
        raise DatabaseError(f"cannot read {file}: {error.strerror}") from error
    if not header:
        return FileState(None, False)
    if not header.startswith(_HEADER) or len(header) < 100:
        raise DatabaseError(f"{file} is not a database: name another file with --db")
    in_wal_mode = header[_WRITE_VERSION] == _WAL
    with closing(connect_file(file, read_only=True)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if VERSION_TABLE not in tables:
            if tables:
                raise DatabaseError(f"{file} is a database of something else: name another file with --db")
            return FileState(None, in_wal_mode)
        revisions = [revision for (revision,) in connection.execute(f"SELECT version_num FROM {VERSION_TABLE}")]
    if len(revisions) != 1 or not isinstance(revisions[0], str):
        raise DatabaseError(f"{file} holds {len(revisions)} revisions instead of one: restore a backup")
    return FileState(revisions[0], in_wal_mode)


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
    with closing(connect_file(file, read_only=False)) as connection:
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


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
    try:
        with (
            closing(connect_file(file, read_only=True)) as source,
            closing(sqlite3.connect(partial)) as target,
        ):
            source.backup(target)
        partial.replace(copy)
    except (OSError, sqlite3.Error) as error:
        partial.unlink(missing_ok=True)
        raise DatabaseError(f"cannot back up {file} to {copy} before changing it: {error}") from error
    return copy
