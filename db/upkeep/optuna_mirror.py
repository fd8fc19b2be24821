"""A copy of a study as an Optuna study, for Optuna's own tools (its dashboard, its plots).

The copy is kept in the same database, or in a storage of the caller's where the database cannot be written.

tunebench's trials are the only truth. The copy is extended when it is published again, and made anew where it cannot be
extended, so it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from tunebench.db.connection.database import Database
from tunebench.db.connection.engine import BUSY_SECONDS, as_database_error, file_of
from tunebench.db.queries.rows import TrialRow
from tunebench.db.queries.trials import Order, trials
from tunebench.db.schema import tables
from tunebench.tuner.configuration import Value
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.result import TrialStatus

TRIAL_ATTRIBUTE = "tunebench_trial"
"""The user attribute of an Optuna trial that holds the number of the trial that it is a copy of."""

_STUDY_ATTRIBUTE = "tunebench_study"
_CHOICES_ATTRIBUTE = "tunebench_choices"
_LONGEST_NAME = 512
_LOCK = 0x6F707475
"""The advisory lock on PostgreSQL under which copies are made; any number that nobody else takes."""

_STATES = {TrialStatus.CORRECT: TrialState.COMPLETE, TrialStatus.PRUNED: TrialState.PRUNED}


def publish(
    database: Database,
    study_id: int,
    choices: Mapping[str, Sequence[Value]] | None = None,
    storage: BaseStorage | None = None,
) -> str:
    """Create or extend the Optuna study that copies a study; publishing twice changes nothing.

    A trial's value is its median in milliseconds. Its parameters are the active tunables; a failure is a failed trial
    whose user attributes `status` and `message` say why. Processes take turns.

    Args:
        choices: every tunable's values in their order; a tunable that is missing has the values seen in trials.
        storage: where the copy goes; None for the database itself.

    Returns:
        the Optuna study's name.

    Raises:
        DatabaseError: there is no such study, or the database cannot be written.
    """
    if storage is None:
        with _storage_in(database) as own:
            return publish(database, study_id, choices, own)
    rows = list(reversed(trials(database, study_id=study_id, order=Order.NEWEST, limit=None)))
    if not rows:
        raise DatabaseError(f"{database.name} has no study {study_id} with trials in it")
    study = _study_to_extend(storage, rows, _all_choices(rows, choices or {}))
    published = {trial.user_attrs.get(TRIAL_ATTRIBUTE) for trial in study.get_trials(deepcopy=False)}
    legal = study.user_attrs[_CHOICES_ATTRIBUTE]
    study.add_trials(_frozen(row, legal) for row in rows if row.trial_id not in published)
    return study.study_name


def prepare(database: Database) -> None:
    """Make Optuna's tables in the database now, where they are not there: `publish` then takes less time.

    Raises:
        DatabaseError: the database cannot be written.
    """
    with _storage_in(database):
        pass


def publish_all(database: Database, storage: BaseStorage | None = None) -> int:
    """Publish every study that has trials; a copy that is there keeps its tunables' values.

    Args:
        storage: where the copies go; None for the database itself.

    Returns:
        how many studies there are.
    """
    if storage is None:
        with _storage_in(database) as own:
            return publish_all(database, own)
    with database.reading() as connection:
        study_ids = connection.scalars(select(tables.Trial.study_id).distinct().order_by(tables.Trial.study_id)).all()
    choices = _published_choices(storage) if study_ids else {}
    for study_id in study_ids:
        publish(database, study_id, choices.get(study_id), storage)
    return len(study_ids)


def _published_choices(storage: BaseStorage) -> dict[int, Mapping[str, Sequence[Value]]]:
    """Return the tunables' values of the copies that are there, by the study that each is a copy of."""
    attributes = [study.user_attrs for study in storage.get_all_studies()]
    found = ((entry.get(_STUDY_ATTRIBUTE), entry.get(_CHOICES_ATTRIBUTE)) for entry in attributes)
    return {number: choices for number, choices in found if isinstance(number, int) and isinstance(choices, dict)}


@contextmanager
def _storage_in(database: Database) -> Iterator[BaseStorage]:
    """Open Optuna's storage on the database while the block runs, with its errors as a `DatabaseError`."""
    if database.read_only:
        raise DatabaseError(f"{database.name} was opened for reading only")
    with _alone(database):
        storage = optuna_storage(database)
        try:
            yield storage
        except SQLAlchemyError as error:
            raise as_database_error(error, database.name) from error
        except optuna.exceptions.StorageInternalError as error:
            cause = error.__cause__ or error
            raise DatabaseError(f"{database.name}: Optuna could not write its copy: {cause}") from error
        finally:
            storage.remove_session()
            storage.engine.dispose()


