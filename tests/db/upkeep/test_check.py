"""What a check finds, and what is counted."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sample_results import ENVIRONMENT, STUDY, comparison, correct, failed

from tunebench.db.connection.database import Database, open_database, upgrade_database
from tunebench.db.connection.upgrade import HEAD
from tunebench.db.entries.study_log import open_study
from tunebench.db.upkeep.check import TrialCount, inspect_database, statistics
from tunebench.tuner.result import TrialStatus

CHANGING = "DROP TRIGGER tunebench_trials_no_update; UPDATE tunebench_trials SET"


@pytest.fixture
def filled(database: Database) -> Database:
    """Three trials, one of them refused, and a comparison."""
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(correct(0))
    log.record(correct(1))
    log.record(failed(2, TrialStatus.CORRECTNESS))
    log.conclude(comparison(1))
    return database


def test_a_database_of_ours_is_sound(filled: Database) -> None:
    findings = inspect_database(filled)
    assert [(one.subject, one.problems) for one in findings if not one.sound] == []
    looked_at = {one.subject: one.looked_at for one in findings}
    assert looked_at["every configuration decodes"] == 3
    assert looked_at["every sample is a time"] == looked_at["every trial is its document"] == 3


def test_how_a_view_is_written_does_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    open_database(file).close()
    with closing(sqlite3.connect(file)) as connection:
        found = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'view'").fetchall()
        for name, sql in found:
            connection.execute(f"DROP VIEW {name}")
            # As another version of SQLAlchemy may write it.
            connection.execute(sql.replace("tunebench_trials", '"tunebench_trials"').replace("SELECT", "select\n\t"))
        connection.commit()
    assert {name for name, _ in found} == {"best", "leaderboard", "trials_flat"}
    with open_database(file, read_only=True) as database:
        assert [one for one in inspect_database(database) if not one.sound] == []


def test_rows_are_counted(filled: Database) -> None:
    found = statistics(filled)
    assert found.revision == HEAD
    assert found.rows["tunebench_trials"] == 3 and found.rows["tunebench_studies"] == 1
    assert found.trials == (
        TrialCount("scalar_mul", "NVIDIA H200", "correct", 2),
        TrialCount("scalar_mul", "NVIDIA H200", "correctness", 1),
    )
    assert found.bytes > 10_000


@pytest.mark.parametrize(
    ("damage", "subject", "problem"),
    [
        ("DROP TRIGGER tunebench_trials_no_update", "triggers and views", "tunebench_trials_no_update is missing"),
        ("CREATE VIEW extra AS SELECT 1", "triggers and views", "view extra is not tunebench's"),
        ("DROP VIEW best; CREATE VIEW best AS SELECT * FROM trials_flat", "triggers and views", "view best is not as"),
        ("DROP INDEX ix_tunebench_trials_fastest", "triggers and views", "ix_tunebench_trials_fastest is missing"),
        ("INSERT INTO tunebench_configurations (key) VALUES ('{\"a\": 1}')", "configuration", "canonical"),
        ("INSERT INTO tunebench_configurations (key) VALUES ('no')", "configuration", "'no' as a configuration"),
        (
            "DROP TRIGGER tunebench_devices_no_update; UPDATE tunebench_devices SET name = 'faster'",
            "every device",
            "row 1 of tunebench_devices was changed",
        ),
        (
            "PRAGMA foreign_keys = 0; INSERT INTO tunebench_comparisons (study_id, configuration_id, environment_id, "
            "concluded_at, conclusive, document) VALUES (1, 77, 1, '2026-01-01T00:00:00+00:00', 1, '{}')",
            "every reference",
            "refers to a row of tunebench_trials",
        ),
        (
            "INSERT INTO tunebench_problems (key, dtype, axes, options) VALUES ('a', 'b', '{', '{}')",
            "problem",
            "where JSON belongs",
        ),
        (
            f"{CHANGING} document = replace(document, '\"samples_ms\":[1.0', '\"samples_ms\":[-1.0')",
            "every sample",
            "where positive times belong",
        ),
        (f"{CHANGING} median_ms = 0.95", "every trial", "another median_ms than its document"),
        (f"{CHANGING} document = '[]'", "every trial", "has no document of tunebench's"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, damage: str, subject: str, problem: str) -> None:
    file = tmp_path / "results.db"
    with open_database(file) as database:
        open_study(database, STUDY, ENVIRONMENT).record(correct(0))
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(damage)
    with open_database(file, read_only=True) as database:
        (wrong,) = [one for one in inspect_database(database) if subject in one.subject]
        assert any(problem in line for line in wrong.problems), wrong


def test_an_upgrade_says_what_it_did(url: str) -> None:
    assert (upgrade_database(url).before, upgrade_database(url).before) == (None, HEAD)
