"""Creating a database and bringing an older one to the revision that this tunebench works with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from tunebench.db.connection import older
from tunebench.db.connection.files import back_up
from tunebench.db.schema import tables
from tunebench.db.schema.creation import create
from tunebench.db.schema.tables import VERSION_TABLE
from tunebench.tuner.errors import DatabaseError

HEAD = tables.REVISION

# Drawn at random, so that no other program of the same PostgreSQL database locks by it.
_ADVISORY_LOCK = 7_305_188_402_617


def revision_of(connection: Connection) -> str | None:
    """Return the revision of a database; None where tunebench has never written to it.

    Raises:
        DatabaseError: the version table does not hold exactly one revision.
    """
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revisions = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars().all()
    if len(revisions) != 1:
        raise DatabaseError(f"table {VERSION_TABLE} holds {len(revisions)} revisions instead of one: restore a backup")
    return str(revisions[0])


def require_known(revision: str, where: str) -> None:
    """Refuse a revision that this tunebench does not know.

    Raises:
        DatabaseError: it is newer; the message says which.
    """
    if revision not in (*older.REVISIONS, HEAD):
        raise DatabaseError(
            f"{where} has revision {revision!r:.40}, newer than '{HEAD}' of this tunebench: upgrade tunebench"
        )


@dataclass(frozen=True)
class Upgrade:
    """The result of an upgrade.

    Attributes:
        before: the revision found; None where there were no tables yet.
        after: the revision now.
        backup: the copy of the file as it was; None where nothing was upgraded, or on a server.
    """

    before: str | None
    after: str
    backup: Path | None


def upgrade(engine: Engine, where: str, file: Path | None) -> Upgrade:
    """Create the tables and views or bring them to `HEAD`, in one transaction.

    Processes that come at the same moment wait for the first and then find nothing left to do.

    Args:
        engine: begins transactions with the write lock taken, foreign keys not enforced (tables may be rebuilt).
        where: the database's name in messages.
        file: the SQLite file; what is upgraded is first copied beside it.

    Raises:
        DatabaseError: the database is of a newer revision, or a row would refer to one that is not there.
    """
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
        revision, backup = revision_of(connection), None
        if revision == HEAD:
            return Upgrade(HEAD, HEAD, None)
        if revision is not None:
            require_known(revision, where)
            if file is not None:
                backup = back_up(file, f"revision-{revision}")
            older.bring(connection)
        else:
            create(connection)
        if connection.dialect.name == "sqlite" and connection.exec_driver_sql("PRAGMA foreign_key_check").first():
            raise DatabaseError(f"{where} has rows that refer to rows that are not there: restore a backup")
    return Upgrade(revision, HEAD, backup)
