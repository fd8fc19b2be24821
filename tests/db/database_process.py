"""A process that opens, reads, writes and closes a database as it is told, and may be killed at any moment."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from sample_results import ENVIRONMENT, STUDY, configuration, correct

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import StudyLog, open_study
from tunebench.db.queries.trials import count_rows
from tunebench.tuner.fork_server import context, start_forkserver


class DatabaseProcess:
    """A process that has one database open any number of times, each under a number that the caller gives it."""

    def __init__(self, place: str | Path) -> None:
        # What takes the time is imported once, and every process is a fork of that.
        start_forkserver(["tunebench.db.connection.database", "tunebench.db.queries.trials"])
        self._pipe, theirs = context().Pipe()
        self._process = context().Process(target=_serve, args=(str(place), theirs), daemon=True)
        self._process.start()
        theirs.close()

    def open(self, name: int, *, read_only: bool = False) -> None:
        """Open the database once more."""
        self._ask("open", name, read_only)

    def record(self, name: int, numbers: range) -> None:
        """Record the trials of these numbers through one that was opened for writing, each in its own transaction."""
        self._ask("record", name, numbers)

    def claim(self, name: int, number: int) -> bool:
        """Claim the configuration of that number, through the first study that was claimed from."""
        return bool(self._ask("claim", name, number))

    def count(self, name: int) -> int:
        """How many trials one of them sees."""
        return int(self._ask("count", name))

    def close(self, name: int) -> None:
        """Close one of them."""
        self._ask("close", name)

    def end(self) -> None:
        """Close them all and end, as a program does."""
        self._ask("end")
        self._process.join(30)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.join(30)

    def _ask(self, *request: object) -> Any:
        self._pipe.send(request)
        assert self._pipe.poll(120), f"no answer to {request}"
        answer = self._pipe.recv()
        if isinstance(answer, str):
            pytest.fail(f"{request}: {answer}")
        return answer


def _serve(file: str, pipe: Connection) -> None:
    opened: dict[int, Database] = {}
    claiming: dict[int, StudyLog] = {}

    def open_one(name: int, read_only: bool) -> int:
        opened[name] = open_database(file, read_only=read_only)
        return 0

    def record(name: int, numbers: range) -> int:
        log = open_study(opened[name], STUDY, ENVIRONMENT)
        for number in numbers:
            log.record(correct(number))
        return len(numbers)

    def claim(name: int, number: int) -> int:
        claiming.setdefault(name, open_study(opened[name], STUDY, ENVIRONMENT))
        return claiming[name].claim(configuration(number))

    def count(name: int) -> int:
        return count_rows(opened[name])[1]

    def close(name: int) -> int:
        opened.pop(name).close()
        return 0

    def end() -> int:
        for name in list(opened):
            close(name)
        return 0

    commands: dict[str, Callable[..., int]] = {one.__name__: one for one in (record, claim, count, close, end)} | {
        "open": open_one
    }
    while True:
        try:
            command, *arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(commands[command](*arguments))
        except Exception as error:  # noqa: BLE001 (the boundary of the process)
            pipe.send(f"{type(error).__name__}: {error}")
        if command == "end":
            return
