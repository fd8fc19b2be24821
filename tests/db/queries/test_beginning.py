"""What the database has to begin a study with, and what it keeps of what a study began with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sample_results import A100, ENVIRONMENT, H100, H200, STUDY, configuration, correct, failed
from sqlalchemy import bindparam, text

from tunebench.db.connection.database import Database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.one_trial import trial_details
from tunebench.db.queries.warm_start import BegunStudy, begun_study, earlier_studies
from tunebench.db.schema import tables
from tunebench.db.schema.columns import Json
from tunebench.tuner.build import CompilerName
from tunebench.tuner.device import DeviceKind
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import TrialStatus
from tunebench.tuner.search.warm_start import WarmStart
from tunebench.tuner.study.history import StudyDescription

WARM_STARTS = (WarmStart(configuration(1), "trial 7, elsewhere"), WarmStart(configuration(2), "shipped, elsewhere"))


def record(database: Database, description: StudyDescription, *times_ms: float) -> None:
    log = open_study(database, description, ENVIRONMENT)
    for number, time_ms in enumerate(times_ms):
        log.record(correct(number, time_ms))


def test_an_empty_database_has_nothing(database: Database) -> None:
    assert begun_study(database, STUDY) is None
    assert earlier_studies(database, STUDY) == []


def test_studies_of_the_kernel_come_nearest_first(database: Database) -> None:
    smaller = replace(STUDY, problem=Problem({"rows": 256, "columns": 8192}, "float32", {"mode": "eval"}))
    record(database, replace(STUDY, device=A100), 5.0)
    record(database, replace(STUDY, device=H100), 4.0)
    record(database, replace(smaller, device=H100, source_digest="older"), 3.0)
    record(database, smaller, 2.0, 1.0)
    record(database, replace(STUDY, kernel="another"), 1.0)
    record(database, replace(STUDY, device=replace(H200, kind=DeviceKind.CPU), compiler=CompilerName.CPU), 1.0)
    earlier = earlier_studies(database, STUDY)
    assert [one.distance for one in earlier] == pytest.approx([1.0, 1.0, 2.0, 3.0])
    assert [[trial.time_ms for trial in one.trials] for one in earlier] == [[4.0], [1.0, 2.0], [5.0], [3.0]]
    assert earlier[0].description == "rows=1024 columns=8192 float32 mode=eval on NVIDIA H100"
    assert earlier[3].description == (
        "rows=256 columns=8192 float32 mode=eval on NVIDIA H100, another version of the source"
    )
    # Trials have the numbers by which `show` finds them.
    named = int(earlier[1].trials[0].name.removeprefix("trial "))
    assert trial_details(database, named).row.median_ms == 1.0


def test_studies_in_which_nothing_was_timed_say_nothing(database: Database) -> None:
    log = open_study(database, replace(STUDY, seed=1), ENVIRONMENT)
    log.record(failed(0, TrialStatus.COMPILE))
    open_study(database, replace(STUDY, seed=2), ENVIRONMENT)
    assert earlier_studies(database, STUDY) == []


def test_only_the_fastest_that_were_right_are_looked_at(database: Database) -> None:
    log = open_study(database, replace(STUDY, seed=1), ENVIRONMENT)
    log.record(failed(0, TrialStatus.RUNTIME))
    log.record(replace(correct(1, 0.1), status=TrialStatus.PRUNED, message="hopeless"))
    for number in range(2, 50):
        log.record(correct(number, 100.0 - number))
    (earlier,) = earlier_studies(database, STUDY)
    assert [trial.time_ms for trial in earlier.trials] == [100.0 - number for number in range(49, 17, -1)]


def test_a_study_goes_on_as_it_began(database: Database) -> None:
    log = open_study(database, STUDY, ENVIRONMENT, WARM_STARTS)
    log.record(correct(1, 1.5))
    log.record(correct(5, 1.2))
    assert begun_study(database, STUDY) == BegunStudy(log.study_id, WARM_STARTS)
    # What it began with is what it was created with, whatever it is opened with later.
    assert open_study(database, STUDY, ENVIRONMENT, ()).study_id == log.study_id
    assert begun_study(database, STUDY) == BegunStudy(log.study_id, WARM_STARTS)
    warm, own = (trial_details(database, number) for number in (1, 2))
    assert warm.warm_start_from == "trial 7, elsewhere"
    assert own.warm_start_from is None


def test_a_study_that_began_without_has_no_warm_starts(database: Database) -> None:
    log = open_study(database, STUDY, ENVIRONMENT)
    assert begun_study(database, STUDY) == BegunStudy(log.study_id, ())


@pytest.mark.parametrize(
    "value",
    [
        *(3, "text", {}, [3], [{}], [{"configuration": {"a": 1}}], [{"configuration": [], "origin": "x"}]),
        *([{"configuration": {"a": 1}, "origin": 3}], [{"configuration": {"a": [1]}, "origin": "x"}]),
    ],
)
def test_what_is_no_list_of_configurations_is_refused(database: Database, value: object) -> None:
    open_study(database, STUDY, ENVIRONMENT)
    with database.writing() as connection:
        # Another row, since rows are not changed.
        columns = [
            column for column in tables.Study.__table__.columns if column.name not in ("id", "sampler", "warm_starts")
        ]
        names = ", ".join(column.name for column in columns)
        connection.execute(
            text(
                f"INSERT INTO tunebench_studies ({names}, sampler, warm_starts) "
                f"SELECT {names}, 'hostile', :warm_starts FROM tunebench_studies"
            ).bindparams(bindparam("warm_starts", type_=Json())),
            {"warm_starts": value},
        )
    with pytest.raises(DatabaseError, match="holds what tunebench does not write: warm_starts"):
        begun_study(database, replace(STUDY, sampler="hostile"))


def test_a_trial_of_the_log_is_given_back_whole(database: Database) -> None:
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(failed(0, TrialStatus.CORRECTNESS))
    log.record(correct(1, 1.5))
    given = log.result(1)
    assert given == replace(correct(1, 1.5), build=None)
    assert log.result(0).verdict is not None
    assert [trial.median_ms for trial in log.past()] == [None, 1.5]
