"""Claims: what one process is at no other one gets, until it is recorded, let go of, or its holder is killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from database_process import DatabaseProcess
from sample_database import place_of
from sample_results import ENVIRONMENT, STUDY, configuration, correct

from tunebench.db.connection.database import Database
from tunebench.db.entries.study_log import StudyLog, open_study


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
    assert log.claim(configuration(1))


def test_what_was_recorded_is_not_had_either(log: StudyLog, other: DatabaseProcess) -> None:
    assert log.claim(configuration(1))
    assert log.record(correct(1)) == 0
    assert not other.claim(0, 1)
    assert not log.claim(configuration(1))
