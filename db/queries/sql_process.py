"""Query of a SQLite file, in a process of its own: `python sql_process.py < REQUEST`.

Any user's SQL can take any amount of memory and time between two looks at the clock (`zeroblob`, `json_group_array`, a
statement of a megabyte), and SQLite's limit on its heap is one of the whole process that cannot be lifted again. So the
question is asked where both can be limited, and where the process can be killed. It imports the standard library alone,
so that it starts in a few hundredths of a second.

The request is `Request` as JSON. The answer is lines of JSON: the columns' names, then the rows, then true where there
were no more of them, false where there were; or an object with the error that ended it.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import sqlite3
import sys
import time
from collections.abc import Iterator
from typing import Any, TypedDict

HEAP_BYTES = 256 << 20
"""Upper limit of the memory that SQLite may allocate for a query, in bytes."""

ANSWER_BYTES = 64 << 20
"""Approximate upper limit of an answer's size in memory, in bytes."""

_LARGEST_BYTES = 64 << 20
"""The longest text or SQL that SQLite may handle here: a compiler's log fits, `randomblob(1e9)` does not."""

_PROCESS_BYTES = 2 << 30
"""The address space of the process: where SQLite's own limit does not hold, this one does."""

_BYTES_OF_A_CELL = 64
"""Bytes of memory that a cell takes in addition to its text."""

_STEPS_BETWEEN_LOOKS = 10_000
"""Virtual-machine steps of SQLite between looks at the clock: well below a millisecond."""

_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE)
_FORBIDDEN_FUNCTIONS = ("load_extension", "fts3_tokenizer", "readfile", "writefile", "edit")


class Request(TypedDict):
    """A question: the file's URI, the SQL, at most so many rows (None for all), stopped after so many seconds."""

    uri: str
    sql: str
    limit: int | None
    seconds: float


class TooLargeError(Exception):
    """An answer beyond `ANSWER_BYTES`."""


def main() -> None:
    """Answer the request on standard input."""
    deadline = time.monotonic()
    request: Request = json.load(sys.stdin)
    deadline += request["seconds"]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_PROCESS_BYTES, _PROCESS_BYTES))
    try:
        for line in _answer(request, deadline):
            sys.stdout.write(line + "\n")
    except (sqlite3.Error, sqlite3.Warning, MemoryError, TooLargeError, UnicodeDecodeError) as error:
        name = getattr(error, "sqlite_errorname", "")
        sys.stdout.write(json.dumps({"type": type(error).__name__, "message": str(error), "code": name}) + "\n")


def _answer(request: Request, deadline: float) -> Iterator[str]:
    connection = sqlite3.connect(request["uri"], uri=True, timeout=request["seconds"], isolation_level=None)
    with contextlib.closing(connection):
        _restrict(connection, deadline)
        cursor = connection.execute(request["sql"])
        if cursor.description is None:
            raise sqlite3.ProgrammingError("the statement returns no rows")
        yield json.dumps([name for name, *_ in cursor.description])
        size, limit = 0, request["limit"]
        for number, row in enumerate(cursor):
            if number == limit:
                yield "false"
                return
            line = json.dumps([_cell(value) for value in row], allow_nan=False)
            size += len(line) + _BYTES_OF_A_CELL * (1 + len(row))
            if size > ANSWER_BYTES:
                raise TooLargeError
            yield line
        yield "true"


def _restrict(connection: sqlite3.Connection, deadline: float) -> None:
    """Let a statement read tables and call functions, and nothing else: no ATTACH, which would create files."""
    connection.execute("PRAGMA query_only = 1")
    connection.execute("PRAGMA trusted_schema = 0")
    connection.execute(f"PRAGMA hard_heap_limit = {HEAP_BYTES}")
    # SQLite declares these tables when they are first named, which the authorizer would take for making a table.
    connection.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')")
    connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.set_authorizer(_authorize)
    connection.set_progress_handler(lambda: int(time.monotonic() > deadline), _STEPS_BETWEEN_LOOKS)


def _authorize(action: int, _first: str | None, second: str | None, _database: str | None, _source: str | None) -> int:
    if action in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and second not in _FORBIDDEN_FUNCTIONS):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _cell(value: Any) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value.hex() if isinstance(value, bytes) else value


if __name__ == "__main__":
    main()
