"""Recorded spaces from files: both formats of other tuners, whole and cut off, tables, and the published spaces."""

from __future__ import annotations

import gzip
import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_database import fill

from tunebench.db.connection.database import open_database
from tunebench.db.entries.reader import StudyFilter
from tunebench.db.exchange.files import export_file, import_file
from tunebench.db.exchange.formats import FORMATS, FormatName
from tunebench.db.exchange.formats.base import FormatError
from tunebench.studies.tuning.recordings import load_spaces
from tunebench.tuner.errors import UserError
from tunebench.tuner.result import TrialStatus
from tunebench.tuner.search.recorded import RecordedSpace
from tunebench.tuner.search.replay import replay

SHARED = Path(__file__).parents[4] / "shared" / "spaces"
BLOCKS = (256, 32, 64, 128)


def load_space(file: Path) -> RecordedSpace:
    (space,) = load_spaces(file)
    return space


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
    recorded = load_space(written(tmp_path, name, text))
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
    whole = load_space(written(tmp_path, "whole.json", text))
    for cut in (text.rstrip("} \n") + "}", text.rstrip("} \n") + "},\n"):
        assert len(load_space(written(tmp_path, "cut.json", cut)).space) == len(whole.space)
    # In the middle of the last configuration.
    inside = load_space(written(tmp_path, "inside.json", text[: text.rindex('"time"') + 3]))
    np.testing.assert_array_equal(inside.times_ms, whole.times_ms[:-1])


def test_a_compressed_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    """Nothing appends to a compressed file: it is a download that did not end."""
    stream = tmp_path / "stream.json.gz"
    stream.write_bytes(gzip.compress(cache_text().encode(), compresslevel=0)[:-700])
    with pytest.raises(FormatError, match="damaged or cut off"):
        load_space(stream)


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
    recorded = load_space(written(tmp_path, "mixed.json", json.dumps({"results": results})))
    assert [dict(recorded.space[i]) for i in range(3)] == [
        {"grid": "once", "scale": 1.0},
        {"grid": "stride", "scale": 0.5, "the_waves": 2},
        {"grid": "stride", "scale": 2.0, "the_waves": 4},
    ]
    np.testing.assert_array_equal(recorded.times_ms, [2.0, math.nan, 1.5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "neither T4 results nor a Kernel Tuner cache file"),
        ('{"results": [', "not JSON"),
        ("[1, 2]", "neither T4 results nor a Kernel Tuner cache file"),
        ('[{"cache": 1}]', "the file is not an object"),
        ('{"rows": []}', "neither T4 results nor a Kernel Tuner cache file"),
        ('{"cache": {"1": {"a": 1, "time": "InvalidConfig"}}, "tune_params_keys": ["a"]}', "that was timed"),
    ],
)
def test_refuses_other_files_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, "other.json", text)
    with pytest.raises(UserError, match=message):
        load_space(path)
    with pytest.raises(FormatError, match="cannot read"):
        load_space(tmp_path / "absent.json")
    with pytest.raises(FormatError, match="of no known format"):
        load_space(written(tmp_path, "other.txt", text))


def test_a_tunable_may_be_called_as_what_the_other_format_has(tmp_path: Path) -> None:
    entry = {"results": 1, "time": 2.0}
    content = {"tune_params_keys": ["results"], "tune_params": {"results": [1]}, "cache": {"1": entry}}
    assert load_space(written(tmp_path, "one.json", json.dumps(content))).times_ms.tolist() == [2.0]


def test_the_time_is_the_median_of_the_samples_whatever_the_file(tmp_path: Path) -> None:
    """Kernel Tuner's `time` is their mean, which one slow sample moves; a database has the median of the same file."""
    samples = [1.0, 1.0, 1.25, 9.0]
    result = {
        "configuration": {"a": 1},
        "invalidity": "correct",
        "times": {"runtimes": samples},
        "measurements": [{"name": "time", "value": 3.0625}],
    }
    cache = {"cache": {"1": {"a": 1, "time": 3.0625, "times": samples}}, "tune_params_keys": ["a"]}
    for content in ({"results": [result]}, cache):
        file = written(tmp_path, "one.json", json.dumps(content))
        assert load_space(file).times_ms.tolist() == [1.125]
        form = FORMATS[FormatName.T4 if "results" in content else FormatName.KERNEL_TUNER]
        with open_database(tmp_path / "imported.db") as database:
            import_file(database, file, form)
    assert [space.times_ms.tolist() for space in load_spaces(tmp_path / "imported.db")] == [[1.125], [1.125]]


@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz", "all.csv", "all.parquet"])
def test_every_export_of_a_database_is_the_same_spaces(tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    file, form = tmp_path / name, next(form for form in FORMATS.values() if f".{form.name}" in name)
    with open_database(tmp_path / "results.db") as database:
        fill(database)
        export_file(database, file, form)
    stored, exported = load_spaces(tmp_path / "results.db"), load_spaces(file)
    assert [(space.name, space.kernel) for space in exported] == [(space.name, space.kernel) for space in stored]
    for one, other in zip(exported, stored, strict=True):
        np.testing.assert_array_equal(one.times_ms, other.times_ms)
    assert not load_spaces(file, kernel="scalar_mul")[0].name.startswith("gemm")


@pytest.mark.parametrize("form", [FormatName.T4, FormatName.KERNEL_TUNER])
def test_an_export_for_other_tuners_can_be_replayed(tmp_path: Path, form: FormatName) -> None:
    with open_database(tmp_path / "results.db") as database:
        fill(database)
        export_file(database, tmp_path / "out.json", FORMATS[form], which=StudyFilter(study_id=1))
    space = load_space(tmp_path / "out.json")
    assert space.name == "out"
    assert sum(not math.isnan(t) for t in space.times_ms) == 2
    assert len(space.times_ms) == len(TrialStatus)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the recorded spaces are not here")
def test_shared_spaces_agree_in_both_formats_and_gp_searches_them_well() -> None:
    cache = load_space(SHARED / "convolution_A100.json.gz")
    t4 = load_space(SHARED / "convolution_A100_T4.json.gz")
    assert len(cache.space) == 4362
    assert int(np.isnan(cache.times_ms).sum()) == 161
    np.testing.assert_array_equal(cache.space.indices, t4.space.indices)
    np.testing.assert_array_equal(cache.times_ms, t4.times_ms)
    assert cache.optimum_ms == pytest.approx(0.5499, abs=1e-4)
    dedispersion = load_space(SHARED / "dedispersion_MI250X_T4.json.gz")
    assert replay(dedispersion, "gp", 100, range(2)).score > 0.5
    assert replay(cache, "gp", 200, range(3)).score > 0.3
