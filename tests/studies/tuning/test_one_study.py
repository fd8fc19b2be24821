"""Several `tunebench tune` processes on one study, as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_kernel import WriteKernel
from sqlalchemy import create_engine, make_url, text
from warm_process import warm_python

from tunebench.db.connection.database import open_database
from tunebench.db.queries.trials import trials

pytestmark = pytest.mark.usefixtures("short_studies")

SERVER = os.environ.get("TUNEBENCH_TEST_POSTGRES")
PROCESSES, TRIALS = 3, 24


@pytest.fixture(params=["sqlite", "postgresql"] if SERVER else ["sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place for a new database."""
    if request.param == "sqlite":
        yield str(tmp_path / "results.db")
        return
    name, engine = f"tunebench_{uuid.uuid4().hex}", create_engine(str(SERVER), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield make_url(str(SERVER)).set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


@pytest.mark.slow
def test_processes_share_a_study(write_kernel: WriteKernel, url: str, warm: Path) -> None:
    open_database(url).close()
    command = [*warm_python(warm), "-m", "tunebench", "tune", str(write_kernel().kernel.folder), "--device", "cpu"]
    command += ["--trials", str(TRIALS), "--db", url, "--json"]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
        for _ in range(PROCESSES)
    ]
    ends = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES, [errors for _, errors in ends]
    reports = [json.loads(output)[0] for output, _ in ends]
    assert len({report["study"] for report in reports}) == 1
    assert all(report["ending"] == "budget" and report["best"] for report in reports)
    with open_database(url, read_only=True) as database:
        rows = trials(database, limit=None)
    assert {row.number for row in rows} == set(range(len(rows)))
    assert len({row.configuration for row in rows}) == len(rows)
    # Each process may have been evaluating one more when another one recorded the last.
    assert TRIALS <= len(rows) < TRIALS + PROCESSES
