"""T4: exports are valid against the published schema; both forms of it are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sample_database import fill
from sample_results import H200

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.bulk import Added
from tunebench.db.entries.entry import Entry
from tunebench.db.entries.reader import StudyFilter, scan
from tunebench.db.exchange.files import export_file, import_file
from tunebench.db.exchange.formats import FORMATS, FormatName, ImportOptions
from tunebench.db.exchange.formats.base import FormatError
from tunebench.db.queries.one_trial import trial_details
from tunebench.db.queries.trials import best, trials
from tunebench.db.upkeep.check import statistics
from tunebench.tuner.errors import UserError
from tunebench.tuner.result import TrialStatus

T4 = FORMATS[FormatName.T4]
SHARED = Path(__file__).parents[5] / "shared"
INVALIDITY = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}


@pytest.fixture
def exported(database: Database, tmp_path: Path) -> Path:
    fill(database)
    file = tmp_path / "run-t4.json"
    done = export_file(database, file, T4, which=StudyFilter(study_id=1))
    assert done.files == (file, tmp_path / "run-t4-metadata.json")
    return file


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def by_status(database: Database) -> dict[TrialStatus, Entry]:
    foreign = [entry for entry in scan(database) if entry.study.sampler == "imported"]
    return {entry.trial.result.status: entry for entry in foreign if entry.trial}


def test_an_export_has_the_structure_of_the_schema(exported: Path) -> None:
    content = json.loads(exported.read_text(encoding="utf-8"))
    assert content["schema_version"] == "1.0.0"
    assert len(content["results"]) == len(TrialStatus)
    for result in content["results"]:
        assert {"configuration", "times", "invalidity", "correctness"} <= result.keys()
        assert result["invalidity"] in INVALIDITY
        assert isinstance(result["timestamp"], str) and isinstance(result["configuration"], dict)
        assert result["times"].keys() <= {"compilation_time", "runtimes", "framework", "search_algorithm", "validation"}
        assert result["correctness"] in (0, 1)
        assert all(isinstance(one["value"], int | float | str | list) for one in result["measurements"])
    words = [result["invalidity"] for result in content["results"]]
    assert set(words) == INVALIDITY and words.count("correct") == 2
    metadata = json.loads(exported.with_name("run-t4-metadata.json").read_text(encoding="utf-8"))
    assert metadata["metadata"]["hardware"]["hardware_description"][0]["name"] == H200.name


@pytest.mark.parametrize(
    ("schema", "suffix"),
    [("T4-results-schema-1.0.0.json", ".json"), ("T4-metadata-schema-1.0.0.json", "-metadata.json")],
)
def test_an_export_is_valid_against_the_published_schema(exported: Path, schema: str, suffix: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    published = SHARED / "formats" / schema
    if not published.exists():
        pytest.skip("the published schemas are not here")
    content = json.loads(exported.with_name(f"run-t4{suffix}").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(json.loads(published.read_text(encoding="utf-8"))).validate(content)


def test_every_status_comes_back(database: Database, exported: Path) -> None:
    options = ImportOptions("mine", "NVIDIA H200", "sm_90", "float32", {"rows": 1024})
    assert import_file(database, exported, T4, options=options) == Added(studies=1, trials=7)
    assert import_file(database, exported, T4, options=options) == Added(present=7)
    found = by_status(database)
    assert found.keys() == set(TrialStatus)
    entry = found[TrialStatus.CORRECT]
    assert entry.trial is not None and entry.trial.result.measurement is not None
    own = next(iter(scan(database))).trial
    assert own is not None and own.result.measurement is not None
    assert entry.trial.result.measurement.samples_ms == own.result.measurement.samples_ms
    assert entry.trial.result.configuration == own.result.configuration
    assert entry.trial.recorded_at == own.recorded_at
    assert entry.trial.result.seconds == pytest.approx({"compile": 0.05, "check": 0.021})
    assert (entry.study.kernel, entry.study.device.name, entry.study.problem.axes) == (
        "mine",
        "NVIDIA H200",
        {"rows": 1024},
    )
    failed = found[TrialStatus.CORRECTNESS].trial
    assert failed is not None and failed.result.message == "no good" and failed.result.verdict is not None
    # Whatever another tuner leaves out, each can be shown.
    shown = {row.status: trial_details(database, row.trial_id).verdict for row in trials(database, sampler="imported")}
    refusal = shown[TrialStatus.CORRECTNESS]
    assert refusal is not None and (refusal.passed, refusal.stages, refusal.errors) == (False, (), None)


def test_foreign_results_are_never_chosen_at_run_time(database: Database, exported: Path) -> None:
    options = ImportOptions("scalar_mul", H200.name, H200.architecture, "float32", {"rows": 1024})
    import_file(database, exported, T4, options=options)
    (foreign,) = {row.source_digest for row in trials(database, kernel="scalar_mul", sampler="imported")}
    # A kernel's digest is hexadecimal.
    assert not set(foreign) <= set("0123456789abcdef")
    for digest in ("0123456789abcdef" * 4, "source-1"):
        assert not any(row.sampler == "imported" for row in best(database, kernel="scalar_mul", source_digest=digest))


def result(**changes: Any) -> dict[str, Any]:
    """A result in Kernel Tuner's form."""
    return {
        "timestamp": "2023-12-22 09:54:05.502007+00:00",
        "configuration": {"block": 16, "shape": [1, 2], "fast": True},
        "times": {
            "compilation": 918.5,
            "framework": 1.0,
            "search_algorithm": 0,
            "validation": 2.5,
            "runtimes": [3.0, 1.0],
        },
        "invalidity": "correct",
        "correctness": 1,
        "measurements": [{"name": "time", "value": 2.0, "unit": ""}],
        "objectives": ["time"],
    } | changes


