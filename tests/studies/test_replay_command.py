"""`tunebench replay` on a small recorded space."""

import json
from pathlib import Path

import pytest
from command_line import CommandLine


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
    file.write_text(json.dumps({"tune_params_keys": ["block", "width"], "cache": cache}))
    return file


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Runs the command."""
    return CommandLine(monkeypatch, capsys)


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
    assert "Best so far over the optimum" in plot.read_text()


def test_bad_input_gets_one_line(run: CommandLine, space: Path, tmp_path: Path) -> None:
    assert "unknown sampler 'gq'; did you mean gp?" in run("replay", space, "--sampler", "gq").error
    assert "cannot read" in run("replay", tmp_path / "absent.json").error
    space.write_text("[1, 2]")
    assert "is not a JSON object" in run("replay", space).error
