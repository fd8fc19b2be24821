"""What a look-up at run time finds is what `best` says, whoever is asked: SQLite alone, or SQLAlchemy."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sample_database import fill, place_of
from sample_results import ENVIRONMENT, PROBLEM, STUDY, comparison, correct

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.look_up import known_best
from tunebench.db.queries.trials import best
from tunebench.tuner.errors import DatabaseError, DatabaseMissingError
from tunebench.tuner.result import CacheRegime
from tunebench.tuner.versions import Versions

ASKED = (STUDY.kernel, STUDY.source_digest, PROBLEM.dtype, STUDY.device.architecture)


def test_it_finds_what_best_says(database: Database) -> None:
    fill(database)
    found = known_best(*ASKED, place_of(database))
    kernel, digest, dtype, architecture = ASKED
    rows = best(database, kernel=kernel, source_digest=digest, dtype=dtype, architecture=architecture)
    assert rows
    assert {(one.trial_id, one.problem, one.device_name, one.configuration) for one in found} == {
        (row.trial_id, row.problem, row.device_name, row.configuration) for row in rows
    }
    ratios = {row.trial_id: row.over_reference for row in rows}
    for one in found:
        ratio = ratios[one.trial_id]
        assert one.over_reference == (ratio and (ratio.value, ratio.low, ratio.high))
    assert any(one.over_reference for one in found)
    assert not known_best("another", *ASKED[1:], place_of(database))


def test_confirmed_ones_come_first_then_those_with_cold_caches_then_the_newer(database: Database) -> None:
    for size, regime in ((1, CacheRegime.COLD), (2, CacheRegime.COLD), (3, CacheRegime.COLD), (4, CacheRegime.WARM)):
        log = open_study(database, replace(STUDY, problem=replace(PROBLEM, axes={"n": size})), ENVIRONMENT)
        log.record(correct(0, regime=regime))
        if size == 1:
            log.conclude(comparison(0))
    assert [one.problem.axes["n"] for one in known_best(*ASKED, place_of(database))] == [1, 3, 2, 4]


def test_a_file_and_its_url_give_the_same(empty_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    file.write_bytes(empty_file.read_bytes())
    with open_database(file) as database:
        fill(database)
    assert known_best(*ASKED, file) == known_best(*ASKED, f"sqlite:///{file}") != []


def test_what_is_in_the_way_has_its_words(tmp_path: Path) -> None:
    with pytest.raises(DatabaseMissingError, match="there is no results database at"):
        known_best(*ASKED, tmp_path / "nowhere.db")
    with pytest.raises(DatabaseError, match="it is a folder"):
        known_best(*ASKED, tmp_path)
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE something (else_ TEXT)")
        other.commit()
    with pytest.raises(DatabaseError, match="a database of something else"):
        known_best(*ASKED, tmp_path / "other.db")


def test_versions_are_those_of_the_comparison_else_of_the_trial(database: Database) -> None:
    log = open_study(database, STUDY, replace(ENVIRONMENT, cudnn="91300"))
    for number, median_ms in enumerate((2.0, 1.0)):
        log.record(correct(number, median_ms))
    (one,) = known_best(*ASKED, place_of(database))
    assert one.versions == Versions(torch="2.9.0", cuda="13.0", cudnn="91300", driver="580.1")
    open_study(database, STUDY, replace(ENVIRONMENT, driver="590.2")).conclude(comparison(1))
    (one,) = known_best(*ASKED, place_of(database))
    assert one.versions == Versions(torch="2.9.0", cuda="13.0", driver="590.2")
