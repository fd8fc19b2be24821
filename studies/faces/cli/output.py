"""The output that the commands share: JSON, CSV, and rows in whichever form was asked for."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from tunebench.studies.display.tables import Listing

Row = TypeVar("Row")


def print_rows(
    rows: Iterable[Row], listing: Listing[Row], nothing: str, *, as_json: bool, as_csv: bool, verbose: bool = False
) -> None:
    """Print rows in the form asked for, JSON and CSV one by one as they come; exit code 1 where there are none."""
    found = iter(rows)
    first = next(found, None)
    every = [] if first is None else chain([first], found)
    if as_json:
        print_json_array(map(listing.values, every))
    elif as_csv:
        print_csv(listing.columns, map(listing.cells, every))
    elif first is None:
        print(nothing, file=sys.stderr)
    else:
        listing.table(list(every), verbose)
    if first is None:
        raise typer.Exit(1)


def print_json(values: object) -> None:
    """JSON on standard output; a figure that is not a finite number is null there."""
    print(json.dumps(_finite(values), indent=2, ensure_ascii=False))


def print_json_array(values: Iterable[object]) -> None:
    """A JSON array on standard output, one value a line, each printed before the next is asked for."""
    separator = "["
    for value in values:
        print(separator, json.dumps(_finite(value), ensure_ascii=False), sep="\n", end="")
        separator = ","
    print("[]" if separator == "[" else "\n]")


def _finite(value: object) -> object:
    """The same with null in place of infinities and NaN, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


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


def counted(studies: int) -> str:
    """The number of studies in words."""
    return f"{studies} {'study' if studies == 1 else 'studies'}"
