"""Opening the results database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL

from tunebench.db.connection.engine import file_of, for_writing, locate, make_engine, name_of, translated
from tunebench.db.connection.files import FileState, look_at, require_folder, use_wal
from tunebench.db.connection.location import default_file, missing
from tunebench.db.connection.upgrade import HEAD, Upgrade, require_known, revision_of, upgrade
from tunebench.tuner.errors import DatabaseError


class Database:
    """An open results database; `open_database` makes one. Usable from several threads, not across a fork.

    Attributes:
        engine: for callers' own SQL.
        url: where it is, with its secrets.
        name: the file, or the URL without its secrets.
    """

    def __init__(self, engine: Engine, url: URL, *, read_only: bool) -> None:
        self.engine = engine
        self.url = url
        self.name = name_of(url)
        self.read_only = read_only
        self._writer = for_writing(engine)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that sees one state of the database.

        Raises:
            DatabaseError: a query failed.
        """
        with translated(self.name), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that waits for other writers when it begins; it happens entirely, or not at all.

        Raises:
            DatabaseError: the database was opened for reading, is full, stays locked, or refuses a row.
        """
        if self.read_only:
            raise DatabaseError(f"{self.name} was opened for reading only")
        with translated(self.name), self._writer.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_database(url_or_path: str | Path | None = None, *, read_only: bool = False) -> Database:
    """Open the results database; create it where there is none, upgrade it where it is older.

    A SQLite file that is upgraded is first copied beside itself. One that is not tunebench's is left untouched.

    Args:
        url_or_path: a path such as `results.db`, or a SQLAlchemy URL of SQLite or PostgreSQL; None for the environment
            variable TUNEBENCH_DB, or else `tunebench.db` in the user's data folder.
        read_only: for queries: the database must be there at this revision, and every write is refused.

    Raises:
        DatabaseMissingError: there is nothing to read.
    """
    return _open(url_or_path, read_only=read_only)[0]


def upgrade_database(url_or_path: str | Path | None = None) -> Upgrade:
    """Bring a database to this tunebench's revision, creating it where there is none; what opening for writing does."""
    database, done = _open(url_or_path, read_only=False)
    database.close()
    return done


def _open(url_or_path: str | Path | None, *, read_only: bool) -> tuple[Database, Upgrade]:
    url = locate(url_or_path)
    where, file, done = name_of(url), file_of(url), Upgrade(HEAD, HEAD, None)
    engine = make_engine(url, read_only=read_only)
    try:
        with translated(where):
            state = _look(engine, file)
            if state.revision is not None:
                require_known(state.revision, where)
            if read_only and state.revision != HEAD:
                raise _not_to_be_read(where, state.revision)
            if not read_only:
                done = _prepare(url, file, state)
    except BaseException:
        engine.dispose()
        raise
    return Database(engine, url, read_only=read_only), done


def _look(engine: Engine, file: Path | None) -> FileState:
    if file is not None:
        return look_at(file)
    with engine.connect() as connection:
        return FileState(revision_of(connection), in_wal_mode=False)


def _not_to_be_read(where: str, revision: str | None) -> DatabaseError:
    if revision is None:
        return missing(where)
    return DatabaseError(
        f"{where} has the older revision '{revision}': run 'tunebench db upgrade' on it, which keeps a copy"
    )


def _prepare(url: URL, file: Path | None, state: FileState) -> Upgrade:
    """Create the tables, or bring them to `HEAD`; nothing where they are there already."""
    if file is not None and state.revision is None:
        require_folder(file, create=file == default_file())
    if file is not None and not state.in_wal_mode:
        # Before the tables are made: a process killed while it makes them then leaves nothing to be rolled back.
        use_wal(file)
    if state.revision == HEAD:
        return Upgrade(HEAD, HEAD, None)
    upgrading = make_engine(url, foreign_keys=False)
    try:
        return upgrade(for_writing(upgrading), name_of(url), file)
    finally:
        upgrading.dispose()
