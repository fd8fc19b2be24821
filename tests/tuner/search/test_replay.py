"""Recorded spaces in both formats, whole and cut off; the exact expectation of random search; scores and reports."""

from __future__ import annotations

import gzip
import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.samplers import TPESampler

from tunebench.tuner.errors import UnknownNameError
from tunebench.tuner.search.filtered import FilteredSampler
from tunebench.tuner.search.recorded import RecordedSpaceError, load_recorded
from tunebench.tuner.search.replay import describe, expected_random_best, replay

SHARED = Path(__file__).parents[4] / "shared" / "spaces"
BLOCKS = (256, 32, 64, 128)


def time_ms(block: int, items: int) -> float:
    return abs(math.log2(block) - 7) + abs(items - 3) + 1.0


def records() -> list[tuple[dict[str, Any], float | None]]:
    """12 configurations in file order; those of block 256 with 4 items fail."""
    return [
        ({"block": block, "items": items, "mode": mode}, None if (block, items) == (256, 4) else time_ms(block, items))
        for block, items, mode in product(BLOCKS, (2, 3, 4), ("a",))
    ]


def t4_text() -> str:
    def result(configuration: dict[str, Any], value: float | None) -> dict[str, Any]:
        return {
            "configuration": configuration,
            "times": {"compilation_time": 3.0, "runtimes": [] if value is None else [value]},
            "invalidity": "correct" if value is not None else "runtime",
            "correctness": 1,
            "measurements": [
                {"name": "GFLOP/s", "value": 5.0, "unit": ""},
                {"name": "time", "value": "RuntimeFailedConfig" if value is None else value, "unit": ""},
            ],
            "objectives": ["time"],
        }

    return json.dumps({"schema_version": "1.0.0", "results": [result(*record) for record in records()]})


def cache_text() -> str:
    cache = {
        ",".join(str(value) for value in configuration.values()): {
            **configuration,
            "time": "CompilationFailedConfig" if value is None else value,
            "times": [] if value is None else [value, value],
            "compile_time": 900.0,
        }
        for configuration, value in records()
    }
    header = {"device_name": "none", "tune_params_keys": ["block", "items", "mode"], "objective": "time"}
    return json.dumps(header | {"cache": cache}, indent=1)


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["small.json", "small.json.gz"])
@pytest.mark.parametrize("text", [t4_text(), cache_text()], ids=["t4", "kernel-tuner"])
def test_reads_both_formats(tmp_path: Path, name: str, text: str) -> None:
    recorded = load_recorded(written(tmp_path, name, text))
    assert recorded.name == "small"
    assert [(tunable.name, tunable.values) for tunable in recorded.space.space.tunables] == [
        ("block", (32, 64, 128, 256)),
        ("items", (2, 3, 4)),
        ("mode", ("a",)),
    ]
    for number, (configuration, value) in enumerate(records()):
        assert dict(recorded.space[number]) == configuration
        assert recorded.times_ms[number] == (pytest.approx(value) if value else pytest.approx(math.nan, nan_ok=True))
    assert recorded.optimum_ms == 1.0
    assert recorded.worst_ms == 4.0


def test_reads_a_cache_file_that_was_cut_off(tmp_path: Path) -> None:
    text = cache_text()
    whole = load_recorded(written(tmp_path, "whole.json", text))
    for cut in (text.rstrip("} \n") + "}", text.rstrip("} \n") + "},\n"):
        assert len(load_recorded(written(tmp_path, "cut.json", cut)).space) == len(whole.space)
    # In the middle of the last configuration, and of the compressed stream.
    inside = load_recorded(written(tmp_path, "inside.json", text[: text.rindex('"time"') + 3]))
    np.testing.assert_array_equal(inside.times_ms, whole.times_ms[:-1])
    stream = tmp_path / "stream.json.gz"
    stream.write_bytes(gzip.compress(text.encode(), compresslevel=0)[:-700])
    assert 0 < len(load_recorded(stream).space) < len(whole.space)


