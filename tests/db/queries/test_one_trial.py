"""A trial read back whole is the trial that was recorded."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from sample_results import ENVIRONMENT, H200, STUDY, comparison, correct, result

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.one_trial import trial_details
from tunebench.db.queries.trials import trials
from tunebench.tuner.errors import DatabaseError, UserError
from tunebench.tuner.result import Baseline, TrialStatus
from tunebench.tuner.study.history import PastTrial


@pytest.mark.parametrize("status", TrialStatus)
def test_a_trial_of_any_status_comes_back_whole(database: Database, status: TrialStatus) -> None:
    recorded = result(0, status)
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(recorded)
    (row,) = trials(database)
    assert (row.number, row.status, row.configuration) == (0, status, recorded.configuration)
    assert (row.kernel, row.problem, row.message) == (STUDY.kernel, STUDY.problem, recorded.message)
    assert (row.device_name, row.device_uuid, row.architecture) == (H200.name, H200.uuid, H200.architecture)
    measured = recorded.measurement
    interval = (measured.median_ms, measured.low_ms, measured.high_ms) if measured else (None, None, None)
    assert (row.median_ms, row.low_ms, row.high_ms) == interval
    assert list(log.past()) == [PastTrial.of(0, recorded)]
    found = trial_details(database, row.trial_id)

    assert found.row == row
    assert (found.study.device, found.trial.environment) == (H200, ENVIRONMENT)
    assert found.study.space_digest == STUDY.space_digest
    assert repr(found.verdict) == repr(recorded.verdict)  # NaN is not equal to itself
    assert found.trial.result.measurement == recorded.measurement
    assert found.trial.result.seconds == recorded.seconds
    build = found.trial.build
    assert (build is None) == (recorded.build is None)
    if build is not None and recorded.build is not None:
        expected = asdict(recorded.build)
        code = expected.pop("code")
        del expected["signatures"]  # the source says them, not the database
        assert found.trial.build_cached == expected.pop("cached")
        assert {name: asdict(build)[name] for name in expected} == expected
        assert build.code_bytes == len(code)
    assert found.comparisons == ()


def test_the_comparisons_won_come_newest_first(database: Database) -> None:
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(correct(0))
    log.conclude(comparison(0, 2.0))
    newer = replace(ENVIRONMENT, driver="590.1")
    without = comparison(0, 3.0, with_default=False)
    open_study(database, STUDY, newer).conclude(without)
    found = trial_details(database, trials(database)[0].trial_id)
    assert [one.comparison for one in found.comparisons] == [without, comparison(0, 2.0)]
    assert [one.environment.driver for one in found.comparisons] == ["590.1", "580.1"]
    ratios = (found.row.over_reference, found.row.over_default, found.row.over_copy)
    assert ratios == tuple(map(without.speedups.get, (Baseline.REFERENCE, Baseline.DEFAULT, Baseline.COPY)))


@pytest.mark.parametrize("number", [7, 0, -1, 2**63, 10**30])
def test_a_trial_that_is_not_there(database: Database, number: int) -> None:
    with pytest.raises(UserError, match=f"has no trial {number}: 'tunebench trials' lists"):
        trial_details(database, number)


def test_what_breaks_a_result_s_invariants_is_refused(tmp_path: Path) -> None:
    with open_database(tmp_path / "results.db") as database:
        open_study(database, STUDY, ENVIRONMENT).record(correct(0))
        with database.writing() as connection:
            connection.exec_driver_sql("DROP TRIGGER tunebench_trials_no_update")
            stage = '"name":"values","passed":'
            changed = f"replace(document, '{stage}true', '{stage}false')"
            connection.exec_driver_sql(f"UPDATE tunebench_trials SET document = {changed}")
        with pytest.raises(DatabaseError, match="does not write: trial 1: verdict: a verdict passes exactly"):
            trial_details(database, 1)
