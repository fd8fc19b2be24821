"""One side of a comparison of results: a database, or the results in one that meet conditions such as `torch=2.11`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, select

from tunebench.db.connection.database import Database
from tunebench.db.connection.location import without_secrets
from tunebench.db.queries.rows import BestRow
from tunebench.db.queries.trials import best
from tunebench.db.schema import tables
from tunebench.tuner.errors import UnknownNameError, UserError

STUDY_NAMES = ("device", "architecture", "compiler", "source")


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
        if name not in (*STUDY_NAMES, *tables.ENVIRONMENT_COLUMNS):
            raise UnknownNameError("condition", name, (*STUDY_NAMES, *tables.ENVIRONMENT_COLUMNS))
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
    required = selector.conditions
    with database.reading() as connection:
        sources = _sources(connection, required["source"]) if "source" in required else None
        for name, column in (
            ("device", tables.Device.name),
            ("architecture", tables.Device.architecture),
            ("compiler", tables.Study.compiler),
        ):
            if name in required:
                _require_known(name, required[name], connection.scalars(select(column).distinct()))
        environments = _environments(connection, required)
    rows = best(
        database,
        kernel=kernel,
        device=required.get("device"),
        architecture=required.get("architecture"),
        compiler=required.get("compiler"),
        environments=environments,
    )
    return [row for row in rows if sources is None or row.source_digest in sources]


def _require_known(name: str, value: str, known: Iterable[str | None]) -> None:
    values = {one for one in known if one is not None}
    if value not in values:
        raise UnknownNameError(name, value, values)


def _sources(connection: Connection, start: str) -> list[str]:
    """Return the source that a beginning of its digest names."""
    digests = connection.scalars(select(tables.Study.source_digest).distinct()).all()
    found = [digest for digest in digests if digest.startswith(start)]
    if not found:
        raise UnknownNameError("source", start, (digest[:12] for digest in digests))
    return found


def _environments(connection: Connection, required: Mapping[str, str]) -> list[int] | None:
    """Return the environments that meet the conditions on them; None where there are no such conditions."""
    names = [name for name in required if name in tables.ENVIRONMENT_COLUMNS]
    if not names:
        return None
    columns = [tables.ENVIRONMENT_COLUMNS[name] for name in names]
    meant: list[set[int]] = []
    for name, column in zip(names, columns, strict=True):
        versions = {number: value for number, value in connection.execute(select(tables.Environment.id, column))}  # noqa: C416
        meant.append({number for number, value in versions.items() if _is_version(value, required[name])})
        if not meant[-1]:
            raise UnknownNameError(name, required[name], {str(value) for value in versions.values()})
    return sorted(set.intersection(*meant))


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
