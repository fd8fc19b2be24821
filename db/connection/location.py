"""Where the results database is when nobody names one. Imports nothing heavy: every look-up of a kernel asks."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from platformdirs import user_data_dir

from tunebench.tuner.errors import DatabaseMissingError

LOCATION_VARIABLE = "TUNEBENCH_DB"


def default_location() -> str | Path:
    """The path or URL in the environment variable TUNEBENCH_DB, or else a file in the user's data folder."""
    return os.environ.get(LOCATION_VARIABLE) or default_file()


def default_file() -> Path:
    """The database in the user's data folder."""
    return Path(user_data_dir("tunebench"), "tunebench.db")


def may_have_results(kernel: str, source_digest: str) -> bool:
    """Whether the database at the default location may have results of a version of a kernel.

    A file is asked by SQLite alone, since importing SQLAlchemy takes longer than all the rest of a look-up. Whatever
    is in the way of an answer counts as a yes: whoever opens the database properly has the words for it.

    Raises:
        DatabaseMissingError: it is a file, and there is none.
    """
    location = default_location()
    if not isinstance(location, Path) and "://" in location:
        return True
    file = Path(location).expanduser().absolute()
    if not os.path.lexists(file):
        raise missing(str(file))
    if not file.is_file():
        return True
    try:
        with closing(sqlite3.connect(file_uri(file, read_only=True), uri=True, timeout=1.0)) as connection:
            studies = "SELECT 1 FROM tunebench_studies WHERE kernel = ? AND source_digest = ? LIMIT 1"
            return connection.execute(studies, (kernel, source_digest)).fetchone() is not None
    except sqlite3.Error:
        return True


def file_uri(file: Path, *, read_only: bool) -> str:
    """The URI under which SQLite opens a file."""
    mode = "mode=ro" if read_only else "mode=rwc"
    if read_only and not os.access(file.parent, os.W_OK) and not Path(f"{file}-wal").exists():
        # On a read-only medium SQLite cannot create the shared memory that reading in WAL mode needs.
        mode += "&immutable=1"
    return f"{file.as_uri()}?{mode}"


def missing(where: str) -> DatabaseMissingError:
    """The message about a place without a results database."""
    return DatabaseMissingError(f"there is no results database at {where}: run a study first, or say where with --db")
