"""`query`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tunebench.studies.display.terminal import print_line
from tunebench.studies.faces.cli.options import CsvOption, DatabaseOption, JsonOption
from tunebench.studies.faces.cli.output import print_csv, print_json, require_one_form
from tunebench.studies.request.text import MOST

_LONGEST_SQL = 1_000_000


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT; - reads it from standard input.")],
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=MOST, help="At most this many rows.")] = 1000,
    seconds: Annotated[
        float, typer.Option(min=0.001, max=999_999, help="Stop the query after so many seconds.")
    ] = 60.0,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Ask in SQL. It can only read; the views `best`, `trials_flat` and `leaderboard` join all tables."""
    from tunebench.db.connection.database import open_database
    from tunebench.db.queries.data_frames import csv_text
    from tunebench.db.queries.sql import ask
    from tunebench.studies.display.terminal import print_table

    require_one_form(as_json=as_json, as_csv=as_csv)
    with open_database(db, read_only=True) as database:
        answer = ask(database, _standard_input() if sql == "-" else sql, limit=limit, seconds=seconds)
    if as_json:
        print_json([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    elif as_csv:
        print_csv(answer.columns, ([csv_text(cell) for cell in row] for row in answer.rows))
    else:
        rows = [[csv_text(cell) for cell in row] for row in answer.rows]
        print_table(answer.columns, rows)
    if not answer.complete:
        print_line(f"only the first {limit} rows: ask for less, or for more with --limit", error=True)


def _standard_input() -> str:
    """The SQL on standard input.

    Raises:
        UserError: there is none, more than SQL ever is, or no text.
    """
    from tunebench.tuner.errors import UserError

    try:
        text = sys.stdin.read(_LONGEST_SQL + 1)
    except UnicodeDecodeError:
        raise UserError("standard input is not text in UTF-8: give one SELECT") from None
    except OSError as error:
        raise UserError(f"standard input cannot be read: {error.strerror}") from error
    if not text.strip() or len(text) > _LONGEST_SQL:
        raise UserError(f"standard input is empty, or longer than {_LONGEST_SQL:,} characters: give one SELECT")
    return text
