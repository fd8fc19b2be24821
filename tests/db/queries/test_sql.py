"""A query reads, and there is no way for it to do anything else."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_results import ENVIRONMENT, STUDY, correct

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.sql import ask
from tunebench.db.queries.trials import count_rows
from tunebench.tuner.errors import UserError


@pytest.fixture
def filled(url: str) -> Iterator[Database]:
    """A database with two trials, opened for writing: a query may not use that."""
    with open_database(url) as database:
        log = open_study(database, STUDY, ENVIRONMENT)
        log.record(correct(0))
        log.record(correct(1, 2.0))
        yield database


def test_rows_and_columns_come_back(filled: Database) -> None:
    answer = ask(filled, "SELECT trial, median_ms, message, median_ms AS trial FROM trials_flat ORDER BY number")
    assert answer.columns == ("trial", "median_ms", "message", "trial_2")
    assert answer.rows == ((1, 1.0, "", 1.0), (2, 2.0, "", 2.0))
    assert answer.complete
    first = ask(filled, "SELECT trial FROM best UNION ALL SELECT 77 ORDER BY 1", limit=1)
    assert (first.rows, first.complete) == (((1,),), False)
    assert ask(
        filled, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4) SELECT * FROM n"
    ).rows


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM tunebench_trials",
        "INSERT INTO tunebench_configurations (key) VALUES ('{}')",
        "UPDATE tunebench_trials SET median_ms = 0.1",
        "DROP TABLE tunebench_comparisons",
        "CREATE TABLE mine (a INTEGER)",
        "CREATE TEMP TABLE mine AS SELECT 1",
        "ALTER TABLE tunebench_trials RENAME TO mine",
        "SELECT 1; DROP TABLE tunebench_comparisons",
        "SELECT 1; COMMIT; DROP TABLE tunebench_comparisons",
        "COMMIT",
        "BEGIN",
        "VACUUM",
        "WITH gone AS (DELETE FROM tunebench_comparisons RETURNING *) SELECT * FROM gone",
        "REINDEX",
        "",
        "-- nothing",
        "no sql at all",
        "SELECT * FROM nowhere",
        "SELECT trial FROM best; COMMIT; SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE; "
        "CREATE TABLE mine (a INTEGER)",
    ],
)
def test_what_does_not_read_is_refused(filled: Database, sql: str) -> None:
    with pytest.raises(UserError) as refusal:
        ask(filled, sql)
    assert "\n" not in str(refusal.value)
    assert count_rows(filled) == (1, 2)
    with filled.reading() as connection:
        assert not filled.engine.dialect.has_table(connection, "mine")
        assert filled.engine.dialect.has_table(connection, "tunebench_comparisons")


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH DATABASE '{folder}/other.db' AS other",
        "VACUUM INTO '{folder}/other.db'",
        "PRAGMA writable_schema = 1",
        "PRAGMA query_only = 0",
        "PRAGMA journal_mode = DELETE",
        "SELECT load_extension('{folder}/other.db')",
        "SELECT writefile('{folder}/other.db', 'x')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT length(randomblob(1000000000))",
        "EXPLAIN DROP TABLE tunebench_comparisons",
        "SELECT * FROM pragma_table_list",
        "SELECT zeroblob(2000000000)",
    ],
)
def test_a_file_is_left_as_it_is(tmp_path: Path, sql: str) -> None:
    file = tmp_path / "results.db"
    with open_database(file) as database:
        open_study(database, STUDY, ENVIRONMENT).record(correct(0))
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    with open_database(file, read_only=True) as database, pytest.raises(UserError):
        ask(database, sql.format(folder=tmp_path))
    assert hashlib.sha256(file.read_bytes()).hexdigest() == before
    assert not (tmp_path / "other.db").exists()


def test_a_query_without_end_is_stopped(filled: Database) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(UserError, match=r"stopped after 0\.2 s"):
        ask(filled, endless, seconds=0.2)
    assert ask(filled, "SELECT 1").rows == ((1,),)


MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) "
GREEDY = [
    MANY.format(10_000) + "SELECT zeroblob(60000000) FROM n",
    MANY.format(10_000) + "SELECT hex(zeroblob(1000000)) FROM n",
    MANY.format(10**9) + "SELECT i FROM n",
    MANY.format(10**9) + "SELECT json_group_array(i) FROM n",
    MANY.format(10**9) + "SELECT json_group_object(i, i) FROM n",
    MANY.format(10**9) + "SELECT group_concat(hex(randomblob(1000))) FROM n",
    MANY.format(10**9) + "SELECT count(DISTINCT hex(randomblob(100))) FROM n",
    MANY.format(10**9) + "SELECT max(i) OVER (), i FROM n",
    "SELECT " + ", ".join(["zeroblob(60000000)"] * 500),
    "SELECT " + "replace(" * 20 + "hex(zeroblob(1000))" + ", '0', '0000000000')" * 20,
    "SELECT " + ", ".join(f"(SELECT {number})" for number in range(25_000)),
    "VALUES " + ", ".join(["(1)"] * 60_000),
    "SELECT json('" + "[" * 100_000 + "]" * 100_000 + "')",
    "SELECT a.value FROM " + ", ".join("json_each('[" + ",".join(["1"] * 9_000) + f"]') AS {name}" for name in "abc"),
    "SELECT printf('%.*c', 60000000, 'x') FROM trials_flat, trials_flat AS b, trials_flat AS c",
    "SELECT 'a' LIKE '" + "%a" * 20_000 + "%b'",
]


@pytest.mark.slow
def test_no_query_takes_more_than_its_time_and_memory(tmp_path: Path) -> None:
    """Asked by a fresh process, whose largest child since it began can be told."""
    file, sql = tmp_path / "results.db", tmp_path / "queries.json"
    with open_database(file) as database:
        for number in range(3):
            open_study(database, STUDY, ENVIRONMENT).record(correct(number))
    sql.write_text(json.dumps(GREEDY), encoding="utf-8")
    script = """
