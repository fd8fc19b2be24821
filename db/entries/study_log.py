"""One study's trials in the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import JSON, Connection, Select, and_, bindparam, exists, func, select, type_coerce
from sqlalchemy.orm import aliased

from tunebench.db.connection.database import Database
from tunebench.db.entries.claims import Claims
from tunebench.db.entries.decode import configuration_of, member_of
from tunebench.db.entries.entry import STUDY_WORDS, LateRefusal, RecordedComparison, RecordedStudy, RecordedTrial
from tunebench.db.entries.reader import own_origin, reading
from tunebench.db.entries.writer import Writer
from tunebench.db.schema import tables
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.environment import Environment
from tunebench.tuner.result import Comparison, Stage, TrialResult, TrialStatus
from tunebench.tuner.search.warm_start import WarmStart
from tunebench.tuner.study.history import PastTrial, StudyDescription


def open_study(
    database: Database, description: StudyDescription, environment: Environment, warm_starts: Sequence[WarmStart] = ()
) -> StudyLog:
    """The log of the study of that description: a new one, or one that began earlier on a device of the same model.

    Args:
        environment: in force now; it goes with the trials that are recorded through this log.
        warm_starts: what a new study begins with from earlier ones.
    """
    with database.writing() as connection:
        if connection.dialect.name == "postgresql":
            # Of two that begin it at once, on two devices, the second finds the first one's.
            connection.execute(select(func.pg_advisory_xact_lock(_BEGINNING)))
        writer = Writer(connection)
        study_id = connection.scalar(study_of(description))
        if study_id is None:
            origin, now = own_origin(connection), datetime.now(UTC)
            study_id = writer.study(RecordedStudy.of(description, origin, now, warm_starts))
        return StudyLog(database, study_id, environment, writer.environment(environment))


def study_of(description: StudyDescription) -> Select[int]:
    """The number of the study of that description which began here on this device, else on one of the same model."""
    model = dict(description.device.model)
    this_device = tables.Device.digest == tables.digest_of(tables.Device, description.device)
    return (
        select(tables.Study.id)
        .join(tables.Problem, tables.Problem.id == tables.Study.problem_id)
        .join(tables.Device, tables.Device.id == tables.Study.device_id)
        .where(tables.Study.origin_id == tables.OWN_ORIGIN, tables.Problem.key == description.problem.key)
        .where(*(getattr(tables.Study, word) == getattr(description, word) for word in STUDY_WORDS))
        .where(*(getattr(tables.Device, name) == value for name, value in model.items()))
        .order_by(this_device.desc(), tables.Study.id)
        .limit(1)
    )


class StudyLog:
    """One study's trials in the database: a `tunebench.tuner.study.history.TrialLog`.

    Attributes:
        study_id: the study's number in this database.
    """

    def __init__(self, database: Database, study_id: int, environment: Environment, environment_id: int) -> None:
        self.study_id = study_id
        self._database = database
        self._environment = environment
        self._environment_id = environment_id
        self._claims = Claims(database, study_id)

    def past(self, after: int = -1) -> Sequence[PastTrial]:
        """The study's trials so far with a number above this one, by number."""
        with self._database.reading() as connection:
            rows = connection.execute(_PAST, {"study_id": self.study_id, "after": after})
            return [_past(*row) for row in rows]

    def result(self, number: int) -> TrialResult:
        """Return the result of a trial of this study, without its build."""
        with reading(self._database) as reader:
            found = reader.trial(self._trial_id(reader.connection, number))
        assert found is not None
        return found[1].standing

    def claim(self, configuration: Configuration) -> bool:
        """Take a configuration for this process, until it is recorded or `release`d or the process ends.

        Returns:
            False where another process is at it, or has recorded it.
        """
        if not self._claims.take(configuration.key):
            return False
        # Whoever had it before has recorded it and let go, or let go without.
        with self._database.reading() as connection:
            return not connection.scalar(_TRIED, {"study_id": self.study_id, "key": configuration.key})

    def release(self) -> None:
        """Let go of every configuration that is claimed and not recorded."""
        self._claims.close()

    def record(self, result: TrialResult) -> int | None:
        """Add a trial with its build, verdict and measurement, in one transaction.

        Returns:
            the number that it got in the study, the next one; None where another process has recorded this
            configuration, so that nothing is added.
        """
        number = self._recorded(result)
        self._claims.let_go(result.configuration.key)
        return number

    def _recorded(self, result: TrialResult) -> int | None:
        key = result.configuration.key
        with self._database.writing() as connection:
            if connection.dialect.name == "postgresql":
                # Others that record trials of this study wait here; on SQLite they waited for the transaction.
                connection.execute(_STUDY_LOCKED, {"study_id": self.study_id})
            writer = self._writer(connection)
            configuration_id = writer.configurations([key])[key]
            place = {"study_id": self.study_id, "configuration_id": configuration_id}
            number, tried = connection.execute(_PLACE, place).one()
            if tried:
                return None
            trial = RecordedTrial.of(number, result, self._environment, datetime.now(UTC))
            writer.add_trials([(self.study_id, configuration_id, trial)])
            return int(number)

    def refuse(self, number: int, stage: Stage) -> None:
        """Refuse a correct trial of this study, in one transaction; one that was refused before stays as it is."""
        refusal = LateRefusal(stage.name, stage.seconds, stage.detail, datetime.now(UTC))
        with self._database.writing() as connection:
            self._writer(connection).refuse({self._trial_id(connection, number): refusal})

    def conclude(self, comparison: Comparison) -> None:
        """Add the comparison that ends the study, in one transaction; its best must be one of the study's trials.

        It is the newest of its kernel and problem: where the clock went back, its moment is just after the latest.
        """
        key = comparison.best.key
        with self._database.writing() as connection:
            latest = connection.scalar(_LATEST_CONCLUDED, {"study_id": self.study_id})
            now = datetime.now(UTC)
            moment = now if latest is None else max(now, latest + timedelta(microseconds=1))
            recorded = RecordedComparison.of(comparison, self._environment, moment)
            writer = self._writer(connection)
            writer.add_comparison(self.study_id, writer.configurations([key])[key], recorded)

    def _writer(self, connection: Connection) -> Writer:
        return Writer(connection, {self._environment: self._environment_id})

    def _trial_id(self, connection: Connection, number: int) -> int:
        query = select(tables.Trial.id).where(tables.Trial.study_id == self.study_id, tables.Trial.number == number)
        return connection.execute(query).scalar_one()


