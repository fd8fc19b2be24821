"""`db export`, `db import` and `db merge` as a user meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import CommandLine
from sample_database import content, fill

from tunebench.db.connection.database import open_database
from tunebench.db.exchange.files import import_file
from tunebench.db.exchange.formats import format_named


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    file = tmp_path / "results.db"
    with open_database(file) as database:
        fill(database)
    return file


def contents(file: Path) -> list[str]:
    with open_database(file, read_only=True) as database:
        return content(database)


@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz", "all.csv", "all.parquet"])
def test_everything_goes_through_a_file(run: CommandLine, filled: Path, tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    file, other = tmp_path / name, tmp_path / "other.db"
    done = run("db", "export", "--db", filled, "-o", file)
    assert done.code == 0 and done.out.startswith(f"10 trials of 3 studies written to {file}")
    added = run("db", "import", file, "--db", other, "--json").json
    counts = {"studies": 3, "trials": 10, "comparisons": 3, "present": 0, "conflicts": 0, "late_refusals": 1}
    assert added == [{"source": str(file), **counts}]
    assert "0 trials added, 10 already there" in run("db", "import", file, "--db", other).out
    assert contents(other) == contents(filled)


def test_a_study_goes_to_other_tuners_and_back(run: CommandLine, filled: Path, tmp_path: Path) -> None:
    t4, cache = tmp_path / "one-t4.json", tmp_path / "one.json"
    options = ("--db", filled, "--study", 1, "--json")
    assert run("db", "export", *options, "-o", t4).json == {
        "files": [str(t4), str(tmp_path / "one-t4-metadata.json")],
        "format": "t4",
        "studies": 1,
        "trials": 7,
    }
    assert run("db", "export", *options, "-o", cache, "--format", "kernel-tuner").json["trials"] == 7
    said = (
        "--kernel",
        "mine",
        "--device",
        "NVIDIA H200",
        "--architecture",
        "sm_90",
        "--dtype",
        "float16",
        "--size",
        "n=4",
    )
    for file, form in ((t4, "t4"), (cache, "kernel-tuner")):
        database = tmp_path / f"{form}.db"
        assert run("db", "import", file, "--format", form, "--db", database, *said).code == 0
        rows = run("trials", "--db", database, "mine", "--json").json
        assert len(rows) == 7
        assert {row["device"] for row in rows} == {"NVIDIA H200"}


@pytest.mark.slow
def test_databases_are_merged(run: CommandLine, filled: Path, tmp_path: Path) -> None:
    into, second = tmp_path / "all.db", tmp_path / "second.db"
    with open_database(second) as database:
        fill(database)
    added = run("db", "merge", into, filled, second, "--json").json
    assert [one["trials"] for one in added] == [10, 10]
    assert run("db", "merge", into, filled, second).out.count("0 trials added, 10 already there") == 2
    assert contents(into) == sorted(contents(filled) + contents(second))


def test_wrong_questions_are_one_line(run: CommandLine, filled: Path, tmp_path: Path) -> None:
    export = ("db", "export", "--db", filled, "-o")
    assert "does not say what format" in run(*export, tmp_path / "results.xml").error
    assert "unknown format 'jsonlines'" in run(*export, tmp_path / "x", "--format", "jsonlines").error
    assert "belongs to a database" in run(*export, filled, "--format", "csv", "--force").error
    assert "holds one study, 3 are meant" in run(*export, tmp_path / "t4.json").error
    assert "no study of kernel 'nothing'" in run(*export, tmp_path / "x.csv", "nothing").error
    assert "does not exist" in run(*export, tmp_path / "no" / "x.csv").error
    (tmp_path / "there.csv").write_text("", encoding="utf-8")
    assert "--force" in run(*export, tmp_path / "there.csv").error
    assert "into itself" in run("db", "merge", filled, filled).error
    (tmp_path / "there.csv").write_text("text", encoding="utf-8")
    assert "is not a database" in run("db", "merge", filled, tmp_path / "there.csv").error


@pytest.mark.slow
def test_an_export_goes_to_standard_output(filled: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tunebench", "db", "export", "--db", str(filled), "-o", "-"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([*command, "--format", "jsonl"], capture_output=True, check=True, env=environment)
    (tmp_path / "piped.jsonl").write_bytes(ran.stdout)
    with open_database(tmp_path / "other.db") as database:
        import_file(database, tmp_path / "piped.jsonl", format_named("jsonl"))
    assert contents(tmp_path / "other.db") == contents(filled)


def test_a_database_is_never_written_over(run: CommandLine, filled: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.csv"
    link.symlink_to(filled)
    before = contents(filled)
    other = tmp_path / "other.db"
    with open_database(other) as database:
        fill(database)
    before_other = contents(other)
    beside = [Path(f"{one}-{end}") for one in (filled, other) for end in ("wal", "shm", "claims")]
    for file in (filled, link, other, *beside):
        for command in (
            ("db", "export", "--db", filled, "-o", file, "--format", "csv", "--force"),
            ("report", "--db", filled, "-o", file),
            ("export", "scalar_mul", "-o", file, "--force"),
            ("replay", "results.json", "--plot", file),
            ("check", "mine.py", "--reproduce", file),
        ):
            assert "belongs to a database" in run(*command).error, command
    assert contents(other) == before_other
    os.mkfifo(tmp_path / "pipe.csv")
    assert "name a regular file" in run("db", "export", "--db", filled, "-o", tmp_path / "pipe.csv", "--force").error
    assert contents(filled) == before


@pytest.mark.parametrize("place", ["no/such/folder/file", ".", "x" * 300])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_made(
    run: CommandLine, filled: Path, place: str
) -> None:
    """What would be made is wrong as well, and is not looked at."""
    for command in (
        ("report", "--db", filled, "--study", 999, "-o", place),
        ("export", "no_such_kernel", "--force", "-o", place),
        ("replay", "no_such_file.json", "--plot", place),
        ("check", "no_such_file.py", "--reproduce", place),
    ):
        assert f"cannot write {place}: " in run(*command).error, command


def test_a_bad_file_makes_no_database(run: CommandLine, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    file = tmp_path / "results.jsonl"
    assert "there is no file" in run("db", "import", file, "--db", new).error
    file.write_text(json.dumps({"study": {}, "trial": None}), encoding="utf-8")
    assert "leave out options such as --kernel" in run("db", "import", file, "--kernel", "k", "--db", new).error
    assert "a size is a whole number" in run("db", "import", file, "--size", "n=1.5", "--db", new).error
    assert not new.exists()
    assert "results.jsonl: line 1: study.kernel: Field required" in run("db", "import", file, "--db", new).error


def test_parquet_without_pyarrow_is_one_line(
    run: CommandLine, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refusal = run("db", "export", "--db", filled, "-o", tmp_path / "x.parquet").error
    assert "pip install 'tunebench[parquet]'" in refusal
