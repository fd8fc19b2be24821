"""Kernel Tuner's cache files: whole or cut off, read and written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from sample_database import fill
from sample_results import ENVIRONMENT, STUDY, correct

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.bulk import Added
from tunebench.db.entries.entry import Entry
from tunebench.db.entries.reader import StudyFilter, scan
from tunebench.db.entries.study_log import open_study
from tunebench.db.exchange.files import export_file, import_file
from tunebench.db.exchange.formats import FORMATS, FormatName
from tunebench.db.exchange.formats.base import FormatError
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.result import TrialResult, TrialStatus

KERNEL_TUNER = FORMATS[FormatName.KERNEL_TUNER]


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "block": 16,
        "mode": "a",
        "time": 2.5,
        "times": [3.0, 2.0, 2.5],
        "compile_time": 918.5,
        "verification_time": 0,
        "benchmark_time": 126.0,
        "GFLOP/s": 1948.0,
        "timestamp": "2023-12-22 09:54:05.502007+00:00",
    } | changes


def cache(*entries: Any, **changes: Any) -> dict[str, Any]:
    return {
        "device_name": "NVIDIA A100",
        "kernel_name": "convolution",
        "problem_size": [4096, 4096],
        "tune_params_keys": ["block", "mode"],
        "tune_params": {"block": [16, 32], "mode": ["a", "b"]},
        "objective": "time",
        "cache": {str(number): one for number, one in enumerate(entries)},
    } | changes


def load(database: Database, file: Path, content: object) -> list[Entry]:
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    import_file(database, file, KERNEL_TUNER)
    return list(scan(database))


def test_a_cache_file_is_read(database: Database, tmp_path: Path) -> None:
    (found,) = load(database, tmp_path / "c.json", cache(entry()))
    study, trial = found.study, found.trial
    assert (study.kernel, study.device.name, study.problem.axes) == (
        "convolution",
        "NVIDIA A100",
        {"x": 4096, "y": 4096},
    )
    assert study.source_digest == "imported from kernel-tuner"
    assert trial is not None and trial.result.measurement is not None
    assert dict(trial.result.configuration) == {"block": 16, "mode": "a"}
    assert trial.result.measurement.samples_ms == (3.0, 2.0, 2.5)
    assert trial.result.seconds == pytest.approx({"compile": 0.9185, "check": 0.0, "measure": 0.126})


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"time": "InvalidConfig"}, TrialStatus.CONSTRAINTS),
        ({"time": "CompilationFailedConfig"}, TrialStatus.COMPILE),
        ({"time": "RuntimeFailedConfig"}, TrialStatus.RUNTIME),
        ({"time": "RuntimeFailedConfig", "tunebench_status": "timeout"}, TrialStatus.TIMEOUT),
        ({"time": "RuntimeFailedConfig", "tunebench_status": "correct"}, TrialStatus.RUNTIME),
        ({"time": "ErrorConfig"}, TrialStatus.RUNTIME),
        ({"__error__": "CompilationFailedConfig"}, TrialStatus.COMPILE),
        ({"time": 1e20, "times": [1e20]}, TrialStatus.RUNTIME),
        ({"times": None}, TrialStatus.CORRECT),
    ],
)
def test_failures_have_statuses(
    database: Database, tmp_path: Path, changes: dict[str, Any], status: TrialStatus
) -> None:
    (found,) = load(database, tmp_path / "c.json", cache(entry(**changes)))
    assert found.trial is not None and found.trial.result.status is status


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 40, 200])
def test_a_file_that_is_being_appended_to_is_read_to_its_last_whole_entry(
    database: Database, tmp_path: Path, cut: int
) -> None:
    whole = json.dumps(cache(entry(), entry(block=32)))
    # Closing braces: of the second entry, of the cache, of the file.
    expected = 2 if cut <= 2 else 1
    assert len(load(database, tmp_path / "c.json", whole[:-cut])) == expected


def test_a_comma_at_the_end_is_what_kernel_tuner_leaves(database: Database, tmp_path: Path) -> None:
    assert len(load(database, tmp_path / "c.json", json.dumps(cache(entry()))[:-2] + ",\n")) == 1


def test_a_file_that_has_grown_adds_what_is_new(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    assert len(load(database, file, cache(entry()))) == 1
    file.write_text(json.dumps(cache(entry(block=32), entry())), encoding="utf-8")
    assert import_file(database, file, KERNEL_TUNER) == Added(trials=1, present=1)


def test_two_machines_that_import_one_file_have_one_study(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    load(database, file, cache(entry(), entry(block=32)))
    with open_database(tmp_path / "other.db") as other:
        import_file(other, file, KERNEL_TUNER)
        assert [repr(one) for one in scan(other)] == [repr(one) for one in scan(database)]


@pytest.mark.parametrize(
    ("size", "axes", "options"),
    [
        (1000, {"x": 1000}, {}),
        ("n", {}, {"problem_size": "n"}),
        ([1, "n"], {}, {"problem_size": '[1, "n"]'}),
        (None, {}, {}),
    ],
)
def test_sizes_of_problems(
    database: Database, tmp_path: Path, size: object, axes: dict[str, int], options: dict[str, str]
) -> None:
    (found,) = load(database, tmp_path / "c.json", cache(entry(), problem_size=size))
    assert (found.study.problem.axes, found.study.problem.options) == (axes, options)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"results": []}, "no 'cache'"),
        (cache(entry(), cache=[1]), "cache is not an object"),
        (cache(entry(), tune_params_keys="block"), "not an array"),
        (cache(entry(), tune_params_keys=[[]]), "not all names"),
        (cache(entry(), tune_params_keys=[]), "no tune_params_keys"),
        (cache(5), "configuration '0': it is not an object"),
        (cache(entry(), {"time": 1.0}), "configuration '1': tunable 'block' has no value"),
        (cache(entry(time="Sunday")), "'Sunday' is not one of the failures"),
        (cache(entry(time=None, times=None)), "neither a number nor a failure"),
        (cache(entry(time=True, times=None)), "neither a number nor a failure"),
        (cache(entry(time=-1.0, times=None)), "not a time"),
        (cache(entry(time=float("nan"))), "NaN is not a number"),
        (cache(entry(), kernel_name=5), "study.kernel"),
        (cache(entry(), device_name={"a": 1}), "study.device.name"),
        (cache(entry(block=2**70)), "configuration"),
        (cache(entry(), kernel_name="k" * 10_000_000), "study.kernel"),
        ("", "not JSON"),
        ("[]", "not an object"),
        ("{" * 5000, "JSON"),
    ],
)
def test_what_is_wrong_is_one_line_and_adds_nothing(
    database: Database, tmp_path: Path, content: object, said: str
) -> None:
    with pytest.raises(FormatError) as refusal:
        load(database, tmp_path / "bad.json", content)
    assert said in str(refusal.value) and "\n" not in str(refusal.value) and len(str(refusal.value)) < 600
    assert list(scan(database)) == []


def test_an_export_is_a_cache_file(database: Database, tmp_path: Path) -> None:
    fill(database)
    file = tmp_path / "out.json.gz"
    export_file(database, file, KERNEL_TUNER, which=StudyFilter(study_id=1))
    text = gzip.decompress(file.read_bytes()).decode()
    # By this end Kernel Tuner knows a file that it may open again and append to.
    assert text.endswith("}\n}")
    content = json.loads(text)
    assert content.keys() == {
        *("device_name", "kernel_name", "problem_size", "tune_params_keys", "tune_params", "objective", "cache")
    }
    assert (content["device_name"], content["problem_size"]) == ("NVIDIA H200", [1024, 8192])
    assert content["tune_params_keys"] == ["block", "hint", "unroll"] == list(content["tune_params"])
    assert len(content["cache"]) == len(TrialStatus)
    failures = set()
    for key, one in content["cache"].items():
        assert key == ",".join(str(one[name]) for name in content["tune_params_keys"])
        assert all(one[name] in content["tune_params"][name] for name in content["tune_params_keys"])
        if isinstance(one["time"], str):
            failures.add(one["time"])
        else:
            assert one["time"] == pytest.approx(sum(one["times"]) / len(one["times"]))
    assert failures == {"InvalidConfig", "CompilationFailedConfig", "RuntimeFailedConfig"}


def test_every_status_survives_export_and_import(database: Database, tmp_path: Path) -> None:
    fill(database)
    file = tmp_path / "out.json"
    export_file(database, file, KERNEL_TUNER, which=StudyFilter(study_id=1))
    own = [(e.trial.result, e.trial.recorded_at) for e in scan(database, [1]) if e.trial]
    assert import_file(database, file, KERNEL_TUNER).trials == len(own)
    imported = (e.trial for e in scan(database) if e.trial and e.study.sampler == "imported")
    back = [(trial.result, trial.recorded_at) for trial in imported]
    for (ours, recorded_at), (theirs, same) in zip(own, back, strict=True):
        assert (ours.status, ours.configuration, recorded_at) == (theirs.status, theirs.configuration, same)
        assert ours.message in theirs.message
        assert (ours.measurement and ours.measurement.samples_ms) == (
            theirs.measurement and theirs.measurement.samples_ms
        )


def test_a_tunable_that_does_not_matter_gets_its_first_value(database: Database, tmp_path: Path) -> None:
    log = open_study(database, STUDY, ENVIRONMENT)
    done = correct(0)
    for values in ({"a": 1, "b": True}, {"a": 2}, {"a": 3, "b": 1}):
        log.record(TrialResult(Configuration(values), done.status, done.build, done.verdict, done.measurement))
    export_file(database, tmp_path / "out.json", KERNEL_TUNER)
    content = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert list(content["cache"]) == ["1,True", "2,True", "3,1"]


def test_a_tunable_with_a_name_of_the_format_is_refused(database: Database, tmp_path: Path) -> None:
    log = open_study(database, STUDY, ENVIRONMENT)
    done = correct(0)
    log.record(TrialResult(Configuration({"time": 1}), done.status, done.build, done.verdict, done.measurement))
    with pytest.raises(FormatError, match="tunable 'time'"):
        export_file(database, tmp_path / "out.json", KERNEL_TUNER)
    assert list(tmp_path.glob("out.json*")) == []
