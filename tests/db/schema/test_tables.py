"""The database itself refuses rows that break an invariant, and to change or remove any; asked in raw SQL."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from sample_results import ENVIRONMENT, STUDY, comparison, correct, failed
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import open_study
from tunebench.db.schema import tables
from tunebench.tuner.result import Stage, TrialStatus

TABLES = sorted(tables.Base.metadata.tables)


@pytest.fixture
def filled(database: Database) -> Database:
    """Trial 1 is correct and confirmed, trial 2 was refused and trial 3 late; a measurement and verdict are free."""
    log = open_study(database, STUDY, ENVIRONMENT)
    log.record(correct(0))
    log.record(failed(1, TrialStatus.CORRECTNESS))
    log.record(correct(2))
    log.refuse(2, Stage("sanitizer", False, 2.5, "memcheck: Invalid read"))
    log.conclude(comparison(0))
    with database.writing() as connection:
        for statement in (
            "INSERT INTO tunebench_measurements (id, median_ms, low_ms, high_ms, regime, clock, sample_count, "
            "samples_ms) VALUES (90, 2.0, 1.0, 3.0, 'cold', 'clock', 2, '[1.5, 2.5]')",
            "INSERT INTO tunebench_verdicts (id, passed, reason, tolerance) VALUES (90, true, '', 1e-4)",
            "INSERT INTO tunebench_verdicts (id, passed, reason, tolerance) VALUES (91, false, 'wrong', 1e-4)",
            "INSERT INTO tunebench_configurations (id, key) VALUES (90, '{}')",
        ):
            connection.execute(text(statement))
    return database


TRIAL: dict[str, object] = {
    "study_id": 1,
    "number": 9,
    "configuration_id": 90,
    "environment_id": 1,
    "status": "correct",
    "build_id": 1,
    "build_cached": True,
    "verdict_id": 90,
    "verdict_passed": True,
    "measurement_id": 90,
    "median_ms": 2.0,
    "regime": "cold",
    "recorded_at": "2026-01-01 00:00:00+00:00",
    "seconds": "{}",
    "message": "",
}
UNTIMED = {"measurement_id": None, "median_ms": None, "regime": None}
UNCHECKED = {"verdict_id": None, "verdict_passed": None}
MEASUREMENT: dict[str, object] = {
    "median_ms": 2.0,
    "low_ms": 1.0,
    "high_ms": 3.0,
    "regime": "cold",
    "clock": "clock",
    "sample_count": 2,
    "samples_ms": "[1.5, 2.5]",
}
VERDICT: dict[str, object] = {"passed": True, "reason": "", "tolerance": 1e-4}
SPEED_UP: dict[str, object] = {
    "comparison_id": 1,
    "baseline": "torch.compile",
    "ratio": 2.0,
    "low": 1.9,
    "high": 2.1,
    "rounds": 40,
    "confidence": 0.95,
}


LATE_REFUSAL: dict[str, object] = {
    "trial_id": 1,
    "stage": "sanitizer",
    "seconds": 2.5,
    "detail": "memcheck: Invalid read",
    "recorded_at": "2026-01-01 00:00:00+00:00",
}


def add(database: Database, table: str, values: Mapping[str, object]) -> None:
    """Insert a row by raw SQL."""
    columns = ", ".join(values)
    parameters = ", ".join(f":{name}" for name in values)
    with database.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            # Raw SQL has no types; the driver's are too narrow for time and JSON.
            kinds = {"recorded_at": "timestamptz", "samples_ms": "json"}
            kinds |= {"seconds": "json"} if table == "trials" else {}
            parameters = ", ".join(f"CAST(:{n} AS {kinds[n]})" if n in kinds else f":{n}" for n in values)
        connection.execute(text(f"INSERT INTO tunebench_{table} ({columns}) VALUES ({parameters})"), dict(values))


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("trials", TRIAL),
        ("trials", TRIAL | {"status": "pruned"}),
        ("trials", TRIAL | {"status": "compile", "message": "log"} | UNTIMED | UNCHECKED),
        ("trials", TRIAL | {"status": "runtime", "message": "lost"} | UNTIMED),
        ("measurements", MEASUREMENT),
        ("verdicts", VERDICT),
        ("speed_ups", SPEED_UP),
        ("late_refusals", LATE_REFUSAL),
    ],
)
def test_a_sound_row_is_taken(filled: Database, table: str, row: dict[str, object]) -> None:
    add(filled, table, row)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"status": "fine"}, id="unknown status"),
        pytest.param(UNTIMED, id="correct without measurement"),
        pytest.param({"status": "compile", "message": "log"} | UNCHECKED, id="measurement of a failure"),
        pytest.param({"measurement_id": None}, id="a median from nowhere"),
        pytest.param({"median_ms": 1.0}, id="a median other than the measurement's"),
        pytest.param({"regime": "warm"}, id="a regime other than the measurement's"),
        pytest.param({"measurement_id": 1, "median_ms": 1.0}, id="another trial's measurement"),
        pytest.param({"measurement_id": 77}, id="no such measurement"),
        pytest.param(UNCHECKED, id="correct without verdict"),
        pytest.param({"verdict_id": 91, "verdict_passed": False}, id="correct though refused"),
        pytest.param({"verdict_id": 91}, id="passed other than the verdict"),
        pytest.param({"status": "correctness", "message": "wrong"} | UNTIMED, id="refused though passed"),
        pytest.param({"status": "correctness", "message": "wrong"} | UNTIMED | UNCHECKED, id="refused by nothing"),
        pytest.param(
            {"status": "runtime", "message": "lost", "verdict_id": 91, "verdict_passed": False} | UNTIMED,
            id="refused under another name",
        ),
        pytest.param({"status": "compile", "message": ""} | UNTIMED | UNCHECKED, id="a failure that does not say why"),
        pytest.param({"number": 0}, id="a number twice"),
        pytest.param({"number": -1}, id="a negative number"),
        pytest.param({"configuration_id": 1}, id="a configuration twice"),
        pytest.param({"configuration_id": 77}, id="no such configuration"),
        pytest.param({"study_id": 77}, id="no such study"),
        pytest.param({"environment_id": None}, id="no environment"),
        pytest.param({"build_id": 77}, id="no such build"),
        pytest.param({"build_cached": None}, id="a build of unknown origin"),
    ],
)
def test_a_trial_that_contradicts_itself_is_refused(filled: Database, change: dict[str, object]) -> None:
    with pytest.raises(DBAPIError):
        add(filled, "trials", TRIAL | change)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "row"),
    [
        pytest.param("measurements", MEASUREMENT | {"low_ms": 2.5}, id="median below its interval"),
        pytest.param("measurements", MEASUREMENT | {"high_ms": 1.5}, id="median above its interval"),
        pytest.param("measurements", MEASUREMENT | {"low_ms": 0.0}, id="time zero"),
        pytest.param("measurements", MEASUREMENT | {"sample_count": 0, "samples_ms": "[]"}, id="no samples"),
        pytest.param("measurements", MEASUREMENT | {"sample_count": 3}, id="samples miscounted"),
        pytest.param("measurements", MEASUREMENT | {"samples_ms": "[1.5, 2.5"}, id="samples that are no JSON"),
        pytest.param("measurements", MEASUREMENT | {"regime": "tepid"}, id="unknown regime"),
        pytest.param("measurements", MEASUREMENT | {"median_ms": "fast"}, id="a median that is text"),
        pytest.param("verdicts", VERDICT | {"reason": "wrong"}, id="a pass with a reason"),
        pytest.param("verdicts", VERDICT | {"passed": False}, id="a refusal without one"),
        pytest.param("verdicts", VERDICT | {"max_absolute": 1.0}, id="half of the figures"),
        pytest.param("speed_ups", SPEED_UP | {"low": 2.05}, id="a ratio outside its interval"),
        pytest.param("speed_ups", SPEED_UP | {"confidence": 1.5}, id="too sure"),
        pytest.param("speed_ups", SPEED_UP | {"comparison_id": 77}, id="no such comparison"),
        pytest.param("late_refusals", LATE_REFUSAL | {"trial_id": 77}, id="a refusal of no trial"),
        pytest.param("late_refusals", LATE_REFUSAL | {"trial_id": 3}, id="a second refusal of a trial"),
        pytest.param("late_refusals", LATE_REFUSAL | {"detail": ""}, id="a refusal that does not say why"),
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


def test_rows_are_not_replaced(tmp_path: object) -> None:
    """SQLite's own way around triggers on DELETE."""
    with open_database(f"{tmp_path}/results.db") as database:
        with database.writing() as connection:
            connection.execute(text("INSERT INTO tunebench_configurations (id, key) VALUES (1, 'a')"))
        with pytest.raises(DBAPIError, match="only ever added"), database.engine.begin() as connection:
            connection.execute(text("INSERT OR REPLACE INTO tunebench_configurations (id, key) VALUES (1, 'b')"))


def test_every_table_carries_the_prefix() -> None:
    assert all(name.startswith(tables.TABLE_PREFIX) for name in TABLES)
