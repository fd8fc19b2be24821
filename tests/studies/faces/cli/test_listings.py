"""`best`, `trials` and `studies`: what is listed, in which form, and what it says."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import CommandLine
from sample_results import A100, ENVIRONMENT, H200, STUDY, comparison, correct, failed
from typer.testing import CliRunner

from tunebench.db.connection.database import open_database
from tunebench.db.entries.study_log import open_study
from tunebench.kernels.runtime.registry import kernel_names
from tunebench.studies.faces.cli import app
from tunebench.studies.faces.cli.output import print_json_array
from tunebench.studies.request.completion import SAMPLERS as COMPLETED
from tunebench.tuner.result import TrialStatus
from tunebench.tuner.search.strategies import SAMPLERS, find_sampler


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: Path) -> CommandLine:
    """The command line, about a database that `--db` need not name."""
    monkeypatch.setenv("TUNEBENCH_DB", str(file))
    return CommandLine(monkeypatch, capsys)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies of two kernels: one whose best lost to the reference, and one that nothing was compared in."""
    file = tmp_path_factory.mktemp("filled") / "results.db"
    with open_database(file) as database:
        log = open_study(database, replace(STUDY, kernel="mine", device=H200), ENVIRONMENT)
        for number in range(4):
            log.record(correct(number, 6.0 + number))
        log.record(failed(4, TrialStatus.COMPILE, "error: \x1b[31mno"))
        log.conclude(comparison(1, over_reference=0.78))
        other = open_study(database, replace(STUDY, kernel="other", device=A100, seed=3), ENVIRONMENT)
        other.record(correct(0, 2.5))
        open_study(database, replace(STUDY, kernel="other", seed=4), ENVIRONMENT).record(
            failed(5, TrialStatus.COMPILE, "no")
        )
    return file


@pytest.fixture
def file(filled: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copy(filled, tmp_path / "results.db"))


def test_best_shows_the_comparisons_own_median_and_who_lost(ask: CommandLine) -> None:
    mine, other = ask("best", "--json").json
    (contender,) = {comparison(1).medians_ms["best"]}
    assert (mine["median_ms"], mine["confirmed_ms"]) == (7.0, contender)
    assert (other["median_ms"], other["confirmed_ms"], other["confirmed"]) == (2.5, None, False)
    table = ask("best").out
    assert f" {contender:.4g} " in table and " 7 " not in table
    words = " ".join(table.split())
    assert "1.28× slower" in words and "0.772 to 0.788" in words
    assert "not compared" in table


def test_a_tunable_may_have_one_of_several_values(ask: CommandLine) -> None:
    blocks = [row["configuration"]["block"] for row in ask("trials", "mine", "--tunable", "block=32,96", "--json").json]
    assert blocks == [96, 32]
    both = ask("trials", "--tunable", "block=32,96,64", "--tunable", "unroll=false", "--json").json
    assert [row["configuration"]["block"] for row in both] == [64]


def test_studies_are_listed_with_their_best(ask: CommandLine) -> None:
    rows = {row["study"]: row for row in ask("studies", "--json").json}
    assert {number: row["trials"] for number, row in rows.items()} == {1: 5, 2: 1, 3: 1}
    assert rows[1]["best"]["confirmed"] and rows[1]["best"]["configuration"]["block"] == 64
    assert (rows[2]["best"]["median_ms"], rows[3]["best"]) == (2.5, None)
    (line,) = [line for line in ask("studies", "mine").out.splitlines() if line.startswith("1 ")]
    for part in ("mine", "1.28× slower", "pool, seed 0", "NVIDIA H200", "UTC"):
        assert part in line
    cells = list(csv.DictReader(io.StringIO(ask("studies", "other", "--csv").out)))
    assert [(row["study"], row["best_ms"]) for row in cells] == [("2", "2.5"), ("3", "")]
    assert "did you mean mine" in ask("studies", "mime").error