import json, pathlib, resource, sys, time
from tunebench.db.connection.database import open_database
from tunebench.db.queries.sql import ask
from tunebench.tuner.errors import UserError
with open_database(sys.argv[1], read_only=True) as database:
    for sql in json.loads(pathlib.Path(sys.argv[2]).read_text()):
        began = time.monotonic()
        try:
            ending = f"{len(ask(database, sql, seconds=0.3).rows)} rows"
        except UserError as error:
            ending = str(error)
        print(json.dumps([ending, time.monotonic() - began]))
print(max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) >> 10)
"""
    asking = [sys.executable, "-c", script, str(file), str(sql)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(asking, capture_output=True, check=True, text=True, env=environment)
    *endings, mebibytes = done.stdout.splitlines()
    assert len(endings) == len(GREEDY)
    for query, ending in zip(GREEDY, map(json.loads, endings), strict=True):
        message, seconds = ending
        assert "\n" not in message and len(message) < 300, query[:80]
        # It is killed a second after its time, on a machine that has one for it.
        assert seconds < 60, (query[:80], message)
    assert int(mebibytes) < 1500


def test_json_tables_can_be_asked(tmp_path: Path) -> None:
    with open_database(tmp_path / "results.db") as database:
        open_study(database, STUDY, ENVIRONMENT).record(correct(0))
        asked = ask(database, "SELECT key, value FROM trials_flat, json_each(configuration) ORDER BY key")
        assert asked.rows == tuple(sorted((key, value) for key, value in correct(0).configuration.items()))
        assert ask(database, "SELECT fullkey FROM json_tree('[[1]]')").rows == (("$",), ("$[0]",), ("$[0][0]",))


def test_an_answer_beyond_the_limit_is_one_line(filled: Database) -> None:
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000000) SELECT i FROM n"
    with pytest.raises(UserError, match="the answer is larger than 64 MiB"):
        ask(filled, numbers.replace("SELECT i FROM n", f"SELECT i, '{'x' * 100_000}' AS text FROM n"))
    answer = ask(filled, numbers, limit=5000)
    assert (len(answer.rows), answer.rows[-1], answer.complete) == (5000, (5000,), False)


def test_what_is_no_text_is_no_question(filled: Database) -> None:
    with pytest.raises(UserError, match="not UTF-8"):
        ask(filled, "SELECT '\udcff'")


def test_a_server_s_session_keeps_nothing(filled: Database) -> None:
    if filled.engine.dialect.name != "postgresql":
        pytest.skip("of servers only")
    with pytest.raises(UserError):
        ask(filled, "SELECT set_config('transaction_read_only', 'off', false)")
    ask(filled, "SELECT set_config('default_transaction_read_only', 'off', false)")
    with pytest.raises(UserError):
        ask(filled, "SELECT nextval(pg_get_serial_sequence('tunebench_trials', 'id'))")
