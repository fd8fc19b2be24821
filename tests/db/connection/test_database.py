"""What goes into the database comes out of it, whoever writes at the same time and however odd the text."""

from __future__ import annotations

import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sample_results import (
    ENVIRONMENT,
    H200,
    PASSED,
    STUDY,
    build,
    comparison,
    configuration,
    correct,
    failed,
)
from sqlalchemy import select

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import StudyLog, open_study
from tunebench.db.queries.trials import trials
from tunebench.db.schema import tables
from tunebench.db.upkeep.check import statistics
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import TrialStatus
from tunebench.tuner.study.history import TrialLog


def one(database: Database, query: object) -> dict[str, object]:
    with database.reading() as connection:
        return dict(connection.execute(query).mappings().one())  # type: ignore[call-overload]


def document_of(database: Database, table: Any = tables.Trial) -> Any:
    """The document of a table's only row."""
    return one(database, select(table.document))["document"]


def count(database: Database, table: type[tables.Base]) -> int:
    return statistics(database).rows[table.__tablename__]


@pytest.fixture
def log(database: Database) -> StudyLog:
    return open_study(database, STUDY, ENVIRONMENT)


def test_samples_come_back_bit_for_bit(database: Database, log: TrialLog) -> None:
    samples = (math.pi, 1 / 3, 5e-324, 1.7976931348623157e308)
    timed = replace(correct(0), measurement=replace(correct(0).measurement or pytest.fail(), samples_ms=samples))
    log.record(timed)
    row = one(database, select(tables.Trial.sample_count, tables.Trial.clock))
    assert (row["sample_count"], row["clock"]) == (4, "cuda-event")
    assert tuple(document_of(database)["measurement"]["samples_ms"]) == samples


def test_a_document_says_in_json_what_json_has_no_word_for(database: Database, log: StudyLog) -> None:
    log.record(failed(0, TrialStatus.CORRECTNESS))
    verdict = document_of(database)["verdict"]
    assert (verdict["max_absolute"], verdict["max_relative"], verdict["relative_norm"]) == ("Infinity", None, 0.5)
    columns = one(database, select(tables.Trial.max_relative_error, tables.Trial.tolerance))
    assert columns == {"max_relative_error": None, "tolerance": 1e-4}


def test_an_infinite_error_is_infinite_in_sql(database: Database, log: TrialLog) -> None:
    assert PASSED.errors is not None
    log.record(replace(correct(0), verdict=replace(PASSED, errors=replace(PASSED.errors, max_relative=math.inf))))
    assert one(database, select(tables.Trial.max_relative_error)) == {"max_relative_error": math.inf}


def test_the_columns_of_a_build_are_the_largest_of_its_entry_points(database: Database, log: StudyLog) -> None:
    log.record(correct(1))
    columns = select(tables.Build.registers, tables.Build.spill_bytes, tables.Build.shared_bytes)
    assert one(database, columns) == {"registers": 32, "spill_bytes": 0, "shared_bytes": 4096}


def test_trials_that_share_a_build_share_its_row(database: Database, log: TrialLog) -> None:
    log.record(replace(correct(0), build=build(7)))
    log.record(replace(correct(1), build=build(7)))
    log.record(replace(correct(2), build=build(7, code=b"other")))
    assert count(database, tables.Build) == 2


def test_a_study_goes_on_where_it_ended(url: str) -> None:
    with open_database(url) as database:
        first = open_study(database, STUDY, ENVIRONMENT)
        first.record(correct(0))
        first.record(failed(1, TrialStatus.COMPILE))
    with open_database(url) as database:
        again = open_study(database, STUDY, replace(ENVIRONMENT, driver="590.0"))
        assert again.study_id == first.study_id
        assert [trial.number for trial in again.past()] == [0, 1]
        again.record(correct(2))
        assert count(database, tables.Study) == 1
        assert count(database, tables.Environment) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "other"},
        {"source_digest": "source-2"},
        {"space_digest": "space-2"},
        {"problem": Problem({"rows": 1, "columns": 1})},
        {"device": replace(H200, name="another GPU")},
        {"sampler": "random"},
        {"seed": 1},
    ],
)
def test_another_description_is_another_study(database: Database, change: dict[str, object]) -> None:
    first = open_study(database, STUDY, ENVIRONMENT)
    first.record(correct(0))
    other = open_study(database, replace(STUDY, **change), ENVIRONMENT)
    assert other.study_id != first.study_id
    assert list(other.past()) == []


