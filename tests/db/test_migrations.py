"""The migrations make the tables that the models say, from every earlier revision, with what is in them."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sample_results import ENVIRONMENT, STUDY, correct
from sqlalchemy import create_engine, inspect

from tunebench.db.engine import for_writing, locate, make_engine
from tunebench.db.models import TABLE_PREFIX, VERSION_TABLE, Base
from tunebench.db.rows import environment_row, study_row, trial_row
from tunebench.db.store import Database, open_database
from tunebench.db.upgrade import HEAD, MIGRATIONS, REVISIONS, migrate
from tunebench.tuner.errors import DatabaseError


def test_the_revisions_known_are_those_of_the_folder() -> None:
    folder = ScriptDirectory(str(MIGRATIONS))
    assert tuple(script.revision for script in reversed(list(folder.walk_revisions()))) == REVISIONS
    assert folder.get_current_head() == HEAD


def test_migrations_and_models_agree(database: Database) -> None:
    with database.engine.connect() as connection:
        options = {
            "include_name": lambda name, kind, _: kind != "table" or (name or "").startswith(TABLE_PREFIX),
            "version_table": VERSION_TABLE,
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []


def test_migrations_and_models_agree_in_what_alembic_does_not_compare(tmp_path: Path) -> None:
    """Check constraints, partial indexes, strictness."""
    with open_database(tmp_path / "migrated.db"):
        pass
    created = create_engine(f"sqlite:///{tmp_path / 'created.db'}")
    Base.metadata.create_all(created)
    created.dispose()

    def definitions(name: str) -> dict[str, object]:
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            query = "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'index') AND sql IS NOT NULL"
            rows = connection.execute(query).fetchall()
        # A later ALTER TABLE puts a column or constraint elsewhere; the order in which they stand means nothing.
        return {name: sorted(re.split(r",\s+|\n", sql)) for name, sql in rows if name != VERSION_TABLE}

    assert definitions("migrated.db") == definitions("created.db")


def database_of_revision(file: Path, revision: str) -> None:
    """Create a database as an earlier tunebench left it, with a trial in it."""
    engine = make_engine(locate(file))
    with for_writing(engine).begin() as connection:
        migrate(connection, revision)
        study_id = study_row(connection, STUDY)
        trial_row(connection, study_id, environment_row(connection, ENVIRONMENT), 0, correct(0))
    engine.dispose()


@pytest.mark.parametrize("revision", REVISIONS[:-1])
def test_an_older_database_is_upgraded_and_a_copy_kept(tmp_path: Path, revision: str) -> None:
    file = tmp_path / "results.db"
    database_of_revision(file, revision)
    with pytest.raises(DatabaseError, match=f"older revision '{revision}'"):
        open_database(file, read_only=True)
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == []

    with open_database(file) as database:
        assert [trial.configuration for trial in database.study(STUDY, ENVIRONMENT).past()] == [
            correct(0).configuration
        ]
        assert inspect(database.engine).has_table(VERSION_TABLE)
    with open_database(file, read_only=True):
        pass

    copy = tmp_path / f"results.db.revision-{revision}.backup"
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() == [(revision,)]
        assert connection.execute("SELECT count(*) FROM tunebench_trials").fetchone() == (1,)
    assert not list(tmp_path.glob("*.partial"))


def test_an_earlier_copy_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    database_of_revision(file, REVISIONS[0])
    earlier = tmp_path / f"results.db.revision-{REVISIONS[0]}.backup"
    earlier.write_text("precious")
    open_database(file).close()
    assert earlier.read_text() == "precious"
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