_BEGINNING = 0x74756E6562656E63
"""The advisory lock of whoever looks whether a study has begun."""

# Statements are put together once: that takes longer than running them.
_OF_STUDY = tables.Trial.study_id == bindparam("study_id")
_STUDY_LOCKED = select(tables.Study.id).where(tables.Study.id == bindparam("study_id")).with_for_update()
_PLACE = select(
    select(func.coalesce(func.max(tables.Trial.number) + 1, 0)).where(_OF_STUDY).scalar_subquery(),
    exists().where(_OF_STUDY, tables.Trial.configuration_id == bindparam("configuration_id")),
)
"""The number that a study's next trial gets, and whether a configuration has one already."""
_ALIKE = aliased(tables.Study)
_LATEST_CONCLUDED = (
    select(func.max(tables.Comparison.concluded_at))
    .join(_ALIKE, _ALIKE.id == tables.Comparison.study_id)
    .join(tables.Study, and_(tables.Study.kernel == _ALIKE.kernel, tables.Study.problem_id == _ALIKE.problem_id))
    .where(tables.Study.id == bindparam("study_id"))
)
"""When the latest comparison of a study's kernel and problem ended."""
_PAST = (
    select(
        tables.Trial.number,
        tables.Configuration.key,
        tables.Trial.status,
        tables.Trial.median_ms,
        tables.Trial.clock,
        type_coerce(tables.Trial.document, JSON)[("measurement", "energy_mj")].as_float(),
    )
    .join(tables.Configuration, tables.Configuration.id == tables.Trial.configuration_id)
    .where(_OF_STUDY, tables.Trial.number > bindparam("after"))
    .order_by(tables.Trial.number)
)
_TRIED = select(
    exists()
    .where(_OF_STUDY, tables.Trial.configuration_id == tables.Configuration.id)
    .where(tables.Configuration.key == bindparam("key"))
)


def _past(number: int, key: str, status: str, *measured: Any) -> PastTrial:
    return PastTrial(number, configuration_of(key), member_of(TrialStatus, status), *measured)
