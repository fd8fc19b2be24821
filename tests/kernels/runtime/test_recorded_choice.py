"""Which of a database's results a call runs under."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sample_database import place_of
from sample_results import A100, ENVIRONMENT, H100, H200, PROBLEM, STUDY, configuration, correct

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import open_study
from tunebench.kernels.runtime.selection import Choice, Tier, choose_recorded, recorded_offers
from tunebench.tuner.device import Device
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import CacheRegime
from tunebench.tuner.space import Constraint, SearchSpace, Tunable
from tunebench.tuner.study.history import StudyDescription

SPACE = SearchSpace(
    tunables=(
        Tunable("block", tuple(32 * (number + 1) for number in range(8))),
        Tunable("hint", ("normal", "streaming")),
        Tunable("unroll", (True, False)),
    ),
)
"""A space with every configuration of the samples in it."""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "results.db") as database:
        yield database


def study(database: Database, medians_ms: Sequence[float], description: StudyDescription = STUDY) -> None:
    """A study whose trials are correct and take these times."""
    log = open_study(database, description, ENVIRONMENT)
    for number, median_ms in enumerate(medians_ms):
        log.record(correct(number, median_ms))


def selected(
    database: Database, problem: Problem = PROBLEM, device: Device = H200, space: SearchSpace = SPACE
) -> Choice | None:
    offers = recorded_offers(STUDY.kernel, STUDY.source_digest, problem, device, place_of(database))
    return choose_recorded(offers, space, problem, device)


def test_cold_caches_are_preferred_and_a_confirmed_result_to_both(database: Database) -> None:
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(correct(0, 1.0, CacheRegime.WARM))
    log.record(correct(1, 2.0, CacheRegime.COLD))
    log.record(correct(2, 3.0, CacheRegime.COLD))
    chosen = selected(database) or pytest.fail()
    assert chosen.configuration == configuration(1)


def test_what_the_space_does_not_admit_gives_way_to_the_next(database: Database) -> None:
    study(database, [1.0])
    study(database, [2.0, 1.5], replace(STUDY, problem=BIG))
    narrow = replace(SPACE, constraints=(Constraint("more_than_a_warp", lambda block: block > 32),))
    chosen = selected(database, space=narrow) or pytest.fail()
    assert (chosen.tier, chosen.configuration) == (Tier.NEAREST, configuration(1))
    assert (selected(database) or pytest.fail()).tier is Tier.EXACT


BIG = Problem({"rows": 4096, "columns": 8192}, "float32", {"mode": "eval"})
HUGE = Problem({"rows": 2**20, "columns": 8192}, "float32", {"mode": "eval"})


def test_the_tiers_follow_each_other(database: Database) -> None:
    assert selected(database) is None

    study(database, [1.0], replace(STUDY, device=A100))
    assert selected(database) is None, "another architecture"
    study(database, [1.0], replace(STUDY, device=H100, problem=BIG))
    assert selected(database) is None, "another problem on another device"

    study(database, [1.0], replace(STUDY, device=H100))
    assert (selected(database) or pytest.fail()).tier is Tier.ARCHITECTURE

    study(database, [1.0, 0.5], replace(STUDY, problem=HUGE))
    study(database, [1.0], replace(STUDY, problem=BIG))
    nearest = selected(database) or pytest.fail()
    assert f"measured for {BIG}" in nearest.reason
    assert (nearest.tier, nearest.configuration) == (Tier.NEAREST, configuration(0))

    study(database, [1.0, 0.9], replace(STUDY, device=replace(H200, uuid="GPU-77")))
    exact = selected(database) or pytest.fail()
    assert (exact.tier, exact.configuration) == (Tier.EXACT, configuration(1))


@pytest.mark.parametrize(
    "problem",
    [
        replace(BIG, dtype="float64"),
        replace(BIG, options={"mode": "train"}),
        replace(BIG, options={}),
        replace(BIG, axes={"rows": 4096}),
        replace(BIG, axes={"rows": 4096, "features": 8192}),
    ],
)
def test_what_is_no_nearer_for_being_close_is_not_chosen(database: Database, problem: Problem) -> None:
    study(database, [1.0], replace(STUDY, problem=problem))
    assert selected(database) is None


@pytest.mark.parametrize("change", [{"kernel": "other"}, {"source_digest": "edited"}])
def test_another_kernel_or_source_is_never_chosen(database: Database, change: dict[str, object]) -> None:
    study(database, [1.0], replace(STUDY, **change))
    assert selected(database) is None
