"""One side of a comparison of results: a database, or the results in one that meet conditions such as `torch=2.11`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, SQLColumnExpression, select

from tunebench.db.connection.database import Database
from tunebench.db.connection.location import without_secrets
from tunebench.db.queries.rows import BestRow
from tunebench.db.queries.trials import best
from tunebench.db.schema import tables
from tunebench.tuner.errors import UnknownNameError, UserError

_OF_STUDY: dict[str, SQLColumnExpression[Any]] = {
    "device": tables.Device.name,
    "architecture": tables.Device.architecture,
    "compiler": tables.Study.compiler,
    "source": tables.Study.source_digest,
}
_COLUMNS = _OF_STUDY | tables.ENVIRONMENT_COLUMNS


@dataclass(frozen=True)
class Selector:
    """One side of a comparison.

    Attributes:
        text: as it was given, without secrets.
        database: a file or URL; None for the database that is queried anyway.
        conditions: the required value by name. Versions, commits and sources may be shortened: `2.11` means
            `2.11.0+cu130` too.
    """

    text: str
    database: str | None = None
    conditions: Mapping[str, str] = field(default_factory=dict)


def parse_selector(text: str) -> Selector:
    """Return a selector from `NAME=VALUE[,NAME=VALUE...]`, or from a database's path or URL.

    Raises:
        UserError: it is neither, or names a condition that there is not.
    """
    if "://" in text or "=" not in text or Path(text).exists():
        if not text:
            raise UserError("a side of a comparison is empty: write NAME=VALUE, such as torch=2.11, or a database")
        return Selector(without_secrets(text), database=text)
    conditions = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in _COLUMNS:
            raise UnknownNameError("condition", name, _COLUMNS)
        if not value or name in conditions:
            raise UserError(f"'{part}' says nothing, or the same twice: write NAME=VALUE once for each name")
        conditions[name] = value
    return Selector(text, conditions=conditions)


def select_best(database: Database, selector: Selector, *, kernel: str | None = None) -> list[BestRow]:
    """Return the best results that meet a selector, one a kernel, source, problem, device, compiler and regime.

    Where an environment is asked for, only trials that ran in it count, and only comparisons made in it confirm.

    Raises:
        UserError: nothing in the database has such a value; the message has those that there are.
    """
    required, environments = selector.conditions, None
    with database.reading() as connection:
        meant = {name: _meant(connection, name, value) for name, value in required.items()}
        if of_environment := [_COLUMNS[name].in_(meant[name]) for name in required if name not in _OF_STUDY]:
            environments = connection.scalars(select(tables.Environment.id).where(*of_environment)).all()
    rows = best(
        database,
        kernel=kernel,
        device=required.get("device"),
        architecture=required.get("architecture"),
        compiler=required.get("compiler"),
        environments=environments,
    )
    return [row for row in rows if "source" not in meant or row.source_digest in meant["source"]]


def _meant(connection: Connection, name: str, required: str) -> set[str]:
    """Return the values in the database that meet a condition.

    Raises:
        UnknownNameError: there is none.
    """
    known = set(connection.scalars(select(_COLUMNS[name]).distinct()))
    if name == "source":
        meant = {digest for digest in known if digest.startswith(required)}
    elif name in _OF_STUDY:
        meant = known & {required}
    else:
        meant = {version for version in known if _is_version(version, required)}
    if not meant:
        raise UnknownNameError(name, required, {str(one)[:12] if name == "source" else str(one) for one in known})
    return meant


def _is_version(value: object, required: str) -> bool:
    """Return whether a version is the required one, or begins with it where its number ends: 2.1 does not mean 2.11.

    A commit is meant by any beginning of it.
    """
    full = "" if value is None else str(value)
    if not full.startswith(required):
        return False
    if len(full) == len(required) or re.match("[0-9a-f]{40}", full):
        return True
    return not (full[len(required)].isalnum() and full[len(required) - 1].isalnum())
