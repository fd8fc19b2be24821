"""The exact expectation of random search; scores and reports of searches on a recorded space."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from optuna.samplers import TPESampler

from tunebench.tuner.errors import UnknownNameError
from tunebench.tuner.search.filtered import FilteredSampler
from tunebench.tuner.search.recorded import RecordedSpace, recorded_space
from tunebench.tuner.search.replay import describe, expected_random_best, replay

BLOCKS = (256, 32, 64, 128)


def time_ms(block: int, items: int) -> float:
    return abs(math.log2(block) - 7) + abs(items - 3) + 1.0


def small() -> RecordedSpace:
    """12 configurations, blocks in another order than their values; those of block 256 with 4 items fail."""
    return recorded_space(
        "small",
        [
            (
                {"block": block, "items": items, "mode": "a"},
                math.nan if (block, items) == (256, 4) else time_ms(block, items),
            )
            for block, items in product(BLOCKS, (2, 3, 4))
        ],
    )


def test_expectation_of_random_search_is_exact() -> None:
    times_ms = np.array([5.0, math.nan, 1.0, 9.0, 2.5, math.nan, 7.0])
    expected = expected_random_best(times_ms, 7)
    assert expected[-1] == 1.0
    # One draw: each configuration is as likely, and a failure costs the worst time.
    assert expected[0] == pytest.approx((5 + 9 + 1 + 9 + 2.5 + 9 + 7) / 7)
    rng = np.random.default_rng(0)
    samples = np.array([rng.permutation(times_ms) for _ in range(100_000)])
    best = np.minimum.accumulate(np.where(np.isnan(samples), 9.0, samples), axis=1)
    deviation = best.std(axis=0) / math.sqrt(len(best)) + 1e-12
    assert (np.abs(best.mean(axis=0) - expected) < 5 * deviation).all()


def test_a_replay_is_what_its_seed_makes_it() -> None:
    recorded = small()
    first, again = (replay(recorded, "random", budget=6, seeds=range(3)) for _ in range(2))
    assert [run.best_ms for run in first.runs] == [run.best_ms for run in again.runs]
    assert len({run.best_ms for run in first.runs}) > 1
    with pytest.raises(UnknownNameError, match="unknown sampler 'grey_wolf'"):
        replay(recorded, "grey_wolf")


def test_report_of_a_known_search() -> None:
    recorded = small()
    report = replay(recorded, "exhaustive", budget=100, seeds=[0])
    assert report.budget == len(recorded.space) == 12
    (run,) = report.runs
    # In file order: blocks 256, 32, 64, 128, each with 2, 3, 4 items.
    assert run.best_ms == (3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0)
    assert run.failures == 1
    assert report.evaluations_to(0.05) == 11
    assert report.ratio_after(5) == 2.0
    # The last evaluation is the whole space, where random search has the optimum too.
    random_ms, best_ms = np.array(report.random_ms)[:-1], np.array(run.best_ms)[:-1]
    by_hand = ((random_ms - best_ms) / (random_ms - 1.0)).mean()
    assert report.score == pytest.approx(by_hand)
    assert report.score_error == 0.0
    assert "evaluations to 5 %: 11" in describe(report)


def test_random_scores_nothing_on_average() -> None:
    recorded = small()
    report = replay(recorded, "random", budget=6, seeds=range(400))
    assert abs(report.score) < 4 * report.score_error
    mean_best = np.mean([run.best_ms for run in report.runs], axis=0)
    np.testing.assert_allclose(mean_best, report.random_ms, rtol=0.1)


def test_takes_any_sampler_and_batches() -> None:
    recorded = small()
    report = replay(
        recorded, lambda space, seed: FilteredSampler(lambda one: TPESampler(seed=one), space, seed), 12, [0], batch=5
    )
    assert report.runs[0].best_ms[-1] == 1.0


def test_a_description_has_every_seed() -> None:
    recorded = small()
    text = describe(replay(recorded, "gp", 8, range(5, 8)))
    assert "scores by seed from 5:" in text
