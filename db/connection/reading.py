"""Connections that only read a SQLite file, and leave nothing beside it. Imports nothing heavy."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tunebench.db.connection.location import file_uri


class _Reading(sqlite3.Connection):
    file: Path

    def close(self) -> None:
        super().close()
        tidy(self.file)


def read_file(file: Path, seconds: float, **options: Any) -> sqlite3.Connection:
    """Return a plain connection that cannot write.

    Args:
        seconds: how long it waits for a lock.
        options: further ones of `sqlite3.connect`.
    """
    uri = file_uri(file, read_only=True)
    connection = sqlite3.connect(uri, uri=True, timeout=seconds, factory=_Reading, **options)
    connection.file = file
    return connection


def tidy(file: Path) -> None:
    """Have `-wal` and `-shm` removed where nobody has the file open any more.

    SQLite does that when the last connection closes that may write; one that only reads leaves what it has made, and
    what a killed process left.
    """
    if os.path.exists(f"{file}-wal") and os.access(file, os.W_OK):  # noqa: PTH110 - as a look-up does it
        with suppress(sqlite3.Error), closing(sqlite3.connect(file, timeout=0)) as writing:
            writing.execute("PRAGMA schema_version")
