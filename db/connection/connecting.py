"""How a program opens the results database to ask it."""

from __future__ import annotations

from pathlib import Path

from tunebench.db.connection.database import Database, open_database


def connect(url: str | Path | None = None, *, read_only: bool = True) -> Database:
    """Open the results database, for reading unless told otherwise; use it in a `with` statement, or close it.

    Args:
        url: a path such as `results.db`, or a SQLAlchemy URL of SQLite or PostgreSQL; None for the environment variable
            TUNEBENCH_DB, or else `tunebench.db` in the user's data folder.
        read_only: the database must be there, at this tunebench's revision, and every write is refused. False also
            creates or upgrades it.

    Raises:
        DatabaseMissingError: there is nothing to read.
        DatabaseError: it cannot be used; the message is one line.
    """
    return open_database(url, read_only=read_only)
