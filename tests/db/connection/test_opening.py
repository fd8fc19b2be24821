"""Opening a database, and every file and URL that is not one."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sample_results import ENVIRONMENT, STUDY, correct
from sqlalchemy import text

from tunebench.db.connection.database import open_database
from tunebench.db.connection.engine import locate, name_of
from tunebench.db.connection.files import back_up
from tunebench.db.connection.location import without_secrets
from tunebench.db.connection.upgrade import HEAD
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.look_up import known_best
from tunebench.db.queries.sql import ask
from tunebench.db.queries.trials import trials
from tunebench.tuner.errors import DatabaseError, DatabaseMissingError


def refused(url: str | Path, *, read_only: bool = False) -> str:
    """The message of the one-line error that opening raises."""
    with pytest.raises(DatabaseError) as caught:
        open_database(url, read_only=read_only)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with one trial."""
    file = tmp_path / "results.db"
    with open_database(file) as database:
        open_study(database, STUDY, ENVIRONMENT).record(correct(0))
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder."""
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def test_a_new_file_is_safe_for_several_processes(tmp_path: Path) -> None:
    with open_database(tmp_path / "results.db") as database, database.reading() as connection:
        pragmas = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "foreign_keys")
        }
        assert pragmas == {"journal_mode": "wal", "foreign_keys": 1}


@pytest.mark.parametrize("name", ["results.db", "a b?c#d%20{e}.db", "é漢字.db"])
def test_a_path_a_url_and_a_path_object_mean_the_same_file(tmp_path: Path, name: str) -> None:
    with open_database(tmp_path / name) as database:
        open_study(database, STUDY, ENVIRONMENT).record(correct(0))
    assert (tmp_path / name).exists()
    with open_database(str(tmp_path / name)) as database:
        assert len(trials(database)) == 1
    if name == "results.db":
        with open_database(f"sqlite:///{tmp_path / name}") as database:
            assert len(trials(database)) == 1


def test_without_a_name_the_environment_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEBENCH_DB", str(tmp_path / "there.db"))
    assert name_of(locate(None)) == str(tmp_path / "there.db")
    open_database().close()
    assert (tmp_path / "there.db").exists()


def test_without_a_name_anywhere_it_is_in_the_users_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TUNEBENCH_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DatabaseMissingError):
        open_database(read_only=True)
    assert not (tmp_path / "data").exists()
    open_database().close()
    default = Path(name_of(locate(None)))
    assert default.name == "tunebench.db"
    assert default.is_relative_to(tmp_path)
    assert default.exists()


def test_reading_needs_a_database_that_is_there(folder: Path) -> None:
    assert "there is no results database" in refused(folder / "none.db", read_only=True)
    assert "there is no results database" in refused(folder / "no" / "folder.db", read_only=True)
    assert list(folder.iterdir()) == []


def test_what_is_opened_for_reading_is_not_written(file: Path) -> None:
    with open_database(file, read_only=True) as database:
        assert len(trials(database)) == 1
        with pytest.raises(DatabaseError, match="opened for reading only"):
            open_study(database, STUDY, ENVIRONMENT)
        with pytest.raises(DatabaseError), database.reading() as connection:
            connection.execute(text("INSERT INTO tunebench_configurations (key) VALUES ('{}')"))


def test_readers_leave_nothing_beside_the_file_of_a_killed_writer_either(file: Path) -> None:
    with open_database(file, read_only=True) as database:
        assert len(trials(database)) == 1
        ask(database, "SELECT 1")
    known_best(STUDY.kernel, STUDY.source_digest, "float32", "sm_90", file)
    assert {path.name for path in file.parent.iterdir()} == {file.name, "own"}
    killed = f"import os, sqlite3; c = sqlite3.connect({str(file)!r}); c.execute('CREATE TABLE t(x)'); os._exit(9)"
    subprocess.run([sys.executable, "-c", killed], check=False)
    assert len(list(file.parent.iterdir())) == 4
    with open_database(file, read_only=True) as database:
        assert len(trials(database)) == 1
    assert {path.name for path in file.parent.iterdir()} == {file.name, "own"}


@pytest.mark.parametrize("read_only", [True, False])
def test_a_newer_revision_is_refused_and_left_untouched(file: Path, read_only: bool) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE tunebench_version SET version_num = '9999'")
    before = digest(file)
    message = refused(file, read_only=read_only)
    assert "'9999'" in message
    assert HEAD in message
    assert "upgrade tunebench" in message
    assert digest(file) == before


@pytest.mark.parametrize("rows", [[], ["0001", "0002"]])
def test_a_version_table_that_makes_no_sense_is_refused(file: Path, rows: list[str]) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DELETE FROM tunebench_version")
        connection.executemany("INSERT INTO tunebench_version VALUES (?)", [(row,) for row in rows])
    assert f"holds {len(rows)} revisions" in refused(file)


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_someone_elses_database_is_refused_and_left_untouched(tmp_path: Path, journal: str, read_only: bool) -> None:
    file = tmp_path / "photos.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute("CREATE TABLE studies (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO studies VALUES (1)")
    before = digest(file)
    assert "a database of something else" in refused(file, read_only=read_only)
    assert digest(file) == before


@pytest.mark.parametrize("content", [b"# notes\n" * 100, b"x", b"SQLite format 3\0", b"\0" * 4096])
def test_a_file_that_is_no_database_is_refused_and_left_untouched(folder: Path, content: bytes) -> None:
    file = folder / "notes.txt"
    file.write_bytes(content)
    assert "not a database" in refused(file)
    assert file.read_bytes() == content
    assert list(folder.iterdir()) == [file]


def test_a_damaged_database_is_refused(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[100:] = b"\xff" * (len(content) - 100)
    file.write_bytes(bytes(content))
    assert "damaged" in refused(file)
    assert file.read_bytes() == bytes(content)


def test_a_database_damaged_where_it_is_not_seen_at_first_is_refused_when_it_is(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    content = bytearray(file.read_bytes())
    page = int.from_bytes(content[16:18], "big")
    content[20 * page :] = b"\xff" * (len(content) - 20 * page)
    file.write_bytes(bytes(content))
    with pytest.raises(DatabaseError) as caught, open_database(file, read_only=True) as database:
        trials(database)
    assert "\n" not in str(caught.value)


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    file.touch()
    with open_database(file) as database:
        open_study(database, STUDY, ENVIRONMENT).record(correct(0))


def test_a_folder_that_is_not_there_is_not_made(folder: Path) -> None:
    assert "does not exist" in refused(folder / "nowhere" / "results.db")
    assert list(folder.iterdir()) == []


def test_a_folder_or_a_file_in_a_file_is_no_database(tmp_path: Path) -> None:
    assert "cannot read" in refused(tmp_path)
    (tmp_path / "file").touch()
    assert "cannot" in refused(tmp_path / "file" / "results.db")


def test_a_folder_that_cannot_be_written_is_refused() -> None:
    assert "cannot" in refused("/proc/results.db")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mysql://host/name", "'mysql' is not supported: use a sqlite or postgresql"),
        ("oracle+nothing://host", "not supported"),
        ("postgresql+nothing://host/name", "'postgresql+nothing' is not known"),
        ("postgresql+psycopg2cffi://host/name", "'postgresql+psycopg2cffi'"),
        ("://", "cannot be read"),
        ("sqlite://", "not the URL of a file"),
        ("sqlite:///:memory:", "not the URL of a file"),
        ("sqlite:///results.db?mode=ro", "not the URL of a file"),
        (":memory:", "not the path of a file: give a path"),
        ("file:results.db", "not the path of a file: give a path"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused(url: str, expected: str) -> None:
    assert expected in refused(url)


def test_a_server_that_does_not_answer_is_refused_without_showing_the_password() -> None:
    pytest.importorskip("psycopg", reason="needs the PostgreSQL driver")
    message = refused("postgresql+psycopg://user:secret@127.0.0.1:1/name")
    assert "secret" not in message
    assert "127.0.0.1" in message


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (
            "asyncpg",
            "'postgresql+asyncpg' is asynchronous, which tunebench is not: use postgresql+psycopg",
        ),
        ("pg8000", "'postgresql+pg8000' needs the Python package 'pg8000': pip install pg8000"),
    ],
)
def test_a_driver_that_does_not_serve_is_named(driver: str, expected: str) -> None:
    assert expected in refused(f"postgresql+{driver}://host/name")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://tb:s3cret@host/x", "postgresql://tb:***@host/x"),
        ("postgresql+psycopg://tb@host/x?password=s3cret", "postgresql+psycopg://tb@host/x?password=***"),
        (
            "postgresql://host/x?sslpassword=s3cret&sslmode=require",
            "postgresql://host/x?sslmode=require&sslpassword=***",
        ),
        ("postgresql://tb:s3cret@host/x?PassWord=s3%26cret", "postgresql://tb:***@host/x?PassWord=***"),
        ("postgresql://host/x?p%61ssword=s3cret&oauth_client_secret=s3cret", "oauth_client_secret=***&password=***"),
        (
            "postgresql://host/x?passfile=/home/tb/.pgpass&sslkey=tb.key",
            "?passfile=%2Fhome%2Ftb%2F.pgpass&sslkey=tb.key",
        ),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    name = name_of(locate(url))
    assert shown in name and "s3" not in name
    assert "s3" not in without_secrets(f"what is {url}, and")


@pytest.mark.parametrize("path", ["~nosuchuser/x.db", "circle.db", "sqlite:///~nosuchuser/x.db"])
def test_a_path_that_means_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("circle.db").symlink_to("circle.db")
    assert "is not the path of a file" in refused(path)


def counted(file: Path) -> int:
    """The trials that a process sees which may write what its user may, even where that is root."""
    prefix = ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override") if os.geteuid() == 0 else ()
    script = "import sys; from tunebench.db.connection.database import open_database as o; "
    script += "from tunebench.db.queries.sql import ask; from tunebench.db.queries.trials import count_rows\n"
    script += "with o(sys.argv[1], read_only=True) as d: print(count_rows(d)[1], "
    script += "ask(d, 'SELECT count(*) FROM tunebench_trials').rows[0][0])"
    ran = subprocess.run([*prefix, sys.executable, "-c", script, file], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    seen = set(ran.stdout.split())
    assert len(seen) == 1
    return int(seen.pop())


@pytest.mark.slow
def test_a_link_in_a_folder_that_cannot_be_written_shows_what_was_just_recorded(file: Path, folder: Path) -> None:
    link = folder / "link.db"
    link.symlink_to(file)
    folder.chmod(0o555)
    with open_database(file) as database:
        log = open_study(database, STUDY, ENVIRONMENT)
        for number in range(1, 5):
            log.record(correct(number))
        assert counted(link) == counted(file) == 5
    assert open_database(link).name == str(file)


@pytest.mark.slow
def test_a_link_to_a_folder_that_cannot_be_written_can_be_read(file: Path, folder: Path) -> None:
    target = file.rename(folder / "results.db")
    file.symlink_to(target)
    folder.chmod(0o555)
    assert counted(file) == counted(target) == 1


def test_a_new_database_is_its_users_alone_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with open_database(tmp_path / "a.db") as database:
            with database.reading() as connection:
                connection.execute(text("SELECT count(*) FROM sqlite_master"))
            modes = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.glob("a.db*")}
        back_up(tmp_path / "a.db", "test")
        assert oct((tmp_path / "a.db.test.backup").stat().st_mode & 0o777) == "0o600"
    finally:
        os.umask(before)
    assert modes == {"a.db": "0o600", "a.db-wal": "0o600", "a.db-shm": "0o600"}
    (tmp_path / "a.db").chmod(0o644)
    open_database(tmp_path / "a.db").close()
    assert oct((tmp_path / "a.db").stat().st_mode & 0o777) == "0o644"


def test_what_a_killed_process_left_of_a_copy_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    open_database(file).close()
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = tmp_path / f"a.db.revision-1.backup.{ended.pid}.partial"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    back_up(file, "test")
    assert not left.exists()
