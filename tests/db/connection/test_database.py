"""What goes into the database comes out of it, whoever writes at the same time and however odd the text."""

from __future__ import annotations

import math
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

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
    result,
)
from sqlalchemy import func, select

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import StudyLog, open_study
from tunebench.db.queries.trials import trials
from tunebench.db.schema import tables
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Baseline, TrialStatus
from tunebench.tuner.study.history import PastTrial, TrialLog


def one(database: Database, query: object) -> dict[str, object]:
    with database.reading() as connection:
        return dict(connection.execute(query).mappings().one())  # type: ignore[call-overload]


def count(database: Database, table: type) -> int:
    with database.reading() as connection:
        return connection.scalar(select(func.count()).select_from(table)) or 0


@pytest.fixture
def log(database: Database) -> StudyLog:
    return open_study(database, STUDY, ENVIRONMENT)


@pytest.mark.parametrize("status", TrialStatus)
def test_every_status_comes_back_as_it_was_recorded(database: Database, log: TrialLog, status: TrialStatus) -> None:
    recorded = result(3, status)
    log.record(recorded)

    (row,) = trials(database)
    assert (row.number, row.status, row.configuration) == (0, status, recorded.configuration)
    assert (row.kernel, row.problem, row.message) == (STUDY.kernel, STUDY.problem, recorded.message)
    assert (row.device_name, row.device_uuid, row.architecture) == (H200.name, H200.uuid, H200.architecture)
    measured = recorded.measurement
    assert row.median_ms == (measured.median_ms if measured else None)
    assert (row.low_ms, row.high_ms) == ((measured.low_ms, measured.high_ms) if measured else (None, None))
    assert list(log.past()) == [PastTrial.of(0, recorded)]
    assert one(database, select(tables.Trial.seconds))["seconds"] == dict(recorded.seconds)
    assert count(database, tables.Measurement) == (measured is not None)
    assert count(database, tables.Verdict) == (recorded.verdict is not None)
    assert count(database, tables.Build) == (recorded.build is not None)


def test_samples_come_back_bit_for_bit(database: Database, log: TrialLog) -> None:
    samples = (math.pi, 1 / 3, 5e-324, 1.7976931348623157e308)
    timed = replace(correct(0), measurement=replace(correct(0).measurement or pytest.fail(), samples_ms=samples))
    log.record(timed)
    row = one(
        database, select(tables.Measurement.samples_ms, tables.Measurement.sample_count, tables.Measurement.clock)
    )
    assert (tuple(row["samples_ms"]), row["sample_count"], row["clock"]) == (samples, 4, "cuda-event")


def test_a_verdict_keeps_its_figures_and_stages_in_order(database: Database, log: TrialLog) -> None:
    log.record(failed(0, TrialStatus.CORRECTNESS))
    row = one(database, select(tables.Verdict.__table__))
    assert (row["passed"], row["reason"], row["tolerance"]) == (False, "element 3000000000 is wrong", 1e-4)
    assert (row["max_absolute"], row["max_relative"], row["relative_norm"]) == (math.inf, None, 0.5)
    assert (row["first_wrong_index"], row["untouched"]) == (3_000_000_000, 7)
    with database.reading() as connection:
        stage = tables.VerdictStage
        query = select(stage.name, stage.passed, stage.seconds, stage.detail).order_by(stage.position)
        stages = [tuple(row) for row in connection.execute(query)]
    assert stages == [("shapes", True, 0.001, ""), ("values", False, 0.02, "case 1")]


def test_a_verdict_without_figures_has_none(database: Database, log: TrialLog) -> None:
    log.record(replace(correct(0), verdict=replace(PASSED, errors=None)))
    row = one(database, select(tables.Verdict.max_absolute, tables.Verdict.untouched))
    assert set(row.values()) == {None}


def test_a_build_keeps_its_figures_and_not_its_binary(database: Database, log: TrialLog) -> None:
    log.record(correct(1))
    row = one(database, select(tables.Build.__table__))
    assert (row["variant_digest"], row["log"], row["code_bytes"]) == ("variant-1", "log of 1", 7)
    assert len(str(row["code_sha256"])) == 64
    with database.reading() as connection:
        query = select(tables.BuildFigures.__table__).order_by(tables.BuildFigures.entry_point)
        figures = [tuple(row)[1:] for row in connection.execute(query)]
    assert figures == [("scale", 32, 0, 0, 16, 4096), ("tail", None, None, None, None, None)]
    assert one(database, select(tables.Trial.build_cached)) == {"build_cached": True}


