"""The migrations make the tables that the models say, from every earlier revision, with what is in them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sample_database import fill
from sample_results import ENVIRONMENT, STUDY, comparison, correct, inconclusive, told_apart
from sqlalchemy import create_engine

from tunebench.db.connection.database import Database, open_database
from tunebench.db.connection.engine import for_writing, locate, make_engine
from tunebench.db.connection.upgrade import HEAD, MIGRATIONS, REVISIONS, migrate
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.one_trial import trial_details
from tunebench.db.queries.trials import best, trials
from tunebench.db.schema import tables
from tunebench.db.upkeep.check import inspect_database
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.result import TrialStatus


def test_the_revisions_known_are_those_of_the_folder() -> None:
    folder = ScriptDirectory(str(MIGRATIONS))
    assert tuple(script.revision for script in reversed(list(folder.walk_revisions()))) == REVISIONS
    assert folder.get_current_head() == HEAD


def test_migrations_and_models_agree(database: Database) -> None:
    with database.engine.connect() as connection:
        options = {
            "include_name": lambda name, kind, _: kind != "table" or (name or "").startswith(tables.TABLE_PREFIX),
            "version_table": tables.VERSION_TABLE,
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, tables.Base.metadata) == []


def test_migrations_and_models_agree_in_what_alembic_does_not_compare(tmp_path: Path) -> None:
    """Check constraints, partial indexes, strictness."""
    with open_database(tmp_path / "migrated.db"):
        pass
    created = create_engine(f"sqlite:///{tmp_path / 'created.db'}")
    tables.Base.metadata.create_all(created)
    created.dispose()

    def definitions(name: str) -> dict[str, object]:
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            query = "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'index') AND sql IS NOT NULL"
            rows = connection.execute(query).fetchall()
        # A later ALTER TABLE puts a column or constraint elsewhere; the order in which they stand means nothing.
        return {name: sorted(re.split(r",\s+|\n", sql)) for name, sql in rows if name != tables.VERSION_TABLE}

    assert definitions("migrated.db") == definitions("created.db")


def database_of_revision(file: Path, revision: str, add: Callable[[Database], None] = lambda _: None) -> None:
    """Create a database as an earlier tunebench left it: one of everything, in the columns that there were."""
    newest = file.with_name("newest.db")
    with open_database(newest) as database:
        fill(database, other_environment=ENVIRONMENT, refused=False)
        add(database)
    engine = make_engine(locate(file))
    with for_writing(engine).begin() as connection:
        migrate(connection, revision)
    engine.dispose()
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("ATTACH ? AS newest", (str(newest),))
        for table in set(tables.Base.metadata.tables) - {tables.Origin.__tablename__}:
            names = ", ".join(name for _, name, *_ in connection.execute(f"PRAGMA main.table_info({table})"))
            if not names:
                continue  # a table that there was not yet
            connection.execute(f"INSERT INTO main.{table} ({names}) SELECT {names} FROM newest.{table}")


@pytest.mark.parametrize("revision", REVISIONS[:-1])
def test_an_older_database_is_upgraded_and_a_copy_kept(tmp_path: Path, revision: str) -> None:
    file = tmp_path / "results.db"
    database_of_revision(file, revision)
    with pytest.raises(DatabaseError, match=f"older revision '{revision}': run 'tunebench db upgrade' on it"):
        open_database(file, read_only=True)
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == []

    with open_database(file) as database, open_database(tmp_path / "newest.db", read_only=True) as newest:
        assert trials(database, limit=None) == trials(newest, limit=None)
        assert best(database) == best(newest)
        assert [trial_details(database, number).environment for number in (1, 8)] == [
            ENVIRONMENT,
            trial_details(newest, 8).environment,
        ]
        assert len(open_study(database, STUDY, ENVIRONMENT).past()) == len(TrialStatus)
    with open_database(file, read_only=True) as database:
        assert [one for one in inspect_database(database) if not one.sound] == []

    copy = tmp_path / f"results.db.revision-{revision}.backup"
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute(f"SELECT version_num FROM {tables.VERSION_TABLE}").fetchall() == [(revision,)]
        assert connection.execute("SELECT count(*) FROM tunebench_trials").fetchone() == (10,)
    assert not list(tmp_path.glob("*.partial"))


def test_comparisons_that_said_nothing_are_not_conclusive_after_an_upgrade(tmp_path: Path) -> None:
    """They were taken for ties, so that what led them was served."""

    def add(database: Database) -> None:
        for kernel, won in (("wide", inconclusive(1)), ("apart", told_apart(1)), ("sure", comparison(1))):
            log = open_study(database, replace(STUDY, kernel=kernel), ENVIRONMENT)
            for number in range(3):
                log.record(correct(number, 1.0 + number))
            log.conclude(won)

    file = tmp_path / "results.db"
    database_of_revision(file, "0008", add)
    with open_database(file) as database, open_database(tmp_path / "newest.db", read_only=True) as newest:
        assert trials(database, limit=None) == trials(newest, limit=None)
        found = {kernel: best(database, kernel=kernel)[0] for kernel in ("wide", "apart", "sure")}
        assert {kernel: (row.number, row.confirmed) for kernel, row in found.items()} == {
            "wide": (0, False),
            "apart": (0, False),
            "sure": (1, True),
        }
    with closing(sqlite3.connect(file)) as connection, pytest.raises(sqlite3.IntegrityError, match="only ever added"):
        connection.execute("UPDATE tunebench_comparisons SET conclusive = 1")


def test_an_earlier_copy_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    database_of_revision(file, REVISIONS[0])
    earlier = tmp_path / f"results.db.revision-{REVISIONS[0]}.backup"
    earlier.write_text("precious", encoding="utf-8")
    open_database(file).close()
    assert earlier.read_text(encoding="utf-8") == "precious"
    assert (tmp_path / f"results.db.revision-{REVISIONS[0]}.2.backup").exists()


def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    database_of_revision(file, REVISIONS[0])
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("INSERT INTO tunebench_build_figures (build_id, entry_point) VALUES (77, 'none')")
    with pytest.raises(DatabaseError, match="refer to rows that are not there"):
        open_database(file)
    with pytest.raises(DatabaseError, match=f"older revision '{REVISIONS[0]}'"):
        open_database(file, read_only=True)
