"""A database is data, never code: whatever is in a file, nothing runs, the file stays as it is, and one line says why.

Three kinds of files: values that our own constraints would refuse, schemas with views and triggers of someone's own,
and files cut short or with bits flipped. Every reader is asked each time; it answers, or it refuses in one line.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

import hostile_count
import pytest
from sample_database import place_of
from sample_results import ENVIRONMENT, H200, PROBLEM, STUDY, comparison, correct, failed
from sampling import slow_but

from tunebench.db.connection.database import Database, open_database
from tunebench.db.connection.engine import locate, make_engine
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.data_frames import flat_values
from tunebench.db.queries.one_trial import trial_details
from tunebench.db.queries.selectors import parse_selector, select_best
from tunebench.db.queries.sql import ask
from tunebench.db.queries.trials import Order, best, count_rows, kernels_with_results, trials
from tunebench.db.upkeep.check import inspect_database, statistics
from tunebench.kernels.runtime.selection import Tier, recorded_offers, what_is_known
from tunebench.kernels.scalar_mul.model import ModelNew
from tunebench.tuner.build import CompilerName
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import DatabaseError, UserError
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import TrialStatus

READERS: tuple[Callable[[Database], object], ...] = (
    lambda database: [flat_values(row) for row in trials(database, limit=None)],
    lambda database: trials(database, tunables={"block": 64}, order=Order.FASTEST),
    best,
    lambda database: recorded_offers(STUDY.kernel, STUDY.source_digest, PROBLEM, H200, place_of(database)),
    lambda database: [trial_details(database, number) for number in (1, 2, 3)],
    count_rows,
    kernels_with_results,
    statistics,
    inspect_database,
    lambda database: select_best(database, parse_selector("torch=2.9")),
    lambda database: ask(database, "SELECT * FROM leaderboard LEFT JOIN best USING (trial)"),
)


class Marker:
    """Unpickling this would create a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self._file), "w")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A sound database, all of it in one file."""
    file = tmp_path_factory.mktemp("sound") / "results.db"
    with open_database(file) as database:
        log = open_study(database, STUDY, ENVIRONMENT)
        log.record(correct(0))
        log.record(correct(1, 2.0))
        log.record(failed(2, TrialStatus.CORRECTNESS))
        log.conclude(comparison(1))
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return file.read_bytes()


@pytest.fixture
def file(sound: bytes, tmp_path: Path) -> Path:
    """A sound database, to be made a hostile one."""
    file = tmp_path / "results.db"
    file.write_bytes(sound)
    return file


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@cache
def opened(file: Path) -> Database:
    """An open database of that name, whose connections come anew: what its engine keeps is SQL put together before."""
    return Database(make_engine(locate(file), read_only=True), locate(file), read_only=True)


def read_all(hostile: Path) -> int:
    """Ask every reader; how many of them refused. Anything but an answer or a line is an error."""
    hostile_count.tried["database files"] += 1
    before, refusals = digest(hostile), []
    file = Path(tempfile.gettempdir(), f"tunebench-hostile-{os.getpid()}.db")
    file.write_bytes(hostile.read_bytes())
    try:
        open_database(file, read_only=True).close()
        database = opened(file)
        for reader in READERS:
            try:
                reader(database)
            except UserError as error:
                refusals.append(str(error))
        database.close()
    except UserError as error:
        refusals.append(str(error))
    for refusal in refusals:
        assert "\n" not in refusal and "\x1b" not in refusal and len(refusal) < 2_000, refusal[:3_000]
    assert digest(file) == before
    file.unlink()
    return len(refusals)


@contextlib.contextmanager
def loosened(file: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the file after its tables were made anew without types, checks and triggers."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = 1")
        connection.execute("DELETE FROM sqlite_master WHERE type = 'trigger'")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, ' STRICT', '') WHERE sql NOT LIKE '%ROWID%'")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, ', STRICT', '')")
        connection.execute("PRAGMA writable_schema = RESET")
        connection.execute("PRAGMA ignore_check_constraints = 1")
        yield connection


COLUMNS = {
    "tunebench_configurations": ("key",),
    "tunebench_problems": ("key", "dtype", "axes", "options"),
    "tunebench_devices": ("name", "architecture", "uuid", "kind", "memory_bytes"),
    "tunebench_environments": ("torch", "driver", "host", "compiler"),
    "tunebench_studies": ("kernel", "source_digest", "compiler", "sampler", "seed", "begun_at", "warm_starts"),
    "tunebench_trials": (
        "status",
        "message",
        "document",
        "recorded_at",
        "median_ms",
        "regime",
        "number",
        "low_ms",
        "clock",
    ),
    "tunebench_builds": ("document", "compiler_version", "code_sha256", "registers", "seconds"),
    "tunebench_comparisons": ("document", "concluded_at", "over_reference", "best_ms", "conclusive"),
}

VALUES: dict[str, object] = {
    "sql": "'; DROP TABLE tunebench_trials; --",
    "sql_in_quotes": "\"; ATTACH '/tmp/evil.db' AS evil; --",
    "python": "__import__('os').system('touch /tmp/evil')",
    "path": "../../../../../../etc/passwd",
    "absolute_path": "/etc/passwd",
    "markup": "[/red][link=file:///etc/passwd]x[/link]\x1b]0;title\x07\x1b[2J",
    "nul": "a\0b",
    "empty": "",
    "long": "x" * 300_000,
    "deep": "[" * 200_000,
    "digits": '{"n":' + "9" * 10_000 + "}",
    "infinite_json": '{"n":1e999,"m":NaN}',
    "whole": 2**63 - 1,
    "negative": -1,
    "infinite": float("inf"),
    "null": None,
    "bytes": b"\xff\xfe\x00\x80",
    "surrogate": b"\xed\xa0\x80".decode("utf-8", "surrogatepass"),
    "list": "[1,2,3]",
    "object": '{"block":[1],"x":{"y":null}}',
}


@pytest.mark.slow
@pytest.mark.parametrize("table", COLUMNS)
@pytest.mark.parametrize("kind", [*VALUES, "pickle"])
def test_a_hostile_value_is_only_a_value(file: Path, tmp_path: Path, table: str, kind: str) -> None:
    marker = tmp_path / "executed"
    value = pickle.dumps(Marker(marker)) if kind == "pickle" else VALUES[kind]
    if kind == "surrogate":
        value = b"\xed\xa0\x80"
    columns, place = COLUMNS[table], [*VALUES, "pickle"].index(kind)
    # Another column for each kind of value.
    for column in (columns[place % len(columns)],):
        copy = tmp_path / f"{column}.db"
        copy.write_bytes(file.read_bytes())
        with loosened(copy) as connection, contextlib.suppress(sqlite3.IntegrityError):
            # Text that is no UTF-8 goes in as text.
            place = "CAST(? AS TEXT)" if kind in ("surrogate", "bytes") and column != "memory_bytes" else "?"
            connection.execute(
                f"UPDATE {table} SET {column} = {place} WHERE id = (SELECT min(id) FROM {table})", (value,)
            )
        read_all(copy)
    assert not marker.exists()


REFUSED: dict[tuple[str, str], list[object]] = {
    ("configurations", "key"): ['{"block": [1]}', "[]", "{", "[" * 100_000, '"__import__"'],
    ("problems", "key"): ["{}", '{"axes":{"n":1},"dtype":"float32","options":{}}'],
    ("problems", "axes"): ["[]", '{"rows": "1"}', '{"rows": -1}', "{", "[" * 100_000],
    ("problems", "options"): ['{"mode": 1}', "3"],
    ("trials", "status"): ["fine"],
    ("trials", "recorded_at"): ["yesterday", "2026-01-01 00:00:00"],
    ("trials", "low_ms"): ["fast", b"pickle"],
}


def test_a_value_of_another_kind_is_refused_when_it_is_read(file: Path) -> None:
    with loosened(file) as connection, open_database(file, read_only=True) as database:
        for (table, column), values in REFUSED.items():
            (sound,) = connection.execute(f"SELECT {column} FROM tunebench_{table} WHERE id = 1").fetchone()
            for value in values:
                connection.execute(f"UPDATE tunebench_{table} SET {column} = ? WHERE id = 1", (value,))
                with pytest.raises(DatabaseError, match="not written by tunebench"):
                    trials(database)
            connection.execute(f"UPDATE tunebench_{table} SET {column} = ? WHERE id = 1", (sound,))
        assert len(trials(database)) == 3


SPACE = ModelNew.kernel.space
CPU = find_device("cpu")
SMALL = Problem({"elements": 64}, "float32")

OUTSIDE: dict[str, dict[str, object]] = {
    "value": {"block_size": 7},
    "text_for_a_number": {"block_size": "256"},
    "fraction": {"block_size": 256.0},
    "truth_for_a_number": {"items_per_thread": True},
    "number_for_a_truth": {"unroll": 1},
    "huge": {"block_size": 10**30},
    "negative": {"waves": -1},
    "infinite": {"waves": float("inf")},
    "code": {
        "load_hint": 'streaming; } extern "C" int system(const char*); static int x = system("touch executed"); {'
    },
    "preprocessor": {"load_hint": '\n#include "/etc/passwd"\n'},
    "extra": {"evil": 1},
    "extra_code": {"x = 0; int y": 1},
    "path": {"store_hint": "../../../etc/passwd"},
}


@pytest.mark.parametrize("name", [*OUTSIDE, "missing", "empty"])
def test_nothing_outside_the_declared_space_is_ever_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """So nothing outside it is compiled: a database says which configuration, never what to compile."""
    file = tmp_path / "results.db"
    monkeypatch.setenv("TUNEBENCH_DB", str(file))
    space = SPACE.enumerate(SMALL, CPU)
    values = dict(space[space.default])
    if name == "missing":
        del values["block_size"]
    elif name == "empty":
        values = {}
    hostile = Configuration({**values, **OUTSIDE.get(name, {})})  # type: ignore[dict-item]
    study = replace(
        STUDY,
        kernel=ModelNew.kernel.name,
        source_digest=ModelNew.kernel.digest,
        problem=SMALL,
        device=CPU,
        compiler=CompilerName.CPU,
    )
    with open_database(file) as database:
        open_study(database, study, ENVIRONMENT).record(replace(correct(0, 1e-9), configuration=hostile))
    hostile_count.tried["configurations"] += 1
    choice = next(what_is_known(ModelNew.kernel, SMALL, CPU).choices())
    assert choice.configuration is not None
    assert choice.configuration.key in {space[number].key for number in range(len(space))}
    assert choice.tier is Tier.DEFAULT, choice


SCHEMAS = {
    "a view for a table": (
        "DROP TABLE tunebench_comparisons",
        "CREATE VIEW tunebench_comparisons AS SELECT 1 AS study_id, load_extension('evil') AS document",
    ),
    "a view that writes files": (
        "DROP VIEW best",
        "CREATE VIEW best AS SELECT writefile('{marker}', 'x') AS trial",
    ),
    "a view without end": (
        "DROP VIEW leaderboard",
        "CREATE VIEW leaderboard AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 99999) "
        "SELECT i AS place FROM n",
    ),
    "a view of itself": ("DROP VIEW best", "CREATE VIEW best AS SELECT * FROM best"),
    "a trigger": (
        "CREATE TRIGGER evil AFTER INSERT ON tunebench_trials BEGIN SELECT load_extension('evil'); END",
        "CREATE TRIGGER evil_version AFTER UPDATE ON tunebench_version BEGIN DELETE FROM tunebench_builds; END",
    ),
    "an index that computes": ("CREATE INDEX evil ON tunebench_builds (abs(length(document)))",),
    "a virtual table": ("CREATE VIRTUAL TABLE evil USING fts5(body)",),
    "a generated column": ("ALTER TABLE tunebench_builds ADD COLUMN evil TEXT AS (hex(document))",),
    "a table less": ("DROP TABLE tunebench_misses",),
    "a column less": ("ALTER TABLE tunebench_builds DROP COLUMN document",),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_of_someone_s_own_runs_nothing(file: Path, tmp_path: Path, name: str) -> None:
    marker = tmp_path / "executed"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for statement in SCHEMAS[name]:
            with contextlib.suppress(sqlite3.OperationalError):
                connection.execute(statement.format(marker=marker))
    read_all(file)
    assert not marker.exists()
    if name == "a virtual table":
        return  # Tables of other programs may be there.
    with contextlib.suppress(UserError), open_database(file, read_only=True) as database:
        assert any(not one.sound for one in inspect_database(database))


def test_a_trigger_that_would_load_code_only_refuses_the_row(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for statement in SCHEMAS["a trigger"]:
            connection.execute(statement)
    with pytest.raises(UserError) as refusal, open_database(file) as database:
        open_study(database, STUDY, ENVIRONMENT).record(correct(3))
    assert "\n" not in str(refusal.value)
    with open_database(file, read_only=True) as database:
        assert count_rows(database) == (1, 3)


@pytest.mark.parametrize("share", [0.0003, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.998])
def test_a_file_cut_short_is_left_as_it_is(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    assert read_all(file) > 0


@pytest.mark.parametrize("seed", slow_but(range(6), range(30)))
def test_a_file_with_bits_flipped_is_left_as_it_is(file: Path, seed: int) -> None:
    chance = random.Random(seed)
    content = bytearray(file.read_bytes())
    # One bit, a few, or many; every other file in the first page, where the schema is.
    for _ in range((1, 8, 200)[seed % 3]):
        content[chance.randrange(4096 if seed % 2 else len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(bytes(content))
    read_all(file)


@pytest.mark.parametrize("seed", slow_but(range(3), range(12)))
def test_a_file_with_pages_of_noise_is_left_as_it_is(file: Path, seed: int) -> None:
    chance = random.Random(seed)
    content = bytearray(file.read_bytes())
    page = 4096 * chance.randrange(1, len(content) // 4096)
    content[page : page + 4096] = chance.randbytes(4096)
    file.write_bytes(bytes(content))
    read_all(file)
