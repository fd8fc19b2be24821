"""What a database has acknowledged is there, whatever processes open, close, read, write and die in which order."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from database_process import DatabaseProcess
from hostile_count import tried

from tunebench.db.connection.database import open_database
from tunebench.db.exchange.files import import_file
from tunebench.db.exchange.formats import format_named
from tunebench.db.queries.trials import count_rows
from tunebench.tuner.errors import DatabaseError


def content(file: Path) -> tuple[int, str]:
    """How many trials a process sees that has only now opened the file, and what SQLite says of its pages."""
    reader = DatabaseProcess(file)
    reader.open(0, read_only=True)
    seen = reader.count(0)
    reader.end()
    with closing(sqlite3.connect(file)) as connection:
        (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
    return seen, str(verdict)


def test_a_second_connection_that_closes_does_not_take_the_locks_of_the_first(tmp_path: Path) -> None:
    """POSIX drops every lock that a process holds on a file when it closes any descriptor of it.

    Without them the next process to close takes itself for the last one, and deletes the log that others still write.
    """
    file = tmp_path / "results.db"
    first = DatabaseProcess(file)
    first.open(0)
    first.record(0, range(5))
    first.open(1, read_only=True)
    first.close(1)
    second = DatabaseProcess(file)
    second.open(0)
    second.record(0, range(5, 25))
    second.end()
    first.record(0, range(25, 30))
    third = DatabaseProcess(file)
    third.open(0)
    third.record(0, range(30, 50))
    third.end()
    first.end()
    assert content(file) == (50, "ok")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_every_interleaving_of_processes_connections_and_kills_keeps_what_was_acknowledged(
    tmp_path: Path, seed: int
) -> None:
    chance, file = random.Random(seed), tmp_path / "results.db"
    open_database(file).close()
    processes: list[tuple[DatabaseProcess, dict[int, bool]]] = []
    recorded = names = 0
    for _ in range(60):
        if len(processes) < 3 and (not processes or chance.random() < 0.15):
            processes.append((DatabaseProcess(file), {}))
        process, opened = chance.choice(processes)
        step = chance.random()
        writing = [name for name, read_only in opened.items() if not read_only]
        if step < 0.3 or not opened:
            names += 1
            read_only = chance.random() < 0.5
            process.open(names, read_only=read_only)
            opened[names] = read_only
        elif step < 0.55 and writing:
            count = chance.randint(1, 6)
            process.record(chance.choice(writing), range(recorded, recorded + count))
            recorded += count
        elif step < 0.7:
            assert process.count(chance.choice(list(opened))) == recorded
        elif step < 0.88:
            name = chance.choice(list(opened))
            process.close(name)
            del opened[name]
        elif step < 0.94:
            process.kill()
            processes.remove((process, opened))
            tried["kills of a process with an open database"] += 1
        else:
            process.end()
            processes.remove((process, opened))
    for process, _ in processes:
        process.end()
    tried["interleavings of processes on one database"] += 1
    assert content(file) == (recorded, "ok")


def test_a_database_that_is_open_is_never_read_by_hand(tmp_path: Path) -> None:
    """An import or a replay of the very file, under its own name or another one."""
    file, other_name = tmp_path / "results.db", tmp_path / "results.json"
    other = DatabaseProcess(file)
    with open_database(file) as database:
        other.open(0)
        other.record(0, range(5))
        other_name.symlink_to(file)
        assert count_rows(database)[1] == 5
        for name in (file, other_name):
            with pytest.raises(DatabaseError, match="a database that is open"):
                import_file(database, name, format_named("jsonl"))
        other.record(0, range(5, 10))
        other.end()
        again = DatabaseProcess(file)
        again.open(0)
        again.record(0, range(10, 20))
        again.end()
        assert count_rows(database)[1] == 20
    assert content(file) == (20, "ok")
