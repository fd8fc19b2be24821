"""Trials as flat rows: one plain value a column, named as in the view `trials_flat`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from tunebench.db.queries.rows import FLAT_NAMES, TrialRow
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import UserError
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Ratio

if TYPE_CHECKING:
    from pandas import DataFrame

Flat: TypeAlias = str | int | float | datetime | None


def _names(field: str) -> tuple[str, ...]:
    """The columns that a field of a row takes."""
    if field.startswith("over_"):
        return field, f"{field}_low", f"{field}_high"
    return ("problem", "dtype") if field == "problem" else (FLAT_NAMES.get(field, field),)


_COLUMNS = {field.name: _names(field.name) for field in fields(TrialRow)}
FLAT_COLUMNS = tuple(chain.from_iterable(_COLUMNS.values()))
"""The columns of `flat_values`, in order."""


def flat_values(row: TrialRow) -> dict[str, Flat]:
    """Return a trial's columns: times in milliseconds, moments in UTC, problem and configuration as JSON."""
    flat: dict[str, Flat] = {}
    for field, names in _COLUMNS.items():
        flat |= zip(names, _cells(getattr(row, field)) or [None] * len(names), strict=True)
    return flat


def _cells(value: Any) -> Sequence[Flat]:
    match value:
        case None:
            return ()
        case Problem():
            return value.key, value.dtype
        case Configuration():
            return (value.key,)
        case Ratio():
            return value.value, value.low, value.high
        case StrEnum():
            return (value.value,)
    return (value,)


def to_dataframe(rows: Sequence[TrialRow]) -> DataFrame:
    """Return the rows of `best` or `trials` as a pandas DataFrame.

    Its columns are `FLAT_COLUMNS`, and beside them `axis_NAME`, `option_NAME` and `tunable_NAME` for every axis and
    option of a problem and every tunable of a configuration, missing where a row has none of that name.

    Raises:
        UserError: pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise UserError("a DataFrame needs pandas, which is not installed: pip install pandas") from error
    records = [flat_values(row) | _parts(row) for row in rows]
    names = dict.fromkeys([*FLAT_COLUMNS, *(name for record in records for name in record)])
    return DataFrame(records, columns=list(names))


def _parts(row: TrialRow) -> dict[str, Flat]:
    kinds: dict[str, Any] = {"axis": row.problem.axes, "option": row.problem.options, "tunable": row.configuration}
    return {f"{kind}_{name}": value for kind, values in kinds.items() for name, value in values.items()}


def csv_text(value: Flat) -> str:
    """Return a value as in CSV: nothing for None, ISO 8601 for a moment, all digits of a number."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str) else json.dumps(value)
