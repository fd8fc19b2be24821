"""Entries as rows of a flat table: a column for every single value, JSON in a cell for what there are several of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, TypeAlias

from tunebench.db.entries.codec import document_of, parts_of, value_of
from tunebench.db.entries.entry import Entry
from tunebench.db.entries.strict_json import EntryError, parse_json

Cell: TypeAlias = str | int | float | bool | datetime | None


# bool is an int and every enum here is text, so that the order matters.
KINDS: tuple[type, ...] = (bool, int, float, datetime, str)
"""The types of a column's values; of any other, the cell is its JSON."""


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        path: the names from an entry's document down to the value.
        kind: one of `KINDS`; None where cells are JSON.
    """

    path: tuple[str, ...]
    kind: type | None

    @property
    def name(self) -> str:
        """Its header, such as `trial.measurement.median_ms`."""
        return ".".join(self.path)


@cache
def columns() -> tuple[Column, ...]:
    """Every column, in the order of the fields."""
    return _columns_of(Entry, ())


def _columns_of(kind: Any, path: tuple[str, ...]) -> tuple[Column, ...]:
    found: tuple[Column, ...] = ()
    for part in parts_of(kind):
        inner = (*path, part.name)
        found += _columns_of(part.hint, inner) if is_dataclass(part.hint) else (Column(inner, _kind_of(part.hint)),)
    return found


def _kind_of(hint: Any) -> type | None:
    return next((kind for kind in KINDS if isinstance(hint, type) and issubclass(hint, kind)), None)


def cells_of(entry: Entry) -> list[Cell]:
    """The entry's cells, a column each; None where there is nothing."""
    values = document_of(entry)
    return [_cell(column, values) for column in columns()]


def _cell(column: Column, values: Mapping[str, Any]) -> Cell:
    value: Any = values
    for name in column.path:
        value = value[name]
        if value is None:
            return None
    if column.kind is None:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if column.kind is float:
        # Infinity is text here.
        return float(value)
    cell: Cell = datetime.fromisoformat(value) if column.kind is datetime else value
    return cell


def entry_from(cells: Mapping[str, Cell]) -> Entry:
    """The entry of one row.

    Args:
        cells: by column name; columns that are not there are empty.

    Raises:
        EntryError: it is not one; the message names the column.
    """
    values: dict[str, Any] = {}
    for column in columns():
        cell = cells.get(column.name)
        if cell is not None:
            part = values
            for name in column.path[:-1]:
                part = part.setdefault(name, {})
            part[column.path[-1]] = cell if column.kind else _json(column, cell)
    _fill(Entry, values)
    return value_of(Entry, values)


def _json(column: Column, cell: Cell) -> Any:
    try:
        return parse_json(str(cell))
    except EntryError as error:
        raise EntryError(f"{column.name}: {error}") from None


@cache
def _missing(kind: Any) -> tuple[tuple[str, Any, object], ...]:
    """Return each part: its name, its dataclass, what an empty cell means (`...` where that is the field's own)."""
    return tuple(
        (
            part.name,
            part.hint if is_dataclass(part.hint) else None,
            None if part.optional or part.hint is float else "" if part.hint is str else ...,
        )
        for part in parts_of(kind)
    )


def _fill(kind: Any, values: dict[str, Any]) -> None:
    """Say of a part that is there what empty cells mean: nothing, or an empty text."""
    for name, inner, missing in _missing(kind):
        if name in values:
            if inner is not None:
                _fill(inner, values[name])
        elif missing is not ...:
            values[name] = missing
