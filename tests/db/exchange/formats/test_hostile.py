"""Files from anyone: whatever is in them, one clear line, and the database is as it was."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_count
import pytest
from sample_database import content, fill

from tunebench.db.connection.database import Database
from tunebench.db.entries.reader import scan
from tunebench.db.exchange.files import export_file, import_file
from tunebench.db.exchange.formats import FORMATS, Format, FormatName
from tunebench.tuner.errors import UserError

JSON_LINES = FORMATS[FormatName.JSON_LINES]
CSV = FORMATS[FormatName.CSV]
PARQUET = FORMATS[FormatName.PARQUET]


def refused(database: Database, file: Path, form: Format) -> str:
    """The one line that a file is refused with."""
    hostile_count.tried["exchange files"] += 1
    before = [repr(entry) for entry in scan(database)]
    with pytest.raises(UserError) as refusal:
        import_file(database, file, form)
    assert [repr(entry) for entry in scan(database)] == before
    message = str(refusal.value)
    assert "\n" not in message and len(message) < 1000
    return message


@pytest.fixture
def lines(database: Database, tmp_path: Path) -> list[str]:
    fill(database)
    export_file(database, tmp_path / "good.jsonl", JSON_LINES)
    return (tmp_path / "good.jsonl").read_text(encoding="utf-8").splitlines()


def changed(line: str, path: str, value: Any) -> str:
    values = json.loads(line)
    part = values
    *way, last = path.split(".")
    for name in way:
        part = part[name]
    part[last] = value
    return json.dumps(values)


HOSTILE: list[tuple[str, Callable[[str], str]]] = [
    ("cut off", lambda line: line[: len(line) // 2]),
    ("two objects", lambda line: line + line),
    ("not an object", lambda _: "[1, 2, 3]"),
    ("a number", lambda _: "1"),
    ("deep nesting", lambda _: '{"study":' * 200_000),
    ("deep arrays", lambda line: changed(line, "trial.configuration", json.loads("[" * 300 + "]" * 300))),
    ("a huge whole number", lambda line: line.replace('"seed":0', '"seed":' + "9" * 4000)),
    ("more digits than Python reads", lambda line: line.replace('"seed":0', '"seed":' + "9" * 100_000)),
    ("a huge number", lambda line: changed(line, "trial.measurement.median_ms", 10**400)),
    ("an overflowing number", lambda line: line.replace('"low_ms":', '"low_ms":1e999,"x":')),
    ("NaN", lambda line: changed(line, "trial.measurement.median_ms", float("nan"))),
    ("infinity", lambda line: changed(line, "trial.measurement.high_ms", float("inf"))),
    ("a duplicate name", lambda line: line.replace('{"study":', '{"study":null,"study":', 1)),
    ("10 MB of a name", lambda line: changed(line, "study.kernel", "k" * 10_000_000)),
    ("10 MB of digits", lambda line: line.replace('"seed":0', '"seed":' + "1" * 10_000_000)),
    ("10 MB of a tunable's name", lambda line: changed(line, "trial.configuration", {"t" * 10_000_000: 1})),
    ("40 MB of a log", lambda line: changed(line, "trial.message", "m" * 40_000_000)),
    ("NUL", lambda line: changed(line, "study.kernel", "a\0b")),
    ("half a character", lambda line: line.replace('"scalar_mul"', '"\\ud83d"', 1)),
    ("a status in SQL", lambda line: changed(line, "trial.status", "correct'; DROP TABLE tunebench_trials; --")),
    ("an object for text", lambda line: changed(line, "study.kernel", {"$ne": None})),
    ("a list for a configuration", lambda line: changed(line, "trial.configuration", [])),
    ("code in a configuration", lambda line: changed(line, "trial.configuration", {"a": {"py/reduce": ["os.system"]}})),
    ("a path for an origin", lambda line: changed(line, "study.origin.uid", "../../../../etc/passwd")),
    ("a negative size", lambda line: changed(line, "study.problem.axes", {"rows": -5})),
    ("a field of its own", lambda line: changed(line, "study.command", "rm -rf /")),
    ("text for a time", lambda line: changed(line, "trial.recorded_at", "now(); --")),
    ("a moment outside time", lambda line: changed(line, "trial.recorded_at", "99999-01-01T00:00:00Z")),
    ("a time without zone", lambda line: changed(line, "trial.recorded_at", "2026-01-01T00:00:00")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "spoil"), HOSTILE, ids=[what for what, _ in HOSTILE])
def test_a_hostile_line_is_refused_by_its_number(
    database: Database, tmp_path: Path, lines: list[str], what: str, spoil: Callable[[str], str]
) -> None:
    file = tmp_path / "bad.jsonl"
    other = [line.replace('"kernel":"', '"kernel":"another_') for line in lines]
    file.write_text("\n".join([*other, spoil(lines[0]), *other]), encoding="utf-8")
    assert f"bad.jsonl: line {len(lines) + 1}: " in refused(database, file, JSON_LINES), what


def test_sql_paths_and_markup_are_only_text(database: Database, tmp_path: Path, lines: list[str]) -> None:
    texts = [
        "'; DROP TABLE tunebench_trials; --",
        "../../etc/passwd",
        "<script>alert(1)</script>",
        "=cmd|' /C calc'!A0",
        "",
    ]
    texts += ["%s%n{0}", "\\x00", "\u202e", "$(touch /tmp/x)", "__import__('os')"]
    hostile = [changed(lines[0], "trial.configuration", {text: text}) for text in texts]
    hostile = [changed(line, "study.kernel", f"k{text}") for line, text in zip(hostile, texts, strict=True)]
    (tmp_path / "odd.jsonl").write_text("\n".join(hostile), encoding="utf-8")
    assert import_file(database, tmp_path / "odd.jsonl", JSON_LINES).trials == len(texts)
    export_file(database, tmp_path / "odd.csv", CSV)
    assert import_file(database, tmp_path / "odd.csv", CSV).trials == 0
    found = {name for entry in scan(database) if entry.trial for name in entry.trial.result.configuration}
    assert set(texts) <= found


def test_any_byte_may_be_wrong(database: Database, tmp_path: Path, lines: list[str]) -> None:
    """A file with a random byte changed is either refused in one line, or differs in a value only."""
    rng = random.Random(0)
    good = "\n".join(lines[:2]).encode()
    for number in range(150):
        data = bytearray(good)
        data[rng.randrange(len(data))] = rng.randrange(256)
        file = tmp_path / f"{number}.jsonl"
        file.write_bytes(data)
        try:
            import_file(database, file, JSON_LINES)
        except UserError as error:
            assert "\n" not in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("form", list(FORMATS.values()), ids=list(FORMATS))
@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100,
        pickle.dumps({"a": 1}),
        b"PK\x03\x04not a zip",
        b"SQLite format 3\x00" + b"\x00" * 100,
        b"\xff\xfe\x00\x00" * 50,
        b"PAR1" + b"\xff" * 64 + b"PAR1",
        b"{}",
        b'{"results": 5, "cache": 5}',
        random.Random(1).randbytes(5000),
        gzip.compress(b"nonsense", mtime=0),
        gzip.compress(b"nonsense", mtime=0)[:-6],
        b"\x1f\x8bnot gzip at all",
        b"\x1f\x8b\x08\x00" + zlib.compress(b"x" * 50),
        b",,,,\n1,2,3",
        b"study.kernel,study.kernel\n",
        b'"unclosed',
    ],
    ids=str,
)
def test_what_is_no_such_file_is_refused(database: Database, tmp_path: Path, form: Format, data: bytes) -> None:
    if form is PARQUET:
        pytest.importorskip("pyarrow")
    file = tmp_path / "bad"
    file.write_bytes(data)
    assert str(file) in refused(database, file, form)


@pytest.mark.parametrize("form", list(FORMATS.values()), ids=list(FORMATS))
def test_what_cannot_be_opened_is_refused(database: Database, tmp_path: Path, form: Format) -> None:
    if form is PARQUET:
        pytest.importorskip("pyarrow")
    assert "cannot read" in refused(database, tmp_path / "missing", form)
    assert "cannot read" in refused(database, tmp_path, form)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("study.seed", "one", "not a number"),
        ("study.seed", "9" * 5000, "study.seed"),
        ("study.seed", "1e3", "not a number"),
        ("trial.measurement.median_ms", "nan", "median_ms"),
        ("trial.measurement.median_ms", "inf", "median_ms"),
        ("trial.measurement.median_ms", "", "median_ms"),
        ("trial.measurement.samples_ms", "[1,", "samples_ms"),
        ("trial.measurement.samples_ms", "[" * 100_000, "samples_ms"),
        ("trial.verdict.passed", "maybe", "neither true nor false"),
        ("trial.configuration", '{"a":1,"a":2}', "stands twice"),
        ("trial.configuration", '"text"', "configuration"),
        ("trial.status", "=1+1", "status"),
        ("trial.recorded_at", "", "recorded_at"),
        ("study.kernel", "", "kernel"),
        ("study.kernel", "k" * 10_000_000, "kernel"),
    ],
)
def test_a_hostile_cell_is_refused_by_its_line(
    database: Database, tmp_path: Path, lines: list[str], column: str, cell: str, said: str
) -> None:
    assert lines
    export_file(database, tmp_path / "good.csv", CSV)
    with (tmp_path / "good.csv").open(newline="", encoding="utf-8") as stream:
        csv.field_size_limit(1 << 26)
        rows = list(csv.DictReader(stream))
    rows[0][column] = cell
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    file = tmp_path / "bad.csv"
    file.write_text(text.getvalue(), newline="", encoding="utf-8")
    message = refused(database, file, CSV)
    assert said in message and "bad.csv: line 2: " in message


def test_a_table_of_another_program_is_refused(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "other.csv"
    file.write_text("name,price\nscrew,3\n", encoding="utf-8")
    assert "unknown column 'name'" in refused(database, file, CSV)
    file.write_text("study.kernel,study.seed\nscrew\n", encoding="utf-8")
    assert "1 cells under 2 columns" in refused(database, file, CSV)
    file.write_text("study.kernel\nscrew\n", encoding="utf-8")
    assert "line 2: " in refused(database, file, CSV)


def test_a_parquet_file_of_another_program_is_refused(database: Database, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "other.parquet"
    for table, said in (
        ({"name": ["screw"]}, "unknown column 'name'"),
        ({"study.kernel": [5]}, "column study.kernel is of type int64"),
        ({"study.kernel": ["screw"]}, "row 1: "),
    ):
        parquet.write_table(pyarrow.table(table), file)
        assert said in refused(database, file, PARQUET)
    beyond = pyarrow.array([2**62], type=pyarrow.timestamp("us", tz="UTC"))
    parquet.write_table(pyarrow.table({"study.begun_at": beyond}), file)
    assert "not a Parquet file that can be read" in refused(database, file, PARQUET)


def test_the_database_holds_what_it_held(database: Database, lines: list[str]) -> None:
    assert len(lines) == len(content(database)) == 11
