"""Opening the results database, and writing a study's trials to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, Engine, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError

from tunebench.db.connection.engine import (
    file_of,
    first_line,
    for_writing,
    locate,
    make_engine,
    name_of,
    translated,
)
from tunebench.db.connection.files import FileState, look_at, require_folder, use_wal
from tunebench.db.connection.location import default_file, missing
from tunebench.db.connection.upgrade import HEAD, Upgrade, require_known, revision_of, upgrade
from tunebench.db.entries.decode import configuration_of, status_of
from tunebench.db.entries.rows import comparison_row, environment_row, late_refusal_row, study_row, trial_row
from tunebench.db.queries.one_trial import trial_details
from tunebench.db.schema.tables import ConfigurationRecord, LateRefusalRecord, MeasurementRecord, TrialRecord
from tunebench.tuner.environment import Environment
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.result import Comparison, Stage, TrialResult
from tunebench.tuner.search.warm_start import Carried
from tunebench.tuner.study.history import PastTrial, StudyDescription


class Database:
    """An open results database; `open_database` makes one. Usable from several threads, not across a fork.

    Attributes:
        engine: for SQL of one's own.
        url: where it is, with its password.
        name: the file, or the URL without its password.
    """

    def __init__(self, engine: Engine, url: URL, *, read_only: bool) -> None:
        self.engine = engine
        self.url = url
        self.name = name_of(url)
        self.read_only = read_only
        self._writer = for_writing(engine)

    def study(
        self, description: StudyDescription, environment: Environment, carried: Sequence[Carried] = ()
    ) -> StudyLog:
        """The log of the study of that description: a new one, or the one of an earlier run.

        Args:
            environment: in force now; it goes with the trials that are recorded through this log.
            carried: what a new study begins with from earlier ones.

        Raises:
            DatabaseError: the database cannot be written.
        """
        with self.writing() as connection:
            study_id = study_row(connection, description, carried)
            return StudyLog(self, study_id, environment_row(connection, environment))

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database.

        Raises:
            DatabaseError: a query failed.
        """
        with translated(self.name), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that waits for other writers when it begins; it happens entirely, or not at all.

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


class StudyLog:
    """One study's trials in the database: a `tunebench.tuner.study.history.TrialLog`.

    Attributes:
        study_id: the study's number in this database.
    """

    def __init__(self, database: Database, study_id: int, environment_id: int) -> None:
        self.study_id = study_id
        self._database = database
        self._environment_id = environment_id

    def past(self) -> Sequence[PastTrial]:
        """The study's trials so far, by number.

        Raises:
            DatabaseError: the database cannot be read, or holds what tunebench does not write.
        """
        query = (
            select(
                TrialRecord.number,
                ConfigurationRecord.key,
                TrialRecord.status,
                TrialRecord.median_ms,
                MeasurementRecord.clock,
                LateRefusalRecord.trial_id,
            )
            .join(ConfigurationRecord, ConfigurationRecord.id == TrialRecord.configuration_id)
            .outerjoin(MeasurementRecord, MeasurementRecord.id == TrialRecord.measurement_id)
            .outerjoin(LateRefusalRecord, LateRefusalRecord.trial_id == TrialRecord.id)
            .where(TrialRecord.study_id == self.study_id)
            .order_by(TrialRecord.number)
        )
        with self._database.reading() as connection:
            return [_past(*row) for row in connection.execute(query)]

    def result(self, number: int) -> TrialResult:
        """What came of a trial of this study, its build apart.

        Raises:
            DatabaseError: the database cannot be read, or holds what tunebench does not write.
        """
        wanted = select(TrialRecord.id).where(TrialRecord.study_id == self.study_id, TrialRecord.number == number)
        with self._database.reading() as connection:
            trial_id = connection.execute(wanted).scalar_one()
        found = trial_details(self._database, trial_id)
        row = found.row
        measurement = found.measurement if row.status.timed else None
        return TrialResult(row.configuration, row.status, None, found.verdict, measurement, row.message, found.seconds)

    def record(self, number: int, result: TrialResult) -> None:
        """Add a trial with its build, verdict and measurement, in one transaction.

        Raises:
            DatabaseError: the database cannot be written, or another process has recorded this number or configuration.
        """
        with self._database.writing() as connection:
            try:
                trial_row(connection, self.study_id, self._environment_id, number, result)
            except IntegrityError as error:
                raise DatabaseError(
                    f"{self._database.name}: trial {number} of study {self.study_id} was refused "
                    f"({first_line(error.orig)}): another process may be running the same study"
                ) from error

    def refuse(self, number: int, stage: Stage) -> None:
        """Add a late refusal of a trial of this study, in one transaction; one that has one keeps it.

        Raises:
            DatabaseError: the database cannot be written, or refuses it.
        """
        with self._database.writing() as connection:
            late_refusal_row(connection, self.study_id, number, stage)

    def conclude(self, comparison: Comparison) -> None:
        """Add the comparison that ends the study, in one transaction; its best must be one of the study's trials.

        Raises:
            DatabaseError: the database cannot be written, or refuses the comparison.
        """
        with self._database.writing() as connection:
            comparison_row(connection, self.study_id, self._environment_id, comparison)


def _past(
    number: int,
    key: str,
    status: str,
    median_ms: float | None,
    clock: str | None,
    refused_late: int | None,
) -> PastTrial:
    trial = PastTrial(number, configuration_of(key), status_of(status), median_ms, clock)
    return trial if refused_late is None else trial.refused()


def open_database(url_or_path: str | Path | None = None, *, read_only: bool = False) -> Database:
    """Open the results database; create it where there is none, upgrade it where it is older.

    A SQLite file that is upgraded is first copied beside itself. One that is not tunebench's is left untouched.

    Args:
        url_or_path: a path such as `results.db`, or a SQLAlchemy URL of SQLite or PostgreSQL; None for the environment
            variable TUNEBENCH_DB, or else `tunebench.db` in the user's data folder.
        read_only: for queries: the database must be there at this revision, and every write is refused.

    Raises:
        DatabaseMissingError: there is nothing to read.
        DatabaseError: it cannot be used; the message is one line.
    """
    url = locate(url_or_path)
    where, file = name_of(url), file_of(url)
    engine = make_engine(url, read_only=read_only)
    try:
        with translated(where):
            state = _look(engine, file)
            if state.revision is not None:
                require_known(state.revision, where)
            if read_only and state.revision != HEAD:
                raise _not_to_be_read(where, state.revision)
            if not read_only:
                _prepare(url, file, state)
    except BaseException:
        engine.dispose()
        raise
    return Database(engine, url, read_only=read_only)


def upgrade_database(url_or_path: str | Path | None = None) -> Upgrade:
    """Bring a database to this tunebench's revision, creating it where there is none; what opening for writing does.

    Raises:
        DatabaseError: it cannot be used; the message is one line.
    """
    url = locate(url_or_path)
    file, engine = file_of(url), make_engine(url)
    try:
        with translated(name_of(url)):
            state = _look(engine, file)
            if state.revision is not None:
                require_known(state.revision, name_of(url))
            return _prepare(url, file, state)
    finally:
        engine.dispose()


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
