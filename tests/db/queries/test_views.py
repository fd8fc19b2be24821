"""What the views say is what the questions in Python say."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from functools import partial
from operator import itemgetter
from pathlib import Path

import pytest
from sample_results import A100, ENVIRONMENT, H200, STUDY, build, comparison, correct, failed
from sqlalchemy import text
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.data_frames import FLAT_COLUMNS, flat_values
from tunebench.db.queries.rows import TrialRow
from tunebench.db.queries.trials import best, trials
from tunebench.db.schema import tables
from tunebench.db.schema.creation import triggers
from tunebench.db.schema.views import views
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.result import CacheRegime, TrialStatus


@pytest.fixture
def filled(database: Database) -> Database:
    """Studies of two devices and two seeds, in both cache regimes, one of them with a comparison."""
    for device in (H200, A100):
        for seed in (0, 1):
            log = open_study(database, replace(STUDY, device=device, seed=seed), ENVIRONMENT)
            log.record(correct(0, 3.0 + seed))
            log.record(correct(1, 2.0 + seed))
            log.record(correct(2, 1.0, CacheRegime.WARM))
            log.record(failed(3, TrialStatus.COMPILE, "error: no"))
            if device is H200 and seed == 1:
                log.conclude(comparison(0))
    return database


def rows(database: Database, query: str) -> list[dict[str, object]]:
    with database.reading() as connection:
        return [dict(row) for row in connection.execute(text(query)).mappings()]


@pytest.mark.parametrize(("view", "asked"), [("best", best), ("trials_flat", partial(trials, limit=None))])
def test_a_view_has_what_rows_have(filled: Database, view: str, asked: Callable[[Database], list[TrialRow]]) -> None:
    expected = sorted(map(flat_values, asked(filled)), key=itemgetter("trial"))
    found = rows(filled, f"SELECT {', '.join(FLAT_COLUMNS)} FROM {view} ORDER BY trial")
    assert len(found) == (4 if view == "best" else 16)
    for row in found:
        # SQLite has moments as text.
        row |= {n: datetime.fromisoformat(v) for n, v in row.items() if n.endswith("_at") and isinstance(v, str)}
    assert found == expected


def test_trials_flat_has_more_of_a_build_and_its_environment(filled: Database) -> None:
    found = rows(filled, "SELECT * FROM trials_flat ORDER BY trial")
    figures = build(0).figures["scale"]
    assert (found[0]["registers"], found[0]["shared_bytes"]) == (figures.registers, figures.shared)
    assert (found[0]["driver"], found[0]["compiler_version"]) == (ENVIRONMENT.driver, ENVIRONMENT.compiler)
    assert found[3]["registers"] is None and found[3]["median_ms"] is None


@pytest.mark.slow
def test_the_leaderboard_has_each_configuration_once(filled: Database) -> None:
    query = "SELECT * FROM leaderboard WHERE device = 'NVIDIA H200' ORDER BY regime, place"
    found = rows(filled, query)
    assert [(row["regime"], row["place"], row["median_ms"], row["times_fastest"]) for row in found] == [
        ("cold", 1, 2.0, 1.0),
        ("cold", 2, 3.0, 1.5),
        ("warm", 1, 1.0, 1.0),
    ]


def test_the_views_work_where_the_schema_is_not_trusted(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    with open_database(file) as database:
        open_study(database, STUDY, ENVIRONMENT).record(correct(0))
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF")
        for view in ("best", "trials_flat", "leaderboard"):
            assert len(connection.execute(f"SELECT * FROM {view}").fetchall()) == 1


def test_a_view_of_one_s_own_of_that_name_stops_the_creation(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE VIEW best AS SELECT 1 AS mine")
    with pytest.raises(DatabaseError, match="best already exists"):
        open_database(file)
    with closing(sqlite3.connect(file)) as unchanged:
        assert unchanged.execute("SELECT name FROM sqlite_schema").fetchall() == [("best",)]


def test_tables_and_views_that_change_get_a_revision() -> None:
    """Databases that are there have those of their revision: only another one makes them anew."""
    dialect = sqlite.dialect()  # type: ignore[no-untyped-call]
    made = [str(CreateTable(table).compile(dialect=dialect)) for table in tables.Base.metadata.sorted_tables]
    texts = (*made, views(dialect), triggers("sqlite"))
    digest = hashlib.sha256(repr(texts).encode()).hexdigest()
    assert (tables.REVISION, digest[:12]) == ("0010", "ac7351700f4a")
