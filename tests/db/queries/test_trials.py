"""Which trials `trials` finds, which is `best`, and which configuration a call gets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo

import pytest
from sample_database import place_of
from sample_results import (
    A100,
    ENVIRONMENT,
    H100,
    H200,
    PROBLEM,
    STUDY,
    comparison,
    configuration,
    correct,
    failed,
    inconclusive,
    result,
    told_apart,
)

from tunebench.db.connection.database import Database
from tunebench.db.entries.study_log import StudyLog, open_study
from tunebench.db.queries.look_up import known_best
from tunebench.db.queries.one_trial import trial_details
from tunebench.db.queries.statements import everything_about as _about
from tunebench.db.queries.studies import conclusion, newest_comparison
from tunebench.db.queries.trials import (
    Order,
    best,
    best_of_studies,
    count_rows,
    each_trial,
    kernels_with_results,
    trials,
)
from tunebench.tuner.build import CompilerName
from tunebench.tuner.errors import UserError
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Baseline, CacheRegime, Comparison, Decision, TrialStatus
from tunebench.tuner.study.history import StudyDescription


def study(database: Database, medians_ms: Sequence[float], description: StudyDescription = STUDY) -> StudyLog:
    """A study whose trials are correct and take these times."""
    log = open_study(database, description, ENVIRONMENT)
    for number, median_ms in enumerate(medians_ms):
        log.record(correct(number, median_ms))
    return log


@pytest.mark.slow
def test_the_best_is_the_fastest_correct_trial(database: Database) -> None:
    log = study(database, [3.0, 1.0, 2.0])
    log.record(replace(correct(3, 0.5), status=TrialStatus.PRUNED, message="hopeless"))
    log.record(failed(4, TrialStatus.CORRECTNESS))
    (row,) = best(database)
    assert (row.configuration, row.median_ms, row.number, row.confirmed) == (configuration(1), 1.0, 1, False)
    assert (row.over_reference, row.over_default, row.confirmed_at) == (None, None, None)


def test_nothing_is_best_where_nothing_is_correct(database: Database) -> None:
    open_study(database, STUDY, ENVIRONMENT).record(failed(0, TrialStatus.COMPILE))
    assert best(database) == []


def test_a_confirmed_trial_is_better_than_a_faster_one_that_is_not(database: Database) -> None:
    study(database, [3.0, 1.0, 2.0]).conclude(comparison(2, over_reference=4.0))
    study(database, [0.1], replace(STUDY, seed=1))
    (row,) = best(database)
    assert (row.configuration, row.confirmed) == (configuration(2), True)
    assert row.over_reference is not None
    assert row.over_reference.value == 4.0


def test_the_newest_comparison_counts_also_across_studies(database: Database) -> None:
    first = study(database, [3.0, 1.0, 2.0])
    second = study(database, [3.0, 1.0, 2.0], replace(STUDY, seed=1))
    for log, number in ((first, 0), (second, 1), (first, 2)):
        log.conclude(comparison(number, over_reference=2.0 + number))
        time.sleep(0.002)
        (row,) = best(database)
        assert (row.configuration, row.study_id) == (configuration(number), log.study_id)
        assert row.over_reference is not None
        assert row.over_reference.value == 2.0 + number


@pytest.mark.parametrize("doubtful", [inconclusive, told_apart])
def test_an_inconclusive_comparison_confirms_nothing(database: Database, doubtful: Callable[[int], Comparison]) -> None:
    """The leader of the search stays the best, with its unconfirmed ratio, which is no evidence at run time."""
    log = study(database, [3.0, 1.0, 2.0])
    log.conclude(doubtful(1))
    (row,) = best(database)
    assert (row.configuration, row.confirmed, row.confirmed_ms) == (configuration(1), False, None)
    assert row.over_reference is not None and row.decision is Decision.INCONCLUSIVE and not row.reference_is_faster
    (known,) = known_best(
        STUDY.kernel, STUDY.source_digest, PROBLEM.dtype, STUDY.device.architecture, place_of(database)
    )
    assert (known.configuration, known.over_reference) == (configuration(1), None)
    assert conclusion(database, log.study_id) is None
    (details,) = trial_details(database, row.trial_id).comparisons
    assert not details.comparison.conclusive
    assert details.comparison.decision(Baseline.REFERENCE) is Decision.INCONCLUSIVE
    # What was confirmed before, or is afterwards, is: whatever says nothing does not take that back.
    log.conclude(comparison(2))
    log.conclude(doubtful(1))
    (row,) = best(database)
    assert (row.configuration, row.confirmed, row.decision) == (configuration(2), True, Decision.FASTER)
    found = newest_comparison(database, log.study_id)
    assert found is not None and found.best == configuration(2) and found.conclusive


def test_the_newest_comparison_is_the_last_one_although_the_clock_went_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LastYear(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) - timedelta(days=365)

    log = study(database, [3.0, 1.0, 2.0])
    log.conclude(comparison(1))
    monkeypatch.setattr("tunebench.db.entries.study_log.datetime", LastYear)
    other = study(database, [3.0, 1.0, 2.0], replace(STUDY, seed=1))
    for number in (2, 0):
        other.conclude(comparison(number))
        (row,) = best(database)
        assert (row.configuration, row.study_id) == (configuration(number), other.study_id)
    unrelated = study(database, [1.0], replace(STUDY, kernel="another"))
    unrelated.conclude(comparison(0))
    (row,) = best(database, kernel="another")
    assert row.confirmed_at is not None and row.confirmed_at < datetime.now(UTC) - timedelta(days=300)


def test_a_trial_that_won_twice_has_its_newest_speed_up(database: Database) -> None:
    log = study(database, [1.0])
    for value in (2.0, 5.0, 3.0):
        log.conclude(comparison(0, over_reference=value))
        time.sleep(0.002)
    (row,) = trials(database)
    assert row.over_reference is not None
    assert row.over_reference.value == 3.0
    assert len(best(database)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "other"},
        {"source_digest": "source-2"},
        {"problem": Problem({"rows": 1, "columns": 8192}, "float32", {"mode": "eval"})},
        {"problem": replace(PROBLEM, dtype="float64")},
        {"device": H100},
        {"device": replace(H200, architecture="sm_90a")},
        {"compiler": CompilerName.INLINE},
    ],
)
def test_what_differs_in_what_matters_is_ranked_apart(database: Database, change: dict[str, object]) -> None:
    study(database, [2.0])
    study(database, [1.0], replace(STUDY, **change))
    assert sorted(row.median_ms or 0.0 for row in best(database)) == [1.0, 2.0]


@pytest.mark.parametrize("change", [{"seed": 1}, {"sampler": "random"}, {"space_digest": "space-2"}])
def test_studies_of_the_same_thing_are_ranked_together(database: Database, change: dict[str, object]) -> None:
    study(database, [2.0])
    study(database, [1.0], replace(STUDY, **change))
    assert [row.median_ms for row in best(database)] == [1.0]


def test_another_card_of_the_same_kind_is_the_same_device(database: Database) -> None:
    study(database, [2.0])
    study(database, [1.0], replace(STUDY, seed=1, device=replace(H200, uuid="GPU-77")))
    assert [row.median_ms for row in best(database)] == [1.0]


def test_cache_regimes_are_ranked_apart(database: Database) -> None:
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(correct(0, 1.0, CacheRegime.WARM))
    log.record(correct(1, 2.0, CacheRegime.COLD))
    log.record(correct(2, 3.0, CacheRegime.COLD))
    assert {(row.regime, row.median_ms) for row in best(database)} == {(CacheRegime.WARM, 1.0), (CacheRegime.COLD, 2.0)}


@pytest.mark.slow
def test_best_meets_its_conditions(database: Database) -> None:
    study(database, [1.0])
    study(database, [2.0], replace(STUDY, kernel="other", device=A100, problem=Problem({"n": 1})))
    for condition in (
        {"kernel": "other"},
        {"problem": Problem({"n": 1})},
        {"device": A100.name},
        {"architecture": "sm_80"},
        {"kernel": "other", "source_digest": STUDY.source_digest, "dtype": "float32", "compiler": CompilerName.NVRTC},
    ):
        assert [row.kernel for row in best(database, **condition)] == ["other"], condition
    for condition in ({"kernel": "none"}, {"source_digest": ""}, {"compiler": CompilerName.CPU}, {"dtype": "float16"}):
        assert best(database, **condition) == [], condition
    assert kernels_with_results(database) == ["other", STUDY.kernel]


@pytest.fixture
def many(database: Database) -> Database:
    """A study with a trial of every status, and after it one of another kernel with a correct trial."""
    log = open_study(database, STUDY, ENVIRONMENT)
    for number, status in enumerate(TrialStatus):
        log.record(result(number, status))
    study(database, [0.5], replace(STUDY, kernel="other", device=A100, sampler="random"))
    return database


def test_the_newest_trials_come_first(many: Database) -> None:
    statuses = list(TrialStatus)
    assert [row.kernel for row in trials(many)] == ["other", *[STUDY.kernel] * len(statuses)]
    assert [row.status for row in trials(many, kernel=STUDY.kernel)] == statuses[::-1]
    assert [row.trial_id for row in trials(many, limit=2, offset=1)] == [row.trial_id for row in trials(many)[1:3]]
    assert len(trials(many, limit=None)) == len(statuses) + 1
    assert count_rows(many) == (2, len(statuses) + 1)


def test_the_fastest_trials_are_the_correct_ones(many: Database) -> None:
    assert [row.median_ms for row in trials(many, order=Order.FASTEST)] == [0.5, 1.0]
    assert len(trials(many, order=Order.FASTEST, status=[TrialStatus.CORRECT, TrialStatus.COMPILE])) == 2
    with pytest.raises(UserError, match="the fastest are correct trials, not compile or timeout: leave out one"):
        trials(many, order=Order.FASTEST, status=[TrialStatus.COMPILE, TrialStatus.TIMEOUT])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ({"status": TrialStatus.COMPILE}, 1),
        ({"status": [TrialStatus.COMPILE, TrialStatus.CORRECT]}, 3),
        ({"status": []}, 0),
        ({"kernel": STUDY.kernel, "status": TrialStatus.CORRECT}, 1),
        ({"device": A100.name}, 1),
        ({"architecture": "sm_90"}, 7),
        ({"problem": PROBLEM}, 8),
        ({"problem": replace(PROBLEM, dtype="float64")}, 0),
        ({"dtype": "float32"}, 8),
        ({"sampler": "random"}, 1),
        ({"study_id": 1}, 7),
        ({"trial_id": 3}, 1),
        ({"compiler": CompilerName.CPU}, 0),
        ({"since": datetime(2020, 1, 1, tzinfo=UTC)}, 8),
        ({"until": datetime(2020, 1, 1, tzinfo=UTC)}, 0),
        ({"since": datetime.now(UTC) + timedelta(days=1)}, 0),
        ({"tunables": {"block": 32}}, 2),
        ({"tunables": {"block": [32, 64]}}, 3),
        ({"tunables": {"block": {32, 64}, "unroll": [True]}}, 2),
        ({"tunables": {"block": []}}, 0),
        ({"tunables": {"block": 3}}, 0),
        ({"tunables": {"hint": "streaming", "unroll": False}}, 3),
        ({"tunables": {"hint": "Streaming"}}, 0),
        ({"tunables": {"Block": 32}}, 0),
        ({"tunables": {"unroll": 1}}, 0),
        ({"tunables": {"block": 32.0}}, 0),
        ({"tunables": {"block": [math.inf, 32, math.nan]}}, 2),
        ({"tunables": {"block": range(5000)}}, 8),
        ({"tunables": {"hint": ["stream'ing", 'str"eaming', "streaming"]}}, 8),
        ({"tunables": {'block":32,"hint': "streaming"}}, 0),
    ],
)
def test_trials_meet_every_condition(many: Database, condition: dict[str, object], found: int) -> None:
    assert len(trials(many, **condition)) == found


def test_a_moment_has_its_zone(many: Database) -> None:
    (row,) = trials(many, limit=1)
    assert row.recorded_at.tzinfo is UTC
    assert abs(datetime.now(UTC) - row.recorded_at) < timedelta(minutes=5)


@pytest.mark.slow
@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("page", [1, 3, 500])
def test_each_trial_comes_once_and_in_order_however_many_are_read_at_a_time(
    many: Database, monkeypatch: pytest.MonkeyPatch, order: Order, page: int
) -> None:
    everything = trials(many, order=order, limit=None)
    monkeypatch.setattr("tunebench.db.queries.trials._PAGE", page)
    assert list(each_trial(many, order=order)) == everything
    assert [row.trial_id for row in each_trial(many, order=order, offset=2, limit=3)] == [
        row.trial_id for row in everything[2:5]
    ]


def test_a_million_trials_are_not_in_memory_at_once(many: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not asked for yet is not read yet."""
    read = []
    monkeypatch.setattr("tunebench.db.queries.trials._PAGE", 2)
    monkeypatch.setattr("tunebench.db.queries.trials.everything_about", lambda picked: read.append(1) or _about(picked))
    rows = each_trial(many)
    for asked in range(1, 6):
        next(rows)
        assert len(read) == (asked + 1) // 2
    rows.close()


@pytest.mark.slow
def test_the_best_of_each_study_is_its_own(database: Database) -> None:
    study(database, [3.0, 1.0, 2.0]).conclude(comparison(2))
    study(database, [0.5, 0.1], replace(STUDY, seed=1))
    open_study(database, replace(STUDY, seed=2), ENVIRONMENT).record(failed(0, TrialStatus.COMPILE))
    found = best_of_studies(database)
    assert {number: (row.configuration, row.time_ms) for number, row in found.items()} == {
        1: (configuration(2), comparison(2).medians_ms["best"]),
        2: (configuration(1), 0.1),
    }
    assert best_of_studies(database, [2, 3]).keys() == {2}
