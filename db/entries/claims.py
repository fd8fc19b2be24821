"""Claims: which configurations of a study this process is at, so that no other one evaluates them as well.

A claim is a lock that ends with its holder, however that ends: on PostgreSQL an advisory lock of a session, on SQLite a
lock on one byte of the file `NAME-claims` beside the database. Nothing of it is in a table.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
from pathlib import Path

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError

from tunebench.db.connection.database import Database
from tunebench.db.connection.engine import file_of, translated
from tunebench.tuner.errors import DatabaseError


class Claims:
    """The claims of one run of a study on its configurations.

    Args:
        study_id: the study's number in this database.
    """

    def __init__(self, database: Database, study_id: int) -> None:
        self._database = database
        self._study_id = study_id
        self._file: int | None = None
        self._session: Connection | None = None
        self._held: set[str] = set()

    def take(self, key: str) -> bool:
        """Claim the configuration of that key; False where another process has it.

        Raises:
            DatabaseError: there is no way to tell.
        """
        if key not in self._held and not self._lock(self._place(key)):
            return False
        self._held.add(key)
        return True

    def let_go(self, key: str) -> None:
        """Give one claim back, where it is held."""
        if key not in self._held:
            return
        self._held.remove(key)
        if self._file is not None:
            _lock_byte(self._file, fcntl.F_UNLCK, self._place(key))
        if self._session is not None:
            with translated(self._database.name):
                self._session.execute(select(func.pg_advisory_unlock(self._place(key))))

    def close(self) -> None:
        """Give all claims back."""
        self._held.clear()
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._session is not None:
            # The server notices only in its own time that a session has ended; one that is lost has no locks.
            with contextlib.suppress(SQLAlchemyError):
                self._session.execute(select(func.pg_advisory_unlock_all()))
            self._session.invalidate()
            self._session.close()
            self._session = None

    def _lock(self, place: int) -> bool:
        file = file_of(self._database.url)
        if file is not None:
            return self._lock_in(file, place)
        with translated(self._database.name):
            if self._session is None:
                self._session = self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            return bool(self._session.scalar(select(func.pg_try_advisory_lock(place))))

    def _lock_in(self, file: Path, place: int) -> bool:
        claims = Path(f"{file}-claims")
        try:
            if self._file is None:
                # Whoever may write the database may claim.
                self._file = os.open(claims, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666 & file.stat().st_mode)
            _lock_byte(self._file, fcntl.F_WRLCK, place)
        except BlockingIOError:
            return False
        except OSError as error:
            raise DatabaseError(f"{claims}: {error.strerror}, so that processes cannot share a study") from error
        return True

    def _place(self, key: str) -> int:
        """A number for a configuration of this study: two of them have the same one about never."""
        return int.from_bytes(hashlib.sha256(f"{self._study_id} {key}".encode()).digest()[:7])


def _lock_byte(file: int, kind: int, place: int) -> None:
    """Lock or unlock one byte without waiting.

    The lock is the open file's and not the process's, which runs other studies of a sweep beside this one: those would
    end with the first of them.

    Raises:
        BlockingIOError: another one has it.
    """
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", kind, os.SEEK_SET, place, 1, 0))