def test_a_card_is_the_same_at_another_index(database: Database) -> None:
    first = open_study(database, STUDY, ENVIRONMENT)
    assert open_study(database, replace(STUDY, device=replace(H200, index=3)), ENVIRONMENT).study_id == first.study_id
    assert count(database, tables.Device) == 1


def test_a_comparison_is_won_by_a_trial_of_the_study(database: Database, log: StudyLog) -> None:
    log.record(correct(0))
    with pytest.raises(DatabaseError):
        log.conclude(comparison(1))
    assert count(database, tables.Comparison) == 0


def test_a_configuration_is_recorded_once_and_numbers_are_the_databases(database: Database, log: StudyLog) -> None:
    same = open_study(database, STUDY, ENVIRONMENT)
    assert (log.record(correct(0)), same.record(correct(1)), log.record(correct(2))) == (0, 1, 2)
    assert same.record(correct(2, 5.0)) is None
    # The trial that came too late left nothing of itself behind.
    assert count(database, tables.Trial) == 3
    assert count(database, tables.Build) == 3
    assert [trial.number for trial in log.past(after=0)] == [1, 2]
    assert open_study(database, replace(STUDY, seed=9), ENVIRONMENT).record(correct(2)) == 0


@pytest.mark.slow
def test_processes_that_write_at_once_lose_nothing(url: str) -> None:
    """They also create the database at once, and record one study together and each a study of its own."""
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        answers = list(pool.map(_record_some, [url] * 4, range(4)))
    # Each offers configurations that the next one offers too: whoever is first has it.
    assert sorted(number for numbers in answers for number in numbers if number is not None) == list(range(50))
    with open_database(url) as database:
        rows = trials(database, limit=None, study_id=open_study(database, STUDY, ENVIRONMENT).study_id)
        assert {row.number for row in rows} == set(range(50)) and len({row.configuration for row in rows}) == 50
        assert count(database, tables.Study) == 5 and count(database, tables.Comparison) == 4
        assert count(database, tables.Trial) == 50 + 4 * 20
        assert count(database, tables.Configuration) == count(database, tables.Build) == 50
        assert count(database, tables.Problem) == count(database, tables.Device) == 1
        for seed in range(1, 5):
            log = open_study(database, replace(STUDY, seed=seed), ENVIRONMENT)
            assert [trial.number for trial in log.past()] == list(range(20))


def _record_some(url: str, process: int) -> list[int | None]:
    with open_database(url) as database:
        together = open_study(database, STUDY, ENVIRONMENT)
        own = open_study(database, replace(STUDY, seed=1 + process), ENVIRONMENT)
        given = []
        for number in range(10 * process, 10 * process + 20):
            given.append(together.record(correct(number)))
            own.record(correct(number))
        own.conclude(comparison(10 * process))
        return given


ODD = """Robert'); DROP TABLE tunebench_trials; -- "quoted" `ticks` %s :name ? {brace} \\ é 漢字 🙂 \u202e"""


def test_odd_names_and_texts_are_only_text(database: Database) -> None:
    problem = Problem({ODD: 3}, ODD, {ODD: ODD})
    log = open_study(database, replace(STUDY, kernel=ODD, sampler=ODD, problem=problem), ENVIRONMENT)
    odd = replace(failed(0, TrialStatus.COMPILE, ODD * 100), configuration=configuration(0))
    log.record(odd)
    (row,) = trials(database, kernel=ODD, problem=problem, sampler=ODD)
    assert (row.kernel, row.problem, row.message, row.sampler) == (ODD, problem, ODD * 100, ODD)
    assert len(row.message) > 8_000
    assert trials(database, kernel="' OR 1=1 --") == []


def test_what_no_database_can_hold_is_escaped(database: Database, log: StudyLog) -> None:
    log.record(failed(0, TrialStatus.COMPILE, "a\0b\udcffc"))
    (row,) = trials(database)
    assert row.message == "a\\x00b\\udcffc"
