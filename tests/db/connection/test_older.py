"""Databases of older revisions are read: nothing in them is lost, and everything that is asked answers as it did.

`older/` has what tunebench of that revision wrote, and its own export of it: `0008` by `make tune` at 41bf2e6, `0009`
one of everything, on each kind of database.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sample_database import place_of
from sample_results import ENVIRONMENT, STUDY
from sqlalchemy import text

from tunebench.db.connection.database import Database, open_database, upgrade_database
from tunebench.db.connection.older import REVISIONS
from tunebench.db.connection.upgrade import HEAD
from tunebench.db.entries.study_log import open_study
from tunebench.db.exchange.files import export_file
from tunebench.db.exchange.formats import FORMATS, FormatName
from tunebench.db.queries.misses import misses
from tunebench.db.queries.trials import best, trials
from tunebench.db.schema import tables
from tunebench.db.upkeep.check import inspect_database
from tunebench.db.upkeep.prune import Pruning, prune
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.result import TrialStatus

OLDER = Path(__file__).parent / "older"
LATER_COLUMNS = {
    "environments": ("cudnn", "kernel_path", "device_uuid"),
    "comparisons": ("conclusive",),
}
"""Columns by table that 0001 did not have yet; they are empty in the stored database."""


def stored(name: str) -> str:
    return gzip.decompress((OLDER / name).read_bytes()).decode()


LATER_FACTS = ("counters", "energy_mj", "launches", "unasked", "work")
"""Facts of a trial that came after revision 0009; of older trials there is none."""


def entries_in(lines: str) -> list[Any]:
    """The entries, in an order of their own: where studies without trials stand has changed."""
    return sorted((json.loads(line) for line in lines.splitlines()), key=repr)


def older_file(file: Path, revision: str) -> Path:
    """A SQLite database as tunebench of that revision left it."""
    written = "0009" if revision == REVISIONS[0] else revision
    file.write_bytes(gzip.decompress((OLDER / f"{written}.db.gz").read_bytes()))
    if revision == REVISIONS[0]:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            for view in ("leaderboard", "best", "trials_flat"):
                connection.execute(f"DROP VIEW {view}")
            connection.execute("DROP TABLE tunebench_misses")
            for table, columns in LATER_COLUMNS.items():
                for column in columns:
                    connection.execute(f"ALTER TABLE tunebench_{table} DROP COLUMN {column}")
            connection.execute("UPDATE tunebench_version SET version_num = ?", (revision,))
    return file


def without_later_facts(entry: Any) -> Any:
    """An entry without the facts that nobody measured when the file was written."""
    if isinstance(entry, list):
        return [without_later_facts(one) for one in entry]
    if not isinstance(entry, dict):
        return entry
    return {name: without_later_facts(one) for name, one in entry.items() if name not in LATER_FACTS or one}


def exported(database: Database, folder: Path) -> list[Any]:
    export_file(database, folder / "again.jsonl", FORMATS[FormatName.JSON_LINES])
    return without_later_facts(entries_in((folder / "again.jsonl").read_text(encoding="utf-8")))


def requires_what_was_there(database: Database) -> None:
    """Check what a database that held one of everything before its upgrade answers now."""
    found = {
        row.kernel: (row.number, row.confirmed) for row in best(database) if row.kernel in ("wide", "apart", "sure")
    }
    # Two comparisons say nothing: one of too wide an interval, and one that told equals apart.
    assert found == {"wide": (0, False), "apart": (0, False), "sure": (1, True)}
    late = trials(database, status=TrialStatus.CORRECTNESS)
    assert sum(row.message.startswith("refused late by sanitizer") for row in late) == 1
    assert [one for one in inspect_database(database) if not one.sound] == []
    assert prune(database, Pruning(kernel="sure", winners=True), dry_run=False, backup=False).trials == 3
    log = open_study(database, STUDY, ENVIRONMENT)
    assert len(log.past()) == len(TrialStatus)


@pytest.mark.parametrize("revision", ["0008", "0009"])
def test_an_older_file_is_upgraded_and_a_copy_kept(tmp_path: Path, revision: str) -> None:
    file = older_file(tmp_path / "results.db", revision)
    with pytest.raises(DatabaseError, match=f"older revision '{revision}': run 'tunebench db upgrade' on it"):
        open_database(file, read_only=True)
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == []

    assert upgrade_database(file).after == HEAD
    with open_database(file) as database:
        assert exported(database, tmp_path) == entries_in(stored(f"{revision}.jsonl.gz"))
        assert [one for one in inspect_database(database) if not one.sound] == []
        if revision == "0009":
            assert [(row.calls, row.served) for row in misses(database, tuned=True)] == [(3, "default")]
            requires_what_was_there(database)

    copy = tmp_path / f"results.db.revision-{revision}.backup"
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute(f"SELECT version_num FROM {tables.VERSION_TABLE}").fetchall() == [(revision,)]
        assert connection.execute("SELECT count(*) FROM tunebench_verdicts").fetchone() > (0,)
    assert not list(tmp_path.glob("*.partial"))


def test_columns_that_the_first_revision_did_not_have_are_left_open(tmp_path: Path) -> None:
    with open_database(older_file(tmp_path / "results.db", REVISIONS[0])) as database:
        requires_what_was_there(database)


def test_an_older_server_is_upgraded(url: str, tmp_path: Path) -> None:
    if not url.startswith("postgresql"):
        pytest.skip("of a server")
    psycopg = pytest.importorskip("psycopg")
    with closing(psycopg.connect(url.replace("+psycopg", ""))) as connection:
        connection.execute(stored("0009.postgresql.sql.gz"))  # type: ignore[call-overload]
        connection.commit()
    assert (upgrade_database(url).before, upgrade_database(url).before) == ("0009", HEAD)
    with open_database(url) as database:
        assert exported(database, tmp_path) == entries_in(stored("0009.postgresql.jsonl.gz"))
        requires_what_was_there(database)
        assert place_of(database) == url
        with database.reading() as connection:
            left = "SELECT count(*) FROM information_schema.schemata WHERE schema_name = 'tunebench_older'"
            assert connection.scalar(text(left)) == 0


def test_numbers_that_were_used_are_not_used_again(tmp_path: Path) -> None:
    file = older_file(tmp_path / "results.db", "0009")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE sqlite_sequence SET seq = 1000 WHERE name = 'tunebench_trials'")
    with open_database(file) as database, database.writing() as connection:
        copied = "SELECT study_id, 99, 10, environment_id, recorded_at, 'compile', 'no', document FROM tunebench_trials"
        names = "study_id, number, configuration_id, environment_id, recorded_at, status, message, document"
        connection.execute(text(f"INSERT INTO tunebench_trials ({names}) {copied} WHERE study_id = 1 LIMIT 1"))
        assert connection.scalar(text("SELECT max(id) FROM tunebench_trials")) == 1001


def test_an_earlier_copy_is_not_overwritten(tmp_path: Path) -> None:
    file = older_file(tmp_path / "results.db", "0009")
    earlier = tmp_path / "results.db.revision-0009.backup"
    earlier.write_text("precious", encoding="utf-8")
    open_database(file).close()
    assert earlier.read_text(encoding="utf-8") == "precious"
    assert (tmp_path / "results.db.revision-0009.2.backup").exists()


def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path) -> None:
    file = older_file(tmp_path / "results.db", "0009")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(
            "INSERT INTO tunebench_studies SELECT 77, 77, 'x', source_digest, space_digest, problem_id, "
            "device_id, compiler, sampler, seed, begun_at, warm_starts FROM tunebench_studies LIMIT 1"
        )
    with pytest.raises(DatabaseError, match="refer to rows that are not there"):
        open_database(file)
    with pytest.raises(DatabaseError, match="older revision '0009'"):
        open_database(file, read_only=True)
