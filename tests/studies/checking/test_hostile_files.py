"""`db import` and `replay` on files from anyone: one line each, within limits of memory and time."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile_count
import pytest
from command_line import CommandLine
from sample_database import fill

from tunebench.db.connection.database import open_database
from tunebench.db.exchange.files import export_file
from tunebench.db.exchange.formats import FORMATS, FormatName

ESCAPE = "\x1b[2J\x1b]0;owned\x07"
HUGE = 10**400
DEEP: Any = json.loads("[" * 400 + "]" * 400)
COMMANDS = ("db import", "replay")


def cache(result: Any = None, **changes: Any) -> dict[str, Any]:
    return {
        "device_name": "card",
        "kernel_name": "kernel",
        "problem_size": [64],
        "tune_params_keys": ["a"],
        "tune_params": {"a": [1, 2]},
        "cache": {"1": {"a": 1, "time": 1.0} if result is None else result},
    } | changes


def t4(**changes: Any) -> dict[str, Any]:
    result = {"configuration": {"a": 1}, "invalidity": "correct", "correctness": 1, "times": {"runtimes": [1.0, 2.0]}}
    return {"results": [result | changes]}


def spoilt_caches() -> Iterator[dict[str, Any]]:
    """Cache files of Kernel Tuner with one thing wrong in each."""
    for value in (None, True, -1.0, 0, "Sunday", ESCAPE, [], [1.0, "x"], {"a": 1}, DEEP):
        yield cache({"a": 1, "time": value})
    for value in ([0.0], [-1.0], [HUGE], [None], [[1.0]]):
        yield cache({"a": 1, "time": 1.0, "times": value})
    for value in (HUGE, 2**63, 1e308 * 10, None, "a\0b"):
        yield cache({"a": value, "time": 1.0})
    for result in (5, [], "x", {}, {"time": 1.0}, {ESCAPE: 1}, {"a": 1, "time": 1.0, "timestamp": ESCAPE}):
        yield cache(result)
    for name, values in (
        ("kernel_name", (5, [ESCAPE], "k" * 20_000, "a\0b")),
        ("device_name", ({"a": 1}, 1.5, "d\0")),
        ("problem_size", ([HUGE], [2**64], "p\0")),
        ("tune_params_keys", ("a", [], [1], [ESCAPE], [None], {"a": 1})),
        ("tune_params", ([], "x", 5)),
        ("cache", ([], None, 5, "x", [ESCAPE])),
    ):
        for value in values:
            yield cache(**{name: value})


def spoilt_results() -> Iterator[dict[str, Any]]:
    """T4 files with one thing wrong in each."""
    for name, values in (
        ("configuration", (None, [], 5, {"a": None}, {"a": HUGE}, {"a": "x\0"}, {"n" * 20_000: 1}, {f"\0{ESCAPE}": 1})),
        ("invalidity", (None, "odd", ESCAPE, ["correct"], 1)),
        ("correctness", ("yes", None, HUGE, [1], True)),
        ("times", (None, [], "x", {"runtimes": 5}, {"runtimes": [HUGE]}, {"runtimes": [-1]}, {"runtimes": ["1"]}, {})),
        ("timestamp", (5, "tomorrow", ESCAPE, "99999-01-01", "0001-01-01T00:00:00+14:00")),
        ("measurements", (5, {}, [5], [None])),
    ):
        for value in values:
            yield t4(**{name: value})
    yield {"results": 5}
    yield {"results": [t4(), DEEP]}
    yield t4() | {"metadata": {"timeunit": ESCAPE}}
    yield t4() | {"metadata": 5}


def texts() -> Iterator[tuple[str, bytes]]:
    """File names and contents that are no results, whatever the format."""
    contents = (
        b"\0" * 100,
        b"\xef\xbb\xbf{}",
        json.dumps(cache()).encode().replace(b"kernel", b"\xff\xfe"),
        json.dumps(cache()).replace("1.0", "NaN").encode(),
        json.dumps(cache()).replace("1.0", "-Infinity").encode(),
        json.dumps(cache()).replace("1.0", "1" * 5000).encode(),
        json.dumps(cache()).replace('"a": 1', '"a": 1, "a": 2').encode(),
        json.dumps(cache()).replace('"kernel"', '"\\ud83d"').encode(),
        json.dumps(t4()).replace('"a": 1', '"a": 1, "a": 2').encode(),
        json.dumps(t4()).replace('"a"', '"\\udc00"').encode(),
        b'{"results": ' * 2000,
        b"[" * 200_000,
        b'{"' + ESCAPE.encode() + b'": 1}',
        random.Random(0).randbytes(3000),
        gzip.compress(gzip.compress(json.dumps(cache()).encode())),
        gzip.compress(json.dumps(cache()).encode())[:-9],
        b"\x1f\x8b" + ESCAPE.encode() * 10,
        b"PAR1" + b"\xff" * 64 + b"PAR1",
        b",".join([b"x"] * 1_000_000),
        b"\n" * 5000,
        b'"' + b"x" * 10_000,
    )
    for number, content in enumerate(contents):
        for name in ("{}.json", "{}-t4.json", "{}.jsonl", "{}.csv"):
            yield name.format(number), content


def spoilt_rows(folder: Path) -> Iterator[tuple[str, bytes]]:
    """An export of a real database with one thing wrong in each, as lines and as a table."""
    with open_database(folder / "good.db") as database:
        fill(database)
        for form in (FormatName.JSON_LINES, FormatName.CSV):
            export_file(database, folder / f"good.{form}", FORMATS[form])
    line = json.loads((folder / "good.jsonl").read_text(encoding="utf-8").splitlines()[0])
    for number, (place, value) in enumerate(
        (
            ("study.kernel", ["x"]),
            ("study.kernel", f"{ESCAPE}\0"),
            ("study.seed", HUGE),
            ("study.problem.axes", {"a": HUGE}),
            ("study.problem.axes", {ESCAPE: "b"}),
            ("study.origin.uid", ESCAPE),
            ("trial.configuration", {ESCAPE: None}),
            ("trial.configuration", DEEP),
            ("trial.status", ESCAPE),
            ("trial.measurement.median_ms", -1),
            ("trial.measurement.samples_ms", []),
            ("trial.measurement.samples_ms", [1.0] * 1_000_001),
            ("trial.recorded_at", ESCAPE),
            (ESCAPE, 1),
        )
    ):
        changed = json.loads(json.dumps(line))
        part = changed
        *way, last = place.split(".") if place != ESCAPE else [ESCAPE]
        for name in way:
            part = part[name]
        part[last] = value
        yield f"row-{number}.jsonl", json.dumps(changed).encode()
    table = (folder / "good.csv").read_text(encoding="utf-8")
    header, rest = table.split("\n", 1)
    for number, text in enumerate(
        (
            header.replace("study.seed", ESCAPE) + "\n" + rest,
            header + "," + header + "\n" + rest,
            header + "\n" + rest.replace("nvrtc", ESCAPE),
            header + "\n" + "," * 1_000_000,
            header + "\n" + '"' + rest,
            header + "\n" + rest.replace("1.0", "nan"),
        )
    ):
        yield f"table-{number}.csv", text.encode()


def packed(*parts: bytes) -> Iterator[bytes]:
    """A gzip stream of the parts; a member for each, so that repeated ones cost nothing to make."""
    known: dict[bytes, bytes] = {}
    for part in parts:
        if part not in known:
            known[part] = gzip.compress(part, 9)
        yield known[part]


MEBIBYTE = 1 << 20
BOMBS: tuple[tuple[str, list[bytes]], ...] = (
    ("zeros.json", [b"\0" * MEBIBYTE] * 2000),
    ("zeros-t4.json", [b"\0" * MEBIBYTE] * 2000),
    ("zeros.jsonl", [b"\0" * MEBIBYTE] * 2000),
    ("zeros.csv", [b"\0" * MEBIBYTE] * 2000),
    ("empty-lines.jsonl", [b"\n" * MEBIBYTE] * 2000),
    ("empty-lines.csv", [b"study.kernel\n"] + [b"\n" * MEBIBYTE] * 2000),
    ("commas.csv", [b"," * MEBIBYTE] * 2000),
    ("brackets.json", [b"[" * MEBIBYTE] * 2000),
    ("objects-t4.json", [b'{"results": ['] + [b"{}," * (MEBIBYTE // 3)] * 2000),
    ("objects.jsonl", [b'{"study": ['] + [b"{}," * (MEBIBYTE // 3)] * 2000),
    ("values.jsonl", [b"[" + b"1," * 20 * MEBIBYTE + b"1]"]),
    ("quoted.csv", [b'study.kernel\n"'] + [b"x" * MEBIBYTE] * 2000),
    ("lines-in-a-cell.csv", [b'study.kernel\n"'] + [b"x\n" * MEBIBYTE] * 1000),
)


def refused(run: CommandLine, file: Path, folder: Path) -> None:
    """Both commands refuse a file in one line, and nothing is added to the database."""
    for command in COMMANDS:
        hostile_count.tried["files of the command line"] += 1
        options = ("--db", folder / "results.db") if command == "db import" else ("--seeds", 1)
        error = run(*command.split(), file, *options).error
        assert error.isprintable() and len(error) < 1000, error


@pytest.mark.slow
def test_files_of_other_tuners_with_something_wrong(run: CommandLine, tmp_path: Path) -> None:
    contents = itertools.chain(
        (("t4", content) for content in spoilt_results()), (("cache", content) for content in spoilt_caches())
    )
    for number, (name, content) in enumerate(contents):
        file = tmp_path / f"{number}-{name}.json"
        file.write_text(json.dumps(content), encoding="utf-8")
        refused(run, file, tmp_path)


def test_files_that_are_no_results(run: CommandLine, tmp_path: Path) -> None:
    for name, content in texts():
        (tmp_path / name).write_bytes(content)
        refused(run, tmp_path / name, tmp_path)


def test_exports_with_something_wrong(run: CommandLine, tmp_path: Path) -> None:
    for name, content in spoilt_rows(tmp_path):
        (tmp_path / name).write_bytes(content)
        refused(run, tmp_path / name, tmp_path)


def test_what_is_no_regular_file(run: CommandLine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "link.csv").symlink_to("/dev/zero")
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nothing")
    for file in sorted(tmp_path.iterdir()):
        if file.suffix in (".jsonl", ".json", ".csv"):
            refused(run, file, tmp_path)


LARGE = ("zeros.json", "objects-t4.json", "quoted.csv")
"""Unpacked up to the limits as they are; of the other files, which go the same ways, an eighth has to do."""

RUN_ALL = """
import contextlib, io, json, resource, sys
from tunebench.__main__ import main
from tunebench.db.exchange import reading
from tunebench.db.exchange.formats import base, csv_table, json_lines
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
LIMITS = [
    (reading, "_UNDOUBTED"), (reading, "_LARGEST_GROWTH"), (base, "LARGEST_FILE"), (base, "_MOST_VALUES"),
    (csv_table, "LARGEST_ROW"), (json_lines, "LARGEST_ROW"),
]
whole = {place: getattr(*place) for place in LIMITS}
for line in sys.stdin:
    share, *arguments = json.loads(line)
    for (module, name), limit in whole.items():
        setattr(module, name, limit // share)
    sys.argv = ["tunebench", *arguments]
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            main()
        except SystemExit as ending:
            code = ending.code
    print(json.dumps([code, out.getvalue(), error.getvalue()]), flush=True)
"""


@pytest.mark.slow
def test_what_grows_while_it_is_unpacked_is_stopped(tmp_path: Path) -> None:
    """In a process that may take 4 GiB of addresses, half of which its libraries take before anything is read."""
    asked: list[list[Any]] = []
    for name, parts in BOMBS:
        file = tmp_path / f"{name}.gz"
        file.write_bytes(b"".join(packed(*parts)))
        assert file.stat().st_size < 4 * MEBIBYTE
        share = 1 if name in LARGE else 8
        asked += [[share, "replay", str(file)]]
        asked += [[share, "db", "import", str(file), "--db", str(tmp_path / "results.db")]]
    ran = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input="\n".join(map(json.dumps, asked)),
        capture_output=True,
        check=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    hostile_count.tried["files of the command line"] += len(answers)
    for arguments, (code, out, error) in zip(asked, answers, strict=True):
        assert (code, out) == (2, ""), (arguments, out, error)
        assert len(error.splitlines()) == 1 and len(error) < 500, (arguments, error)


def test_a_text_that_many_rows_share_is_not_multiplied(run: CommandLine, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    kernels = pyarrow.array(["k" * (MEBIBYTE // 2)] * 600)
    file = tmp_path / "shared.parquet"
    parquet.write_table(pyarrow.table({"study.kernel": kernels}), file, dictionary_pagesize_limit=16 * MEBIBYTE)
    assert file.stat().st_size < MEBIBYTE
    refused(run, file, tmp_path)
    assert "more than 256 MiB of text" in run("replay", file).error