def test_trials_that_share_a_build_share_its_row(database: Database, log: TrialLog) -> None:
    log.record(replace(correct(0), build=build(7)))
    log.record(replace(correct(1), build=build(7)))
    log.record(replace(correct(2), build=build(7, code=b"other")))
    assert count(database, tables.Build) == 2
    assert count(database, tables.BuildFigures) == 4


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


@pytest.mark.parametrize("with_default", [True, False])
def test_a_comparison_keeps_samples_and_ratios(database: Database, log: StudyLog, with_default: bool) -> None:
    log.record(correct(0))
    ended = comparison(0, with_default=with_default)
    log.conclude(ended)
    with database.reading() as connection:
        contenders = connection.execute(select(tables.Contender)).all()
        ratios = {row.baseline: row for row in connection.execute(select(tables.SpeedUp))}
    assert {row.name: tuple(row.samples_ms) for row in contenders} == dict(ended.samples_ms)
    assert {row.name: row.median_ms for row in contenders} == dict(ended.medians_ms)
    assert set(ratios) == {baseline.value for baseline in ended.speedups}
    (row,) = trials(database)
    assert row.over_reference == ended.speedups[Baseline.REFERENCE]
    assert row.over_default == ended.speedups.get(Baseline.DEFAULT)


def test_a_comparison_is_won_by_a_trial_of_the_study(database: Database, log: StudyLog) -> None:
    log.record(correct(0))
    with pytest.raises(DatabaseError):
        log.conclude(comparison(1))
    assert count(database, tables.Comparison) == count(database, tables.Contender) == 0


def test_a_configuration_is_recorded_once_and_numbers_are_the_databases(database: Database, log: StudyLog) -> None:
    same = open_study(database, STUDY, ENVIRONMENT)
    assert (log.record(correct(0)), same.record(correct(1)), log.record(correct(2))) == (0, 1, 2)
    assert same.record(correct(2, 5.0)) is None
    # The trial that came too late left nothing of itself behind.
    assert count(database, tables.Trial) == count(database, tables.Measurement) == count(database, tables.Verdict) == 3
    assert [trial.number for trial in log.past(after=0)] == [1, 2]
    assert open_study(database, replace(STUDY, seed=9), ENVIRONMENT).record(correct(2)) == 0


@pytest.mark.slow
def test_processes_that_record_one_study_at_once_lose_nothing(url: str) -> None:
    with open_database(url) as database:
        open_study(database, STUDY, ENVIRONMENT)
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        answers = list(pool.map(_record_some, [url] * 4, range(4)))
    given = [number for numbers in answers for number in numbers if number is not None]
    # Each offers configurations that the next one offers too: whoever is first has it.
    assert sorted(given) == list(range(50))
    with open_database(url, read_only=True) as database:
        rows = trials(database, limit=None)
        assert {row.number for row in rows} == set(range(50))
        assert len({row.configuration for row in rows}) == 50


def _record_some(url: str, process: int) -> list[int | None]:
    with open_database(url) as database:
        log = open_study(database, STUDY, ENVIRONMENT)
        return [log.record(correct(number)) for number in range(10 * process, 10 * process + 20)]


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


WRITER = """
import sys
from dataclasses import replace
from sample_results import ENVIRONMENT, STUDY, comparison, correct
from tunebench.db.connection.database import open_database
from tunebench.db.entries.study_log import StudyLog, open_study

url, writer, trials = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open_database(url) as database:
    log = open_study(database, replace(STUDY, seed=writer), ENVIRONMENT)
    for number in range(trials):
        log.record(correct(number))
    log.conclude(comparison(0))
"""


@pytest.mark.slow
def test_processes_that_write_at_once_lose_nothing(url: str) -> None:
    """They also create the database at once."""
    writers, each = 3, 40
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, url, str(writer), str(each)],
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        for writer in range(writers)
    ]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * writers, errors
    with open_database(url) as database:
        assert count(database, tables.Study) == count(database, tables.Comparison) == writers
        assert count(database, tables.Trial) == count(database, tables.Measurement) == writers * each
        assert count(database, tables.Configuration) == count(database, tables.Build) == each
        assert count(database, tables.Problem) == count(database, tables.Device) == 1
        for seed in range(writers):
            log = open_study(database, replace(STUDY, seed=seed), ENVIRONMENT)
            assert [trial.number for trial in log.past()] == list(range(each))