@pytest.mark.parametrize("command", ["best", "trials", "studies"])
@pytest.mark.parametrize("width", [40, 80, 120])
def test_they_fit_the_terminal(ask: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = ask(command).out
    assert out and max(map(len, out.splitlines())) <= width
    assert "\x1b" not in out
    assert {"mine", "other"} <= set(out.replace("kernel:", "").split())


@pytest.mark.parametrize("command", ["best", "trials", "studies"])
def test_an_array_is_json_with_a_row_a_line(ask: CommandLine, command: str) -> None:
    done = ask(command, "--json")
    assert [json.loads(line.rstrip(",")) for line in done.out.splitlines() if line[0] == "{"] == done.json
    assert ask(command, "scalar_mul", "--json").out == "[]\n"


def test_rows_are_printed_before_the_next_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def values() -> Iterator[object]:
        for number in range(3):
            yield number
            seen.append(capsys.readouterr().out)

    print_json_array(values())
    assert json.loads("".join(seen) + capsys.readouterr().out) == [0, 1, 2]
    assert [text.strip()[-1] for text in seen] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tunebench best ", set(kernel_names())),
        ("tunebench tune gemm_s", {"gemm_scale_bn", "gemm_sigmoid_residual"}),
        ("tunebench trials --status co", {"constraints", "compile", "correct", "correctness"}),
        ("tunebench tune scalar_mul --sampler r", {"random"}),
        ("tunebench best --compiler n", {"nvrtc"}),
        ("tunebench tune scalar_mul --mode t", {"train"}),
        ("tunebench db im", {"import"}),
    ],
)
def test_the_shell_completes_names(words: str, expected: set[str]) -> None:
    parts = words.split(" ")
    environment = {
        "_TUNEBENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(parts) - 1),
        "_TYPER_COMPLETE_ARGS": words,
    }
    done = CliRunner().invoke(app, [], env=environment, prog_name="tunebench")
    assert set(done.output.split()) == expected


def test_every_completed_sampler_is_one() -> None:
    assert set(SAMPLERS) <= set(COMPLETED)
    for name in COMPLETED:
        assert find_sampler(name)


def test_only_a_table_of_trials_is_cut_short_and_says_so(ask: CommandLine, file: Path) -> None:
    with open_database(file) as database:
        log = open_study(database, replace(STUDY, kernel="mine", device=H200), ENVIRONMENT)
        for number in range(5, 60):
            log.record(correct(number, 6.0 + number))
    assert len(ask("trials", "mine", "--json").json) == 60
    assert len(list(csv.reader(io.StringIO(ask("trials", "mine", "--csv").out)))) == 61
    assert len(ask("trials", "mine", "--json", "--limit", 50).json) == 50
    table = ask("trials", "mine")
    assert "only the first 50" in table.err and len(table.out.splitlines()) < ask(
        "trials", "mine", "--limit", 60
    ).out.count("\n")
    assert ask("trials", "mine", "--limit", 50).err == ask("trials", "other").err == ""


def test_a_tunable_may_have_thousands_of_values(ask: CommandLine) -> None:
    values = ",".join(map(str, range(5000)))
    assert len(ask("trials", "--tunable", f"block={values}", "--json").json) == len(ask("trials", "--json").json)


@pytest.mark.parametrize(
    "command",
    [
        ("best", "--any-source"),
        ("trials",),
        ("studies",),
        pytest.param(("report", "-o", "report.html"), marks=pytest.mark.slow),
    ],
)
def test_a_problem_is_shown_with_its_shapes_and_a_digest_only_where_it_tells_two_apart(
    ask: CommandLine, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)

    def shown() -> str:
        done = ask(*command)
        page = (tmp_path / "report.html").read_text(encoding="utf-8") if command[0] == "report" else done.out
        return " ".join(page.split())

    def record(call: str) -> None:
        problem = replace(STUDY.problem, options={"call": call})
        with open_database(file) as database:
            open_study(database, replace(STUDY, kernel="called", problem=problem), ENVIRONMENT).record(correct(0))

    record("x=64x1000 #aaaaaa")
    record("x=16x32000 #bbbbbb")
    assert "x=64x1000" in shown() and "x=16x32000" in shown()
    assert "#aaaaaa" not in shown() and "#bbbbbb" not in shown()
    record("x=64x1000 #cccccc")
    assert "#aaaaaa" in shown() and "#cccccc" in shown() and "#bbbbbb" not in shown()
    listed = ask("trials", "called", "--json").json
    assert {one["problem"]["options"]["call"][-6:] for one in listed} == {"aaaaaa", "bbbbbb", "cccccc"}
