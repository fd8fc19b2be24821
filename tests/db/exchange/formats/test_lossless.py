"""JSON Lines, CSV and Parquet: what is exported and imported again is the same, whatever is in it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from sample_database import ODD_TEXT, content, fill

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.bulk import Added
from tunebench.db.entries.reader import StudyFilter, scan
from tunebench.db.exchange.files import export_file, import_file
from tunebench.db.exchange.formats import FORMATS, Format, FormatName, ImportOptions, format_named
from tunebench.tuner.errors import UnknownNameError, UserError

LOSSLESS = [FormatName.JSON_LINES, FormatName.CSV, FormatName.PARQUET]


@pytest.fixture(params=LOSSLESS)
def form(request: pytest.FixtureRequest) -> Format:
    """Each lossless format that can be used here."""
    if request.param is FormatName.PARQUET:
        pytest.importorskip("pyarrow")
    return FORMATS[request.param]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_export_then_import_gives_equal_rows(database: Database, tmp_path: Path, form: Format, suffix: str) -> None:
    fill(database)
    file = tmp_path / f"results.{form.name}{suffix}"
    done = export_file(database, file, form)
    assert (done.files, done.studies, done.trials) == ((file,), 3, 10)
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []
    assert (file.read_bytes()[:2] == b"\x1f\x8b") == (suffix == ".gz")
    with open_database(tmp_path / "copy.db") as copy:
        assert import_file(copy, file, form) == Added(studies=3, trials=10, comparisons=3, late_refusals=1)
        # Numbers of trials within their studies included.
        assert [repr(entry) for entry in scan(copy)] == [repr(entry) for entry in scan(database)]
        assert import_file(copy, file, form) == Added(present=10)
        again = tmp_path / f"again{suffix}"
        export_file(copy, again, form)
        assert again.read_bytes() == file.read_bytes()


def test_only_what_is_wanted_is_exported(database: Database, tmp_path: Path, form: Format) -> None:
    fill(database)
    file = tmp_path / "one"
    assert export_file(database, file, form, which=StudyFilter(kernel="gemm_scale_bn")).trials == 3
    with open_database(tmp_path / "copy.db") as copy:
        import_file(copy, file, form)
        assert {entry.study.kernel for entry in scan(copy)} == {"gemm_scale_bn"}
        assert set(content(copy)) < set(content(database))


def test_an_empty_database_is_an_empty_file(database: Database, tmp_path: Path, form: Format) -> None:
    export_file(database, tmp_path / "none", form)
    assert import_file(database, tmp_path / "none", form) == Added()


def test_a_file_that_exists_is_replaced_only_when_asked(database: Database, tmp_path: Path, form: Format) -> None:
    file = tmp_path / "there"
    file.write_text("precious", encoding="utf-8")
    with pytest.raises(UserError, match="--force"):
        export_file(database, file, form)
    assert file.read_text(encoding="utf-8") == "precious"
    export_file(database, file, form, replace=True)
    assert file.read_bytes() != b"precious"
    with pytest.raises(UserError, match="does not exist"):
        export_file(database, tmp_path / "no folder" / "file", form)


def test_the_database_itself_is_never_overwritten(tmp_path: Path, form: Format) -> None:
    with open_database(tmp_path / "results.db") as database, pytest.raises(UserError, match="belongs to a database"):
        export_file(database, tmp_path / "results.db", form, replace=True)


def test_what_a_file_says_itself_cannot_be_said_differently(database: Database, tmp_path: Path, form: Format) -> None:
    export_file(database, tmp_path / "file", form)
    with pytest.raises(UserError, match="says itself"):
        import_file(database, tmp_path / "file", form, options=ImportOptions(kernel="another"))


def test_an_interrupted_export_leaves_no_file(
    database: Database, tmp_path: Path, form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database)
    monkeypatch.setattr("tunebench.db.exchange.files._EVERY", 1)
    seen: list[int] = []

    def stop(written: int) -> None:
        seen.append(written)
        if written == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_file(database, tmp_path / "half", form, progress=stop)
    assert seen == [1, 2, 3, 4, 5]
    assert list(tmp_path.glob("half*")) == []


def test_a_line_of_json_lines_is_one_trial_with_everything(database: Database, tmp_path: Path) -> None:
    fill(database)
    file = tmp_path / "results.jsonl.gz"
    export_file(database, file, FORMATS[FormatName.JSON_LINES])
    lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]
    assert len(lines) == 11
    refused = next(line["trial"] for line in lines if line["trial"] and line["trial"]["status"] == "correctness")
    assert refused["verdict"]["max_absolute"] == "Infinity"
    assert lines[0]["study"]["device"]["name"] == "NVIDIA H200"
    assert any(line["trial"]["message"] == ODD_TEXT for line in lines if line["trial"])


def test_names_of_formats() -> None:
    assert [format_named(name).name for name in FormatName] == list(FormatName)
    with pytest.raises(UnknownNameError, match="jsonl"):
        format_named("jsonlines")
