"""Claims: what one process is at no other one gets, until it is recorded, let go of, or its holder is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from database_process import DatabaseProcess
from sample_database import place_of
from sample_results import ENVIRONMENT, H100, STUDY, configuration, correct

from tunebench.db.connection.database import Database
from tunebench.db.entries.study_log import StudyLog, open_study
from tunebench.db.queries.trials import trials
from tunebench.db.queries.warm_start import begun_study


@pytest.fixture
def other(database: Database) -> Iterator[DatabaseProcess]:
    """Another process that has the database open."""
    process = DatabaseProcess(place_of(database))
    process.open(0)
    yield process
    process.kill()


@pytest.fixture
def log(database: Database) -> Iterator[StudyLog]:
    log = open_study(database, STUDY, ENVIRONMENT)
    yield log
    log.release()


def test_what_another_process_is_at_is_not_had(log: StudyLog, other: DatabaseProcess) -> None:
    assert other.claim(0, 1)
    assert not log.claim(configuration(1))
    assert log.claim(configuration(2)) and log.claim(configuration(2))
    assert not other.claim(0, 2)
    log.release()
    assert other.claim(0, 2)


def test_a_claim_ends_with_its_holder(log: StudyLog, other: DatabaseProcess) -> None:
    assert other.claim(0, 1)
    assert not log.claim(configuration(1))
    other.kill()
    deadline = time.monotonic() + 60  # a server of its own notices in its own time that the connection has gone
    while not log.claim(configuration(1)):
        assert time.monotonic() < deadline


def test_what_was_recorded_is_not_had_either(log: StudyLog, other: DatabaseProcess) -> None:
    assert log.claim(configuration(1))
    assert log.record(correct(1)) == 0
    assert not other.claim(0, 1)
    assert not log.claim(configuration(1))
    # Who had begun with it all the same adds nothing.
    assert log.record(correct(1, 0.5)) is None
    assert log.record(correct(2)) == 1


def test_devices_of_one_model_share_a_study_and_each_trial_knows_its_own(database: Database, log: StudyLog) -> None:
    card = replace(STUDY.device, uuid="GPU-9", memory_bytes=STUDY.device.memory_bytes - 4096)
    on_card = replace(ENVIRONMENT, host="another", device_uuid="GPU-9", sm_clock_mhz=1980)
    another = open_study(database, replace(STUDY, device=card), on_card)
    assert another.study_id == log.study_id
    assert open_study(database, replace(STUDY, device=H100), ENVIRONMENT).study_id != log.study_id
    begun = begun_study(database, replace(STUDY, device=card))
    assert begun is not None and begun.study == log.study_id
    log.record(correct(0))
    another.record(correct(1))
    log.record(replace(correct(2), environment=on_card))
    rows = sorted(trials(database), key=lambda row: row.number)
    assert [row.device_uuid for row in rows] == [STUDY.device.uuid, "GPU-9", "GPU-9"]
    with database.reading() as connection:
        told = connection.exec_driver_sql("SELECT device_uuid, host, sm_clock_mhz FROM trials_flat ORDER BY number")
        assert [tuple(row) for row in told][1:] == [("GPU-9", "another", 1980)] * 2
