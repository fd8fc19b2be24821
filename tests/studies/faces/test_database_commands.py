"""Questions to the results database on the command line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shlex
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import CommandLine
from sample_results import A100, ENVIRONMENT, H200, STUDY, comparison, correct, failed

from tunebench.db.connection.database import open_database
from tunebench.db.connection.upgrade import HEAD
from tunebench.db.entries.study_log import open_study
from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.result import TrialStatus


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with results of two devices."""
    file = tmp_path_factory.mktemp("filled") / "results.db"
    with open_database(file) as database:
        for device, factor in ((H200, 1.0), (A100, 2.0)):
            log = open_study(database, replace(STUDY, device=device), ENVIRONMENT)
            log.record(correct(0, 2.0 * factor))
            log.record(correct(1, 1.0 * factor))
            log.record(failed(2, TrialStatus.CORRECTNESS, "element 3 is wrong [/red]\x1b[31m"))
            log.conclude(comparison(1))
    return file


@pytest.fixture
def file(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which `--db` need not name."""
    monkeypatch.setenv("TUNEBENCH_DB", str(tmp_path / "results.db"))
    return Path(shutil.copy(filled, tmp_path / "results.db"))


@pytest.mark.usefixtures("file")
def test_show_has_everything_about_a_trial(run: CommandLine) -> None:
    page = run("show", 2)
    assert page.code == 0
    for part in (
        *("trial 2: scalar_mul", "block", "NVIDIA H200", "580.1", "log of 1", "scale", "shapes", "max relative"),
        *("3 samples", "won a comparison", "copy", "0.900×"),
    ):
        assert (part in page.out) == (part != "log of 1"), part
    assert "log of 1" in run("show", 2, "--log").out


@pytest.mark.usefixtures("file")
def test_show_as_json_says_nan_as_null(run: CommandLine) -> None:
    values = run("show", 3, "--json").json
    assert values["verdict"]["errors"]["max_relative"] is None
    assert values["verdict"]["stages"][1] == {"name": "values", "passed": False, "seconds": 0.02, "detail": "case 1"}
    assert values["build"]["figures"]["scale"]["registers"] == 32
    assert values["build"]["log"] == "log of 2"
    assert (values["measurement"], values["comparisons"]) == (None, [])
    won = run("show", 2, "--json").json
    assert won["comparisons"][0]["speedups"]["copy"]["value"] == won["over_copy"]["value"] == 0.9
    assert won["environment"]["kernel_commit"] is None
    assert won["environment"]["driver"] == "580.1" and won["device_facts"]["multiprocessors"] == 132


@pytest.mark.usefixtures("file")
def test_text_from_a_database_moves_no_cursor(run: CommandLine) -> None:
    page = run("show", 3)
    assert (page.code, "\x1b" in page.out, "[/red]\\x1b[31m" in page.out) == (0, False, True)
    assert "\x1b" not in run("trials").out


def test_a_source_is_shown_only_where_it_is_the_one_that_ran(run: CommandLine, file: Path) -> None:
    other = run("show", 1, "--source", "--json").json["source"]
    assert other["text"] is None and "ships with another source now" in other["reason"]
    kernel = load_model("scalar_mul").kernel
    with open_database(file) as database:
        open_study(database, replace(STUDY, source_digest=kernel.digest), ENVIRONMENT).record(correct(0))
        open_study(database, replace(STUDY, kernel="mine"), ENVIRONMENT).record(correct(0))
    assert run("show", 7, "--source", "--json").json["source"]["text"] == kernel.source.text
    assert "ships with this very source" in run("show", 7, "--source").out
    assert "does not ship with this tunebench" in run("show", 8, "--source").out


@pytest.mark.usefixtures("file")
def test_a_trial_that_is_not_there(run: CommandLine) -> None:
    assert run("show", 99).error.endswith("has no trial 99: 'tunebench trials' lists those that there are")


def test_stats_and_check(run: CommandLine, file: Path) -> None:
    stats = run("db", "stats", "--json").json
    assert stats["rows"]["tunebench_trials"] == 6
    assert {"kernel": "scalar_mul", "device": "NVIDIA A100", "status": "correct", "trials": 2} in stats["trials"]
    assert "NVIDIA A100" in run("db", "stats").out
    assert all(finding["sound"] for finding in run("db", "check", "--json").json)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DROP TRIGGER tunebench_trials_no_delete")
    damaged = run("db", "check")
    assert damaged.code == 1 and "trigger tunebench_trials_no_delete is missing" in damaged.out


def test_an_upgrade_says_from_where_to_where_and_what_it_keeps(run: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "older.db"
    older = Path(__file__).parents[2] / "db" / "connection" / "older" / "0009.db.gz"
    file.write_bytes(gzip.decompress(older.read_bytes()))
    done = run("db", "upgrade", "--db", file, "--json").json
    assert done == {"before": "0009", "after": HEAD, "backup": f"{file}.revision-0009.backup"}
    assert run("db", "upgrade", "--db", file).out == f"{file} has revision {HEAD} already\n"
    assert "created with revision" in run("db", "upgrade", "--db", tmp_path / "new.db").out
    assert "folder" in run("db", "upgrade", "--db", tmp_path / "nowhere" / "new.db").error


@pytest.mark.usefixtures("file")
def test_a_query_answers_as_a_table_json_and_csv(run: CommandLine) -> None:
    sql = "SELECT trial, device, over_copy, message FROM trials_flat WHERE number < 2 ORDER BY trial"
    assert "NVIDIA A100" in run("query", sql).out
    assert run("query", sql, "--json").json[1] == {"trial": 2, "device": "NVIDIA H200", "over_copy": 0.9, "message": ""}
    lines = run("query", sql, "--csv").out.splitlines()
    assert (lines[0], lines[1]) == ("trial,device,over_copy,message", "1,NVIDIA H200,,")
    first = run("query", sql, "--limit", 1, "--json")
    assert len(first.json) == 1 and "only the first 1 rows" in first.err
    assert run("query", "SELECT 1 WHERE 1 = 2", "--json").json == []


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize("sql", ["DELETE FROM tunebench_trials", "ATTACH 'x.db' AS x", "SELECT 1; SELECT 2", ";"])
def test_a_query_only_reads(run: CommandLine, sql: str) -> None:
    assert "SELECT" in run("query", sql).error


@pytest.mark.usefixtures("file")
def test_csv_has_a_flat_row_for_each_trial(run: CommandLine) -> None:
    rows = list(csv.DictReader(io.StringIO(run("trials", "--csv", "--device", "NVIDIA H200").out)))
    assert [row["trial"] for row in rows] == ["3", "2", "1"]
    assert json.loads(rows[0]["configuration"]) == dict(correct(2).configuration)
    assert rows[0]["message"] == "element 3 is wrong [/red]\x1b[31m" and rows[1]["over_copy_high"] == "0.95"
    best = list(csv.DictReader(io.StringIO(run("best", "--any-source", "--csv").out)))
    assert [row["device"] for row in best] == ["NVIDIA A100", "NVIDIA H200"]
    assert "give one of them" in run("trials", "--csv", "--json").error


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize(
    ("options", "count"),
    [
        (("--architecture", "sm_80"), 3),
        (("--dtype", "float32"), 6),
        (("--dtype", "float64"), 0),
        (("--compiler", "nvrtc", "--sampler", "pool"), 6),
        (("--compiler", "cpu"), 0),
        (("--since", "2020-01-01"), 6),
        (("--until", "2020-01-01T00:00+01:00"), 0),
        (("--status", "correct", "--architecture", "sm_90"), 2),
    ],
)
def test_trials_are_filtered(run: CommandLine, options: tuple[str, ...], count: int) -> None:
    found = run("trials", "--json", *options)
    assert (len(found.json), found.code) == (count, 0 if count else 1)


@pytest.mark.usefixtures("file")
def test_filters_that_are_not_legal(run: CommandLine) -> None:
    assert "unknown compiler 'nvcc'; did you mean nvrtc?" in run("trials", "--compiler", "nvcc").error
    assert "--since 'yesterday' is not a time" in run("trials", "--since", "yesterday").error


def test_diff_says_what_flipped_and_what_got_slower(run: CommandLine, file: Path) -> None:
    slower = run("diff", "device=NVIDIA H200", "device=NVIDIA A100")
    assert slower.code == 1 and "2.000×" in slower.out and "slower" in slower.out
    assert run("diff", "device=NVIDIA H200", "device=NVIDIA A100", "--threshold", 2.5).code == 0
    assert run("diff", "device=NVIDIA A100", "device=NVIDIA H200").code == 0

    newer = file.with_name("newer.db")
    with open_database(newer) as database:
        log = open_study(database, replace(STUDY, source_digest="source-2"), ENVIRONMENT)
        log.record(correct(0, 1.1))
    values = run("diff", file, newer, "--json")
    (pair,) = values.json["pairs"]
    assert values.code == 1 and values.json["slower"] == 1
    assert (pair["ratio"], pair["flipped"], pair["slower"]) == (1.1, True, True)
    assert [row["device"] for row in values.json["only_before"]] == ["NVIDIA A100"]
    table = run("diff", file, newer)
    assert "block=64→32" in table.out and "only in A: scalar_mul" in table.err


@pytest.mark.usefixtures("file")
def test_diff_of_what_cannot_be_compared(run: CommandLine) -> None:
    assert "have no kernel and problem in common" in run("diff", "driver=580.1", "driver=580.1", "x").error
    assert "unknown driver '600'" in run("diff", "driver=580.1", "driver=600").error
    assert "there is no results database" in run("diff", "driver=580.1", "nowhere.db").error


def test_prune_says_what_would_go_and_does_it_when_told(run: CommandLine, file: Path) -> None:
    told = f"{file}: would remove 4 trials, and 0 studies with nothing left; 2 winners stay; --no-dry-run does it\n"
    assert run("prune", "scalar_mul").out == told
    assert run("trials", "--json").json[5]["trial"] == 1
    copy = f"{file}.before-prune.backup"
    done = run("prune", "scalar_mul", "--no-dry-run").out
    assert "removed 4 trials" in done and f"as it was: {copy}\n" in done
    assert [row["trial"] for row in run("trials", "--json").json] == [5, 2]
    values = run("prune", "--before", "2100-01-01", "--winners", "--no-dry-run", "--no-backup", "--json").json
    assert values == {"trials": 2, "studies": 2, "winners_kept": 0, "backup": None, "dry_run": False}
    assert len(run("trials", "--json", "--db", copy).json) == 6


def test_prune_refuses_what_it_was_not_told(run: CommandLine, file: Path) -> None:
    assert file.exists()
    assert "name a kernel, or say which with --source" in run("prune").error
    assert "did you mean scalar_mul?" in run("prune", "scalar_mull").error
    assert "is not a time" in run("prune", "--before", "yesterday").error


@pytest.mark.parametrize(
    "line",
    [
        *("best", "trials", "studies", "misses", "show 1", "report", "query 'SELECT 1'", "prune scalar_mul", "ship"),
        *("db stats", "db upgrade", "db check", "db export -o x.csv", "db import x.jsonl", "doctor", "dashboard"),
        *("db merge URL URL", "db merge x.db URL", "diff URL torch=2.11", "best URL", "new URL", "tune URL"),
    ],
)
def test_no_command_shows_a_secret(
    run: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    pytest.importorskip("psycopg", reason="needs the PostgreSQL driver")
    url = "postgresql+psycopg://tb:s3cret@127.0.0.1:1/x?password=s3cret&sslpassword=s3cret"
    monkeypatch.setenv("TUNEBENCH_DB", url)
    monkeypatch.chdir(tmp_path)
    Path("x.jsonl").touch()
    done = run(*(word.replace("URL", url) for word in shlex.split(line)))
    assert done.code == (0 if line == "doctor" else 2), done
    assert "s3cret" not in done.out + done.err
    assert "***" in done.out + done.err, done
