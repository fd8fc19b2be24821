"""Databases for tests: a SQLite file, and PostgreSQL where TUNEBENCH_TEST_POSTGRES is the URL of a server for tests."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from tunebench.db.store import Database, open_database

SERVER = os.environ.get("TUNEBENCH_TEST_POSTGRES")


@pytest.fixture(params=["sqlite", "postgresql"] if SERVER else ["sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place for a new database, of each kind that there is."""
    if request.param == "sqlite":
        yield str(tmp_path / "results.db")
        return
    assert SERVER is not None
    server = create_engine(SERVER, isolation_level="AUTOCOMMIT")
    name = f"tunebench_test_{uuid.uuid4().hex}"
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield make_url(SERVER).set(database=name).render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """An empty database."""
    with open_database(url) as database:
        yield database
