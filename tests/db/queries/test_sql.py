"""A query reads, and there is no way for it to do anything else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_results import ENVIRONMENT, STUDY, correct

from tunebench.db.connection.database import Database, open_database
from tunebench.db.queries.sql import ask
from tunebench.db.queries.trials import count_rows
from tunebench.tuner.errors import UserError


@pytest.fixture
def filled(url: str) -> Iterator[Database]:
    """A database with two trials, opened for writing: a query may not use that."""
    with open_database(url) as database:
        log = database.study(STUDY, ENVIRONMENT)
        log.record(0, correct(0))
        log.record(1, correct(1, 2.0))
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


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM tunebench_trials",
        "INSERT INTO tunebench_configurations (key) VALUES ('{}')",
        "UPDATE tunebench_trials SET median_ms = 0.1",
        "DROP TABLE tunebench_speed_ups",
        "CREATE TABLE mine (a INTEGER)",
        "CREATE TEMP TABLE mine AS SELECT 1",
        "ALTER TABLE tunebench_trials RENAME TO mine",
        "SELECT 1; DROP TABLE tunebench_speed_ups",
        "SELECT 1; COMMIT; DROP TABLE tunebench_speed_ups",
        "COMMIT",
        "BEGIN",
        "VACUUM",
        "WITH gone AS (DELETE FROM tunebench_speed_ups RETURNING *) SELECT * FROM gone",
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
        assert filled.engine.dialect.has_table(connection, "tunebench_speed_ups")


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
        "EXPLAIN DROP TABLE tunebench_speed_ups",
        "SELECT * FROM pragma_table_list",
        "SELECT zeroblob(2000000000)",
    ],
)
def test_a_file_is_left_as_it_is(tmp_path: Path, sql: str) -> None:
    file = tmp_path / "results.db"
    with open_database(file) as database:
        database.study(STUDY, ENVIRONMENT).record(0, correct(0))
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


def test_a_server_s_session_keeps_nothing(filled: Database) -> None:
    if filled.engine.dialect.name != "postgresql":
        pytest.skip("of servers only")
    with pytest.raises(UserError):
        ask(filled, "SELECT set_config('transaction_read_only', 'off', false)")
    ask(filled, "SELECT set_config('default_transaction_read_only', 'off', false)")
    with pytest.raises(UserError):
        ask(filled, "SELECT nextval(pg_get_serial_sequence('tunebench_trials', 'id'))")
