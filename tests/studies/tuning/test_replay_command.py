"""`tunebench replay` on a small recorded space."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import CommandLine
from sample_results import ENVIRONMENT, STUDY, correct, failed

from tunebench.db.connection.database import open_database
from tunebench.db.entries.study_log import open_study
from tunebench.kernels.runtime.registry import kernel_names
from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import request_of
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import TrialStatus


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """A Kernel Tuner cache file of twelve configurations, one of which fails."""
    cache = {
        f"{block},{width}": {"block": block, "width": width, "time": 1.0 + abs(block - 128) / 64 + abs(width - 2)}
        for block in (32, 64, 128, 256)
        for width in (1, 2, 4)
    }
    cache["32,4"]["time"] = "CompilationFailedConfig"  # type: ignore[assignment]
    file = tmp_path / "space.json"
    file.write_text(json.dumps({"tune_params_keys": ["block", "width"], "cache": cache}), encoding="utf-8")
    return file


def test_every_seed_is_in_the_json(run: CommandLine, space: Path) -> None:
    ran = run("replay", space, "--sampler", "random", "--sampler", "gp", "--budget", 11, "--seeds", 3, "--json")
    random, pool = ran.json
    assert [random["strategy"], pool["strategy"]] == ["random", "gp"]
    for report in (random, pool):
        assert [search["seed"] for search in report["runs"]] == [0, 1, 2]
        assert report["optimum_ms"] == 1.0
        assert report["score"] == pytest.approx(sum(search["score"] for search in report["runs"]) / 3)
        assert all(len(search["best_ms"]) == 11 for search in report["runs"])


def test_seeds_follow_the_first_one(run: CommandLine, space: Path) -> None:
    ran = run("replay", space, "--sampler", "random", "--seeds", 2, "--first-seed", 7, "--json")
    assert [search["seed"] for search in ran.json[0]["runs"]] == [7, 8]


def test_text_and_plot(run: CommandLine, space: Path, tmp_path: Path) -> None:
    plot = tmp_path / "plot.html"
    ran = run("replay", space, space, "--sampler", "exhaustive", "--seeds", 1, "--budget", 12, "--plot", plot)
    assert ran.code == 0
    assert ran.out.count("space (12 configurations, 8.3% fail), exhaustive: score") == 2
    assert "exhaustive: average score" in ran.out
    assert "Best so far over the optimum" in plot.read_text(encoding="utf-8")


@pytest.mark.slow
def test_samplers_of_optuna_are_strategies(run: CommandLine, space: Path) -> None:
    names = ("optuna:CmaEsSampler", "optuna:GPSampler")
    options = [option for name in names for option in ("--sampler", name)]
    ran = run("replay", space, *options, "--seeds", 2, "--budget", 12, "--json")
    reports = ran.json
    assert [report["strategy"] for report in reports] == list(names)
    assert {search["best_ms"][-1] for report in reports for search in report["runs"]} == {reports[0]["optimum_ms"]}


def test_bad_input_gets_one_line(run: CommandLine, space: Path, tmp_path: Path) -> None:
    assert "unknown sampler 'gq'; did you mean gp?" in run("replay", space, "--sampler", "gq").error
    message = "unknown sampler 'optuna:TPEsampler'; did you mean optuna:TPESampler"
    assert message in run("replay", space, "--sampler", "optuna:TPEsampler").error
    assert "cannot read" in run("replay", tmp_path / "absent.json").error
    space.write_text("[1, 2]", encoding="utf-8")
    assert "neither T4 results nor" in run("replay", space).error


def test_nothing_in_a_file_reaches_the_terminal(run: CommandLine, tmp_path: Path) -> None:
    cache = {"kernel_name": "a\x1b[2Jb", "cache": {"1": {"a\x1b": 1, "time": 2.0}}, "tune_params_keys": ["a\x1b"]}
    file, lines = tmp_path / "one.json", tmp_path / "one.jsonl"
    file.write_text(json.dumps(cache), encoding="utf-8")
    assert run("db", "import", file, "--db", tmp_path / "one.db").code == 0
    assert run("db", "export", "--db", tmp_path / "one.db", "-o", lines).code == 0
    for source in (file, lines, tmp_path / "one.db"):
        ran = run("replay", source, "--seeds", 1)
        assert ran.code == 0 and "\x1b" not in ran.out + ran.err


def test_other_files_are_searched_first(run: CommandLine, space: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(space.read_text(encoding="utf-8"), encoding="utf-8")
    fresh = run("replay", space, "--budget", 11, "--seeds", 3, "--json").json[0]
    warm = run("replay", space, "--from", other, "--budget", 11, "--seeds", 3, "--json").json[0]
    assert warm["strategy"] == "gp after other"
    assert all(search["best_ms"][0] == 1.0 for search in warm["runs"]), "the best of the other one is tried first"
    assert warm["score"] > fresh["score"]
    # A space is not known from itself.
    itself = run("replay", space, "--from", space, "--budget", 11, "--seeds", 3, "--json").json[0]
    assert itself["runs"][0]["best_ms"] == fresh["runs"][0]["best_ms"]


@pytest.mark.slow
def test_where_a_search_would_have_stopped(run: CommandLine, tmp_path: Path) -> None:
    cache = {
        f"{a},{b},{c}": {"a": a, "b": b, "c": c, "time": 2.0 + (a - 5) ** 2 + abs(b - 3) + (c - 2) ** 2 / 2}
        for a in range(12)
        for b in range(8)
        for c in range(5)
    }
    file = tmp_path / "valley.json"
    file.write_text(json.dumps({"tune_params_keys": ["a", "b", "c"], "cache": cache}), encoding="utf-8")
    report = run("replay", file, "--seeds", 2, "--budget", 150, "--stop-early", "--json").json[0]
    assert all(60 < search["settled_after"] < 150 for search in report["runs"])
    assert all(search["best_ms"][search["settled_after"] - 1] == 2.0 for search in report["runs"])
    assert "stopping early: 1 of 1 searches" in run("replay", file, "--seeds", 1, "--budget", 150, "--stop-early").out
    assert run("replay", file, "--seeds", 1, "--json").json[0]["runs"][0]["settled_after"] is None


def filled(file: Path) -> Path:
    """A database with studies of two kernels, the first one on two sizes of the problem and twice on one of them."""
    with open_database(file) as database:
        for kernel, rows, seed, trials in (
            ("one", 64, 0, 12),
            ("one", 64, 1, 5),
            ("one", 256, 0, 12),
            ("two", 64, 0, 8),
        ):
            problem = Problem({"rows": rows}, "float32")
            log = open_study(database, replace(STUDY, kernel=kernel, problem=problem, seed=seed), ENVIRONMENT)
            for number in range(trials):
                log.record(failed(3, TrialStatus.RUNTIME) if number == 3 else correct(number, 1.0 + number * rows))
    return file


def test_our_own_databases_and_their_exports_are_replayed(run: CommandLine, tmp_path: Path) -> None:
    database, lines = filled(tmp_path / "results.db"), tmp_path / "results.jsonl.gz"
    assert run("db", "export", "-o", lines, "--db", database).code == 0
    options = ("--sampler", "random", "--seeds", 1, "--budget", 12, "--json")
    reports = run("replay", database, *options).json
    assert [(report["space"].partition(" on ")[0], report["configurations"]) for report in reports] == [
        ("one (rows=64 float32)", 12),
        ("one (rows=256 float32)", 12),
        ("two (rows=64 float32)", 8),
    ]
    assert [report["failing"] for report in reports] == [1 / 12, 1 / 12, 1 / 8]
    assert {report["optimum_ms"] for report in reports} == {1.0}

    def spaces(*arguments: object) -> list[tuple[str, int]]:
        return [(one["space"], one["configurations"]) for one in run("replay", *arguments, *options).json]

    assert sorted(spaces(lines)) == sorted(spaces(database))
    assert spaces(lines, "--kernel", "two") == spaces(database, "--kernel", "two") == [(reports[2]["space"], 8)]
    assert spaces(database, "--study", 2) == [(reports[0]["space"], 5)]
    # Each size is searched with what the other one has told; the other kernel has nothing to tell.
    warm = run("replay", database, "--from", database, *options[2:]).json
    assert [report["strategy"].count("after") for report in warm] == [1, 1, 0]


def test_databases_that_are_not_there_or_empty_get_one_line(run: CommandLine, space: Path, tmp_path: Path) -> None:
    database = filled(tmp_path / "results.db")
    assert "there is no results database" in run("replay", tmp_path / "absent.db").error
    assert "has no study of kernel 'three'" in run("replay", database, "--kernel", "three").error
    assert "--study counts the studies of one" in run("replay", space, "--study", 1).error
    message = "unknown sampler 'optuna:TPEsampler'; did you mean optuna:TPESampler"
    assert message in run("replay", space, "--sampler", "optuna:TPEsampler").error
    assert "cannot read" in run("replay", tmp_path / "absent.jsonl").error
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{}\n", encoding="utf-8")
    assert "line 1" in run("replay", broken).error
    empty = tmp_path / "empty.db"
    open_database(empty).close()
    assert "has no study with a configuration that was timed" in run("replay", empty).error


SPACES = sorted((Path(__file__).parents[3] / "studies" / "files" / "spaces").glob("*.toml"))


@pytest.mark.parametrize("file", SPACES, ids=lambda file: file.stem)
def test_the_studies_of_whole_spaces_name_what_their_kernels_have(file: Path) -> None:
    resolved = resolve(request_of(str(file), {"device": "cpu"}))
    assert resolved.kernel.name == file.stem
    assert resolved.request.sampler == "exhaustive"


def test_every_kernel_has_such_a_study() -> None:
    assert [file.stem for file in SPACES] == sorted(kernel_names())


@pytest.mark.slow
def test_the_spaces_in_the_repository_are_those_of_all_kernels(run: CommandLine) -> None:
    folder = Path(__file__).parents[3] / "docs" / "results" / "spaces"
    options = ("--sampler", "random", "--budget", 5, "--seeds", 1, "--json")
    there = run("replay", folder / "h200.jsonl.gz", *options).json
    assert sorted(one["space"].partition(" ")[0] for one in there) == sorted(kernel_names())
    assert all("NVIDIA H200" in one["space"] for one in there)
    (after,) = run(
        "replay", folder / "h100.jsonl.gz", "--from", folder / "h200.jsonl.gz", "--kernel", "scalar_mul", *options
    ).json
    assert "NVIDIA H100" in after["space"]
