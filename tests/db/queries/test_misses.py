"""Misses are counted over processes, listed by use, and left out once there are results."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sample_results import ENVIRONMENT, H100, H200, PROBLEM, STUDY, correct, failed

from tunebench.db.connection.database import Database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.misses import add_misses, misses
from tunebench.db.queries.rows import Missed
from tunebench.db.upkeep.check import inspect_database
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import TrialStatus

LARGE = Problem({"rows": 4096, "columns": 8192}, "float16", {"mode": "eval"})
MISS = Missed(STUDY.kernel, STUDY.source_digest, "/here/scalar_mul", PROBLEM, H200.name, H200.architecture, 3)


def test_counts_add_up_and_the_most_used_comes_first(database: Database) -> None:
    large, elsewhere = replace(MISS, problem=LARGE), replace(MISS, device_name=H100.name)
    add_misses(database, [MISS, replace(large, calls=5), replace(elsewhere, calls=1)])
    add_misses(database, [replace(MISS, calls=4, path="/moved/scalar_mul", served="default: 1.31×")])
    found = misses(database)
    assert {one.served for one in found} == {None, "default: 1.31×"}
    assert [(one.problem, one.device_name, one.calls) for one in found] == [
        (PROBLEM, H200.name, 7),
        (LARGE, H200.name, 5),
        (PROBLEM, H100.name, 1),
    ]
    assert found[0].path == "/moved/scalar_mul"
    assert found[0].first_at < found[0].last_at and found[1].first_at == found[1].last_at
    assert [one.calls for one in misses(database, device=H100.name)] == [1]
    assert misses(database, kernel="another") == []
    assert all(one.sound for one in inspect_database(database))


@pytest.mark.parametrize("change", [{"problem": LARGE}, {"device": H100}, {"source_digest": "edited"}, {"kernel": "b"}])
def test_results_of_this_very_problem_settle_it(database: Database, change: dict[str, object]) -> None:
    add_misses(database, [MISS])
    open_study(database, replace(STUDY, **change), ENVIRONMENT).record(correct(0))
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(failed(0, TrialStatus.COMPILE))
    assert [one.tuned for one in misses(database)] == [False]
    log.record(correct(1))
    assert misses(database) == []
    assert [one.tuned for one in misses(database, tuned=True)] == [True]
