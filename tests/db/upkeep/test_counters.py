"""Counters that are read later stand with their trial, which is otherwise as it was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_database import content, fill
from sample_results import ENVIRONMENT, STUDY, correct, failed
from sqlalchemy import update

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import open_study
from tunebench.db.exchange.merge import merge_databases
from tunebench.db.queries.one_trial import trial_details
from tunebench.db.queries.trials import Order, trials
from tunebench.db.schema import tables
from tunebench.db.upkeep.check import inspect_database
from tunebench.db.upkeep.counters import keep_counters
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.result import LaunchCounters, TrialStatus

READ = (LaunchCounters("scale", {"gpu__time_duration.sum": 2048.0}), LaunchCounters("tail", {}))


def test_counters_are_added_and_nothing_else_can_be_changed(database: Database) -> None:
    fill(database)
    number = trials(database, order=Order.FASTEST, limit=1)[0].trial_id
    before = trial_details(database, number)
    keep_counters(database, number, READ[:1])
    keep_counters(database, number, READ)
    after = trial_details(database, number)
    assert after.trial.counters == READ and before.trial.counters == ()
    assert after.row == before.row and after.trial.result == before.trial.result
    assert [one.problems for one in inspect_database(database) if not one.sound] == []
    with pytest.raises(DatabaseError, match="only ever added"), database.writing() as connection:
        connection.execute(update(tables.Trial).values(number=99))


def test_counters_go_into_other_databases(tmp_path: Path) -> None:
    with open_database(tmp_path / "one.db") as one:
        fill(one)
        keep_counters(one, trials(one, order=Order.FASTEST, limit=1)[0].trial_id, READ)
        there = content(one)
    merge_databases(tmp_path / "other.db", [tmp_path / "one.db"])
    with open_database(tmp_path / "other.db", read_only=True) as other:
        assert content(other) == there and any("gpu__time_duration" in text for text in there)


def test_a_study_that_goes_on_knows_the_energies_of_its_trials(database: Database) -> None:
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(correct(0, 2.0))
    log.record(failed(1, TrialStatus.COMPILE))
    assert [one.energy_mj for one in log.past()] == [1400.0, None]