@contextmanager
def _alone(database: Database) -> Iterator[None]:
    """Let no other process make a copy in this database while the block runs: Optuna takes several steps for it."""
    file = file_of(database.url)
    if file is None:
        with database.writing() as connection:
            connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
            yield
        return
    # The folder, since a file beside the database would stay, and to close the database itself drops SQLite's locks.
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        # A file system that cannot lock a folder leaves us as we are.
        with contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def optuna_storage(database: Database) -> RDBStorage:
    """Return Optuna's storage on the same database, waiting for writers as tunebench does; its caller closes it."""
    file = file_of(database.url)
    try:
        if file is None:
            # Optuna takes its URL for a template.
            url = database.url.render_as_string(hide_password=False)
            return RDBStorage(url.replace("{", "{{").replace("}", "}}"))
        # The path goes around the URL, in which braces, question marks and percent signs mean something.
        options = {"creator": lambda: sqlite3.connect(file, BUSY_SECONDS, check_same_thread=False)}
        return RDBStorage("sqlite:///tunebench", engine_kwargs=options)
    except SQLAlchemyError as error:
        raise as_database_error(error, database.name) from error


def _all_choices(rows: Iterable[TrialRow], given: Mapping[str, Sequence[Value]]) -> dict[str, list[Value]]:
    """Return every tunable's values: those given, then those seen, in an order independent of the trials'."""
    seen: dict[str, set[Value]] = {}
    for row in rows:
        for name, value in row.configuration.items():
            seen.setdefault(name, set()).add(value)
    choices = {name: list(values) for name, values in given.items()}
    for name, values in seen.items():
        listed = choices.setdefault(name, [])
        listed += sorted(values - set(listed), key=lambda value: (str(type(value)), value))
    return choices


def _study_to_extend(storage: BaseStorage, rows: Sequence[TrialRow], choices: dict[str, list[Value]]) -> optuna.Study:
    """Return the copy, empty where there was none or where it has to be made anew.

    Optuna does not let a parameter's choices change within a study, nor a trial that is over, as one changes that is
    refused late; and a copy that two processes extended at the same moment has trials twice.
    """
    name = _name(rows[0])
    study = optuna.create_study(storage=storage, study_name=name, direction="minimize", load_if_exists=True)
    attributes = study.user_attrs
    copied = [trial.user_attrs for trial in study.get_trials(deepcopy=False)]
    copies = [one.get(TRIAL_ATTRIBUTE) for one in copied]
    refused = {row.trial_id for row in rows if row.status is TrialStatus.CORRECTNESS}
    changed = any(one.get(TRIAL_ATTRIBUTE) in refused and one.get("status") == TrialStatus.CORRECT for one in copied)
    if copies and (changed or attributes.get(_CHOICES_ATTRIBUTE) != choices or len(set(copies)) != len(copies)):
        optuna.delete_study(study_name=name, storage=storage)
        study = optuna.create_study(storage=storage, study_name=name, direction="minimize")
    if study.user_attrs.get(_CHOICES_ATTRIBUTE) != choices:
        for key, value in _attributes(rows[0]).items():
            study.set_user_attr(key, value)
        study.set_user_attr(_CHOICES_ATTRIBUTE, choices)
    return study


def _name(row: TrialRow) -> str:
    """Return a name that is readable, and unique by its last part."""
    end = f"/{row.study_id}"
    return f"{row.kernel}/{row.problem}/{row.device_name}"[: _LONGEST_NAME - len(end)] + end


def _attributes(row: TrialRow) -> dict[str, Any]:
    return {
        _STUDY_ATTRIBUTE: row.study_id,
        "kernel": row.kernel,
        "source_digest": row.source_digest,
        "problem": str(row.problem),
        "device": row.device_name,
        "compiler": row.compiler,
        "sampler": row.sampler,
        "seed": row.seed,
    }


def _frozen(row: TrialRow, choices: Mapping[str, Sequence[Value]]) -> FrozenTrial:
    trial = optuna.create_trial(
        state=_STATES.get(row.status, TrialState.FAIL),
        value=row.median_ms,
        params=dict(row.configuration),
        distributions={name: CategoricalDistribution(list(choices[name])) for name in row.configuration},
        intermediate_values={0: row.median_ms} if row.status is TrialStatus.PRUNED and row.median_ms else {},
        user_attrs={TRIAL_ATTRIBUTE: row.trial_id, "status": row.status.value, "message": row.message},
    )
    # Optuna's times are local and without a zone.
    trial.datetime_start = trial.datetime_complete = datetime.fromtimestamp(row.recorded_at.timestamp())
    return trial
