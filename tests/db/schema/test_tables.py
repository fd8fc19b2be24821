"""The database itself refuses rows that break an invariant, and to change or remove any; asked in raw SQL."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from sample_results import ENVIRONMENT, STUDY, comparison, correct, failed
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.trials import trials
from tunebench.db.schema import tables
from tunebench.tuner.result import Stage, TrialStatus

TABLES = sorted(tables.Base.metadata.tables)


@pytest.fixture
def filled(database: Database) -> Database:
    """Trial 1 is correct and confirmed, trial 2 was refused and trial 3 was refused later; a configuration is free."""
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(correct(0))
    log.record(failed(1, TrialStatus.CORRECTNESS))
    log.record(correct(2))
    log.refuse(2, Stage("sanitizer", False, 2.5, "memcheck: Invalid read"))
    log.conclude(comparison(0))
    with database.writing() as connection:
        connection.execute(text("INSERT INTO tunebench_configurations (id, key) VALUES (90, '{}')"))
    return database


MEASURED: dict[str, object] = {
    "median_ms": 2.0,
    "low_ms": 1.0,
    "high_ms": 3.0,
    "regime": "cold",
    "clock": "clock",
    "sample_count": 2,
}
UNTIMED = dict.fromkeys(MEASURED)
TRIAL: dict[str, object] = {
    "study_id": 1,
    "number": 9,
    "configuration_id": 90,
    "environment_id": 1,
    "build_id": 1,
    "recorded_at": "2026-01-01 00:00:00+00:00",
    "status": "correct",
    **MEASURED,
    "message": "",
    "document": "{}",
}
COMPARISON: dict[str, object] = {
    "study_id": 1,
    "configuration_id": 1,
    "environment_id": 1,
    "concluded_at": "2026-01-01 00:00:00+00:00",
    "conclusive": True,
    "over_reference": 2.0,
    "over_reference_low": 1.9,
    "over_reference_high": 2.1,
    "document": "{}",
}
BUILD: dict[str, object] = {
    **dict.fromkeys(("variant_digest", "compiler_version", "code_sha256"), "x"),
    "compiler": "cpu",
    "registers": None,
    "seconds": 1.0,
    "document": "{}",
}


def add(database: Database, table: str, values: Mapping[str, object]) -> None:
    """Insert a row by raw SQL."""
    columns = ", ".join(values)
    parameters = ", ".join(f":{name}" for name in values)
    with database.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            # Raw SQL has no types; the driver's are too narrow for time and JSON.
            kinds = {"recorded_at": "timestamptz", "concluded_at": "timestamptz", "document": "json"}
            parameters = ", ".join(f"CAST(:{n} AS {kinds[n]})" if n in kinds else f":{n}" for n in values)
        connection.execute(text(f"INSERT INTO tunebench_{table} ({columns}) VALUES ({parameters})"), dict(values))


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("trials", TRIAL),
        ("trials", TRIAL | {"status": "pruned"}),
        ("trials", TRIAL | {"status": "compile", "message": "log"} | UNTIMED),
        ("comparisons", COMPARISON),
        ("builds", BUILD),
    ],
)
def test_a_sound_row_is_taken(filled: Database, table: str, row: dict[str, object]) -> None:
    add(filled, table, row)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"status": "fine"}, id="unknown status"),
        pytest.param(UNTIMED, id="correct without a time"),
        pytest.param({"status": "compile", "message": "log"}, id="the time of a failure"),
        pytest.param({"median_ms": None}, id="an interval without a median"),
        pytest.param({"regime": None}, id="a time without its regime"),
        pytest.param({"regime": "tepid"}, id="unknown regime"),
        pytest.param({"low_ms": 2.5}, id="median below its interval"),
        pytest.param({"high_ms": 1.5}, id="median above its interval"),
        pytest.param({"low_ms": 0.0}, id="time zero"),
        pytest.param({"sample_count": 0}, id="no samples"),
        pytest.param({"median_ms": "fast"}, id="a median that is text"),
        pytest.param({"status": "compile", "message": ""} | UNTIMED, id="a failure that does not say why"),
        pytest.param({"number": 0}, id="a number twice"),
        pytest.param({"number": -1}, id="a negative number"),
        pytest.param({"configuration_id": 1}, id="a configuration twice"),
        pytest.param({"configuration_id": 77}, id="no such configuration"),
        pytest.param({"study_id": 77}, id="no such study"),
        pytest.param({"environment_id": None}, id="no environment"),
        pytest.param({"build_id": 77}, id="no such build"),
        pytest.param({"document": None}, id="no document"),
    ],
)
def test_a_trial_that_contradicts_itself_is_refused(filled: Database, change: dict[str, object]) -> None:
    with pytest.raises(DBAPIError):
        add(filled, "trials", TRIAL | change)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "row"),
    [
        pytest.param("comparisons", COMPARISON | {"over_reference_low": 2.05}, id="a ratio outside its interval"),
        pytest.param("comparisons", COMPARISON | {"study_id": 77}, id="no such study"),
        pytest.param("comparisons", COMPARISON | {"configuration_id": 90}, id="a winner that was not tried"),
        pytest.param("builds", BUILD | {"seconds": -1.0}, id="less than no time"),
        pytest.param("builds", BUILD | {"compiler": "rm"}, id="unknown compiler"),
    ],
)
def test_a_part_that_contradicts_itself_is_refused(filled: Database, table: str, row: dict[str, object]) -> None:
    with pytest.raises(DBAPIError):
        add(filled, table, row)


@pytest.mark.parametrize("table", [name for name in TABLES if name != tables.Miss.__tablename__])
def test_rows_are_neither_changed_nor_removed(filled: Database, table: str) -> None:
    column = next(iter(tables.Base.metadata.tables[table].columns)).name
    for statement in (f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}"):
        with filled.engine.connect() as connection:
            before = connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
            assert before > 0
            with pytest.raises(DBAPIError, match="only ever added"):
                connection.execute(text(statement))


def test_a_correct_trial_may_be_refused_and_nothing_else(filled: Database) -> None:
    """The one change that is legal; a refusal is not taken back."""
    untimed = ", ".join(f"{name} = NULL" for name in UNTIMED)
    refusing = f"UPDATE tunebench_trials SET status = 'correctness', message = 'wrong', {untimed}"
    illegal = (
        f"{refusing}, number = 9 WHERE id = 1",
        f"{refusing}, recorded_at = (SELECT max(recorded_at) FROM tunebench_trials) WHERE id = 1",
        f"{refusing} WHERE id = 2",
        "UPDATE tunebench_trials SET status = 'pruned' WHERE id = 1",
        "UPDATE tunebench_trials SET document = '{}' WHERE id = 1",
    )
    for statement in illegal:
        with filled.engine.connect() as connection, pytest.raises(DBAPIError, match="only ever added"):
            connection.execute(text(statement))
    with filled.engine.begin() as connection:
        connection.execute(text(f"{refusing} WHERE id = 1"))
    assert [row.status for row in trials(filled)] == [TrialStatus.CORRECTNESS] * 3


def test_rows_are_not_replaced(tmp_path: object) -> None:
    """SQLite's own way around triggers on DELETE."""
    with open_database(f"{tmp_path}/results.db") as database:
        with database.writing() as connection:
            connection.execute(text("INSERT INTO tunebench_configurations (id, key) VALUES (1, 'a')"))
        with pytest.raises(DBAPIError, match="only ever added"), database.engine.begin() as connection:
            connection.execute(text("INSERT OR REPLACE INTO tunebench_configurations (id, key) VALUES (1, 'b')"))


def test_every_table_carries_the_prefix() -> None:
    assert all(name.startswith(tables.TABLE_PREFIX) for name in TABLES)
