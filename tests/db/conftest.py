"""Databases for tests: a SQLite file, and PostgreSQL where TUNEBENCH_TEST_POSTGRES is the URL of a server for tests."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from tunebench.db.connection.database import Database, open_database

SERVER = os.environ.get("TUNEBENCH_TEST_POSTGRES")

OF_FILES = ("test_hostile.py", "test_kernel_tuner.py", "test_t4.py")
"""Tests of what other tuners' files say, and of files that are wrong, which is found before any database is asked."""


@pytest.fixture(scope="session")
def server() -> Iterator[Engine]:
    """The PostgreSQL server for tests."""
    assert SERVER is not None
    engine = create_engine(SERVER, isolation_level="AUTOCOMMIT")
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty SQLite database, to be copied: making the tables takes longer than most tests."""
    path = tmp_path_factory.mktemp("empty") / "results.db"
    open_database(path).close()
    return path


@pytest.fixture(scope="session")
def empty_template(server: Engine) -> Iterator[str]:
    """The name of an empty PostgreSQL database, for the same purpose."""
    with _new_database(server) as (name, url):
        open_database(url).close()
        yield name


@pytest.fixture(params=["sqlite", "postgresql"] if SERVER else ["sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place for a new database, of each kind that there is; tests that ask for `database` find an empty one there."""
    if request.param != "sqlite" and request.path.name in OF_FILES:
        pytest.skip("is about files")
    ready = "database" in request.fixturenames
    if request.param == "sqlite":
        if ready:
            shutil.copy(request.getfixturevalue("empty_file"), tmp_path / "results.db")
        yield str(tmp_path / "results.db")
        return
    template = request.getfixturevalue("empty_template") if ready else None
    with _new_database(request.getfixturevalue("server"), template) as (_, url):
        yield url


@contextmanager
def _new_database(server: Engine, template: str | None = None) -> Iterator[tuple[str, str]]:
    """The name and the URL of a new database, which is gone afterwards."""
    name = f"tunebench_test_{uuid.uuid4().hex}"
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else "")))
    yield name, make_url(str(SERVER)).set(database=name).render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """An empty database."""
    with open_database(url) as database:
        yield database
