"""What the commands share on the way out: JSON, CSV, and tables as wide as the terminal."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer


def print_json(values: object) -> None:
    """JSON on standard output."""
    print(json.dumps(values, indent=2, ensure_ascii=False))


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """CSV (RFC 4180) with a header on standard output."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)


def require_one_form(*, as_json: bool, as_csv: bool) -> None:
    """Refuse both at once.

    Raises:
        UserError: both were asked for.
    """
    from tunebench.tuner.errors import UserError

    if as_json and as_csv:
        raise UserError("--json and --csv are two forms of the same output: give one of them")


def print_rows(
    rows: Sequence[Any], print_table: Callable[[Any], None], nothing: str, *, as_json: bool, as_csv: bool
) -> None:
    """Print rows in the form asked for; exit code 1 where there are none."""
    from tunebench.db.queries.data_frames import FLAT_COLUMNS, csv_text, flat_values
    from tunebench.studies.tables import row_values

    if as_json:
        print_json([row_values(row) for row in rows])
    elif as_csv:
        print_csv(FLAT_COLUMNS, ([csv_text(value) for value in flat_values(row).values()] for row in rows))
    elif rows:
        print_table(rows)
    else:
        print(nothing, file=sys.stderr)
    if not rows:
        raise typer.Exit(1)


def counted(studies: int) -> str:
    """The number of studies in words."""
    return f"{studies} {'study' if studies == 1 else 'studies'}"