def only(database: Database) -> Entry:
    (entry,) = scan(database)
    assert entry.trial is not None
    return entry


def test_the_form_of_kernel_tuner_is_read(database: Database, tmp_path: Path) -> None:
    content = {"metadata": {"timeunit": "miliseconds"}, "schema_version": "1.0.0", "results": [result()]}
    import_file(database, write(tmp_path / "conv.json", content), T4)
    entry = only(database)
    assert entry.study.kernel == "conv" and entry.study.source_digest == "imported from t4"
    assert entry.trial is not None and entry.trial.result.measurement is not None
    assert entry.trial.result.measurement.samples_ms == (3.0, 1.0)
    assert entry.trial.result.measurement.median_ms == 2.0
    assert dict(entry.trial.result.configuration) == {"block": 16, "shape": "[1, 2]", "fast": True}
    assert entry.trial.result.seconds["compile"] == pytest.approx(0.9185)


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"invalidity": "compile", "times": {}}, TrialStatus.COMPILE, "T4 says only: compile"),
        (
            {"invalidity": "runtime", "times": {}, "measurements": [{"name": "time", "value": "RuntimeFailedConfig"}]},
            TrialStatus.RUNTIME,
            "RuntimeFailedConfig",
        ),
        ({"invalidity": "timeout"}, TrialStatus.TIMEOUT, "T4 says only: timeout"),
        ({"invalidity": "correctness", "correctness": 0.3}, TrialStatus.CORRECTNESS, "T4 says only: correctness"),
        ({"correctness": 0}, TrialStatus.CORRECTNESS, "T4 says only: correctness"),
        ({"times": {"runtimes": [1e20]}}, TrialStatus.RUNTIME, "T4 says only: runtime"),
        ({"times": {}}, TrialStatus.CORRECT, ""),
        ({"timestamp": None}, TrialStatus.CORRECT, ""),
    ],
)
def test_what_a_result_says(
    database: Database, tmp_path: Path, changes: dict[str, Any], status: TrialStatus, message: str
) -> None:
    import_file(database, write(tmp_path / "one.json", {"results": [result(**changes)]}), T4)
    trial = only(database).trial
    assert trial is not None and (trial.result.status, trial.result.message) == (status, message)


def test_units_are_honoured(database: Database, tmp_path: Path) -> None:
    content = {"metadata": {"timeunit": "microseconds"}, "results": [result()]}
    import_file(database, write(tmp_path / "one.json", content), T4)
    trial = only(database).trial
    assert trial is not None and trial.result.measurement is not None
    assert trial.result.measurement.median_ms == pytest.approx(2e-3)
    assert trial.result.seconds["compile"] == pytest.approx(918.5e-6)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "not an object"),
        ({}, "no 'results'"),
        ({"results": {}}, "results is not an array"),
        ({"results": [5]}, "result 0: the result is not an object"),
        ({"results": [result(), result(invalidity="odd")]}, "result 1: invalidity 'odd' is not one of"),
        ({"results": [result(invalidity=["x"])]}, "invalidity"),
        ({"results": [result(configuration=None)]}, "configuration is not an object"),
        ({"results": [result(configuration={"a": None})]}, "tunable 'a' has no value"),
        ({"results": [result(times={"runtimes": [-1.0]})]}, "not a time"),
        ({"results": [result(times={"runtimes": [10**400]})]}, "not a time"),
        ({"results": [result(times={"runtimes": "fast"})]}, "runtimes is not an array"),
        ({"results": [result(times={}, measurements=[])]}, "correct and has no time"),
        ({"results": [result(times=[])]}, "times is not an object"),
        ({"results": [result(measurements=[7])]}, "a measurement is not an object"),
        ({"results": [result(timestamp="tomorrow")]}, "not an ISO 8601 time"),
        ({"results": [result(timestamp=5)]}, "not an ISO 8601 time"),
        ({"results": [result(correctness="yes")]}, "not a number"),
        ({"results": [result()], "metadata": {"timeunit": "fortnights"}}, "fortnights"),
        ({"results": [result()], "metadata": {"timeunit": {}}}, "unit of time"),
    ],
)
def test_what_is_wrong_is_one_line_and_adds_nothing(
    database: Database, tmp_path: Path, content: object, said: str
) -> None:
    with pytest.raises(FormatError) as refusal:
        import_file(database, write(tmp_path / "bad.json", content), T4)
    assert said in str(refusal.value) and "\n" not in str(refusal.value)
    assert list(scan(database)) == []


def test_a_file_of_several_studies_cannot_be_written(database: Database, tmp_path: Path) -> None:
    fill(database)
    with pytest.raises(UserError, match="holds one study, 3 are meant"):
        export_file(database, tmp_path / "all.json", T4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form", "statuses"),
    [
        ("convolution_A100_T4.json.gz", FormatName.T4, {"correct": 4201, "runtime": 155, "compile": 6}),
        ("dedispersion_MI250X_T4.json.gz", FormatName.T4, {"correct": 11130}),
        ("convolution_A100.json.gz", FormatName.KERNEL_TUNER, {"correct": 4201, "runtime": 155, "compile": 6}),
    ],
)
def test_published_spaces_are_read(tmp_path: Path, name: str, form: FormatName, statuses: dict[str, int]) -> None:
    file = SHARED / "spaces" / name
    if not file.exists():
        pytest.skip("the recorded spaces are not here")
    with open_database(tmp_path / "a.db") as database:
        assert import_file(database, file, FORMATS[form]) == Added(studies=1, trials=sum(statuses.values()))
        assert {one.status: one.trials for one in statistics(database).trials} == statuses