def test_reads_conditional_and_mixed_tunables_and_units(tmp_path: Path) -> None:
    results = [
        {"configuration": {"grid": "once", "scale": 1}, "invalidity": "correct", "times": {"runtimes": [1.0, 3.0]}},
        {"configuration": {"grid": "stride", "scale": 0.5, "the waves": 2}, "invalidity": "timeout", "times": {}},
        {
            "configuration": {"grid": "stride", "scale": 2, "the waves": 4},
            "invalidity": "correct",
            "measurements": [{"name": "time", "value": 1500, "unit": "us"}],
        },
    ]
    recorded = load_recorded(written(tmp_path, "mixed.json", json.dumps({"results": results})))
    assert [dict(recorded.space[i]) for i in range(3)] == [
        {"grid": "once", "scale": 1.0},
        {"grid": "stride", "scale": 0.5, "the_waves": 2},
        {"grid": "stride", "scale": 2.0, "the_waves": 4},
    ]
    np.testing.assert_array_equal(recorded.times_ms, [2.0, math.nan, 1.5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "is not a JSON object"),
        ('{"rows": []}', "neither T4 results nor a Kernel Tuner cache file"),
        ('{"cache": {"1": {"a": 1, "time": "InvalidConfig"}}, "tune_params_keys": ["a"]}', "no configuration with a"),
    ],
)
def test_refuses_other_files_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, "other.json", text)
    with pytest.raises(RecordedSpaceError, match=message):
        load_recorded(path)
    with pytest.raises(RecordedSpaceError, match="cannot read"):
        load_recorded(tmp_path / "absent.json")


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


def test_a_replay_is_what_its_seed_makes_it(tmp_path: Path) -> None:
    recorded = load_recorded(written(tmp_path, "small.json", t4_text()))
    first, again = (replay(recorded, "random", budget=6, seeds=range(3)) for _ in range(2))
    assert [run.best_ms for run in first.runs] == [run.best_ms for run in again.runs]
    assert len({run.best_ms for run in first.runs}) > 1
    with pytest.raises(UnknownNameError, match="unknown sampler 'grey_wolf'"):
        replay(recorded, "grey_wolf")


def test_report_of_a_known_search(tmp_path: Path) -> None:
    recorded = load_recorded(written(tmp_path, "small.json", t4_text()))
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


def test_random_scores_nothing_on_average(tmp_path: Path) -> None:
    recorded = load_recorded(written(tmp_path, "small.json", t4_text()))
    report = replay(recorded, "random", budget=6, seeds=range(400))
    assert abs(report.score) < 4 * report.score_error
    mean_best = np.mean([run.best_ms for run in report.runs], axis=0)
    np.testing.assert_allclose(mean_best, report.random_ms, rtol=0.1)


def test_takes_any_sampler_and_batches(tmp_path: Path) -> None:
    recorded = load_recorded(written(tmp_path, "small.json", t4_text()))
    report = replay(
        recorded, lambda space, seed: FilteredSampler(lambda one: TPESampler(seed=one), space, seed), 12, [0], batch=5
    )
    assert report.runs[0].best_ms[-1] == 1.0


def test_a_description_has_every_seed(tmp_path: Path) -> None:
    recorded = load_recorded(written(tmp_path, "small.json", t4_text()))
    text = describe(replay(recorded, "gp", 8, range(5, 8)))
    assert "scores by seed from 5:" in text


@pytest.mark.skipif(not SHARED.exists(), reason="the recorded spaces are not here")
def test_shared_spaces_agree_in_both_formats_and_gp_searches_them_well() -> None:
    cache = load_recorded(SHARED / "convolution_A100.json.gz")
    t4 = load_recorded(SHARED / "convolution_A100_T4.json.gz")
    assert len(cache.space) == 4362
    assert int(np.isnan(cache.times_ms).sum()) == 161
    np.testing.assert_array_equal(cache.space.indices, t4.space.indices)
    np.testing.assert_array_equal(cache.times_ms, t4.times_ms)
    assert cache.optimum_ms == pytest.approx(0.5536, abs=1e-4)
    dedispersion = load_recorded(SHARED / "dedispersion_MI250X_T4.json.gz")
    assert replay(dedispersion, "gp", 100, range(2)).score > 0.5
    assert replay(cache, "gp", 200, range(3)).score > 0.3
