"""Optuna's own tools read the copy of a study, however often it is published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from sample_results import ENVIRONMENT, STUDY, configuration, correct, failed, result
from sqlalchemy import text

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.trials import trials
from tunebench.db.upkeep.optuna_mirror import TRIAL_ATTRIBUTE, publish
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.result import TrialStatus

optuna.logging.set_verbosity(optuna.logging.WARNING)

CHOICES = {"block": [32 * number for number in range(1, 100)], "hint": ["streaming", "none"], "unroll": [True, False]}


def optuna_url(database: Database) -> str:
    return database.url.render_as_string(hide_password=False)


def load(database: Database, name: str) -> optuna.Study:
    return optuna.load_study(study_name=name, storage=optuna_url(database))


@pytest.mark.slow
def test_optuna_reads_every_status(database: Database) -> None:
    log = open_study(database, STUDY, ENVIRONMENT)
    for number, status in enumerate(TrialStatus):
        log.record(result(number, status))
    name = publish(database, log.study_id, CHOICES)
    assert name.startswith("scalar_mul/rows=1024 columns=8192 float32 mode=eval/")

    study = load(database, name)
    assert study.direction is optuna.study.StudyDirection.MINIMIZE
    for status, copy in zip(TrialStatus, study.trials, strict=True):
        (row,) = trials(database, trial_id=copy.user_attrs[TRIAL_ATTRIBUTE])
        assert (row.number, row.status, dict(row.configuration)) == (copy.number, status, copy.params)
        assert (copy.user_attrs["status"], copy.user_attrs["message"]) == (status.value, row.message)
        assert copy.value == row.median_ms
        timed = {TrialStatus.CORRECT: TrialState.COMPLETE, TrialStatus.PRUNED: TrialState.PRUNED}
        assert copy.state is timed.get(status, TrialState.FAIL)
        assert copy.distributions["block"] == optuna.distributions.CategoricalDistribution(CHOICES["block"])
    assert study.best_params == dict(configuration(0))

    (summary,) = optuna.get_all_study_summaries(optuna_url(database))
    assert (summary.study_name, summary.n_trials) == (name, len(TrialStatus))
    assert summary.user_attrs["source_digest"] == STUDY.source_digest


@pytest.mark.slow
@pytest.mark.parametrize("choices", [CHOICES, None])
def test_a_copy_is_extended_and_never_doubled(database: Database, choices: dict[str, list[object]] | None) -> None:
    log = open_study(database, STUDY, ENVIRONMENT)
    for number in range(6):
        log.record(correct(number, 1.0 + number))
        name = publish(database, log.study_id, choices)
        assert publish(database, log.study_id, choices) == name
        copies = load(database, name).trials
        assert [copy.user_attrs[TRIAL_ATTRIBUTE] for copy in copies] == list(range(1, number + 2))
        assert copies[-1].params == dict(configuration(number))
    assert len(optuna.get_all_study_names(optuna_url(database))) == 1


def test_only_active_tunables_are_parameters(database: Database) -> None:
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(replace(correct(0), configuration=Configuration({"grid": "stride", "waves": 2})))
    log.record(replace(correct(1), configuration=Configuration({"grid": "one_shot"})))
    study = load(database, publish(database, log.study_id))
    assert [trial.params for trial in study.trials] == [{"grid": "stride", "waves": 2}, {"grid": "one_shot"}]


def test_a_spoilt_copy_is_made_anew(database: Database) -> None:
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(correct(0))
    name = publish(database, log.study_id)
    copy = load(database, name)
    copy.add_trial(copy.trials[0])
    log.record(correct(1))
    publish(database, log.study_id, CHOICES)
    assert [trial.user_attrs[TRIAL_ATTRIBUTE] for trial in load(database, name).trials] == [1, 2]


@pytest.mark.slow
def test_the_database_stays_tunebenchs(database: Database, url: str) -> None:
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(failed(0, TrialStatus.COMPILE))
    publish(database, log.study_id)
    log.record(correct(1))
    with open_database(url, read_only=True) as again:
        assert len(trials(again)) == 2
        with again.reading() as connection:
            assert connection.execute(text("SELECT count(*) FROM alembic_version")).scalar() == 1


@pytest.mark.slow
def test_studies_of_one_name_are_told_apart(database: Database) -> None:
    names = set()
    for seed in range(2):
        log = open_study(database, replace(STUDY, seed=seed, kernel="k" * 600), ENVIRONMENT)
        log.record(correct(0))
        names.add(publish(database, log.study_id))
    assert len(names) == 2
    assert max(len(name) for name in names) <= 512


def test_a_study_that_is_not_there_is_refused(database: Database) -> None:
    with pytest.raises(DatabaseError, match="no study 7"):
        publish(database, 7)


def test_a_database_opened_for_reading_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "a{b}?c.db"
    with open_database(file) as database:
        log = open_study(database, STUDY, ENVIRONMENT)
        log.record(correct(0))
    with open_database(file, read_only=True) as database, pytest.raises(DatabaseError, match="reading only"):
        publish(database, log.study_id)
    with open_database(file) as database:
        publish(database, log.study_id)
    assert {path.name for path in tmp_path.glob("a*.db")} == {file.name}
