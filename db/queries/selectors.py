"""One side of a comparison of results: a database, or the results in one that meet conditions such as `torch=2.11`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, select

from tunebench.db.connection.database import Database
from tunebench.db.queries.statements import everything_about, fields_of, study_conditions
from tunebench.db.queries.trials import BestRow, best
from tunebench.db.schema.tables import (
    ENVIRONMENT_COLUMNS,
    DeviceTable,
    EnvironmentTable,
    ProblemTable,
    StudyTable,
    TrialTable,
)
from tunebench.db.schema.views import winners
from tunebench.tuner.errors import UnknownNameError, UserError

STUDY_NAMES = ("device", "architecture", "compiler", "source")


@dataclass(frozen=True)
class Selector:
    """What one side of a comparison is.

    Attributes:
        text: as it was given.
        database: a file or URL; None for the database that is asked anyway.
        conditions: wanted value by name. Versions, commits and sources may be shortened: `2.11` means `2.11.0+cu130`
            too.
    """

    text: str
    database: str | None = None
    conditions: Mapping[str, str] = field(default_factory=dict)


def parse_selector(text: str) -> Selector:
    """A selector from `NAME=VALUE[,NAME=VALUE...]`, or from a database's path or URL.

    Raises:
        UserError: it is neither, or names a condition that there is not.
    """
    if "://" in text or "=" not in text or Path(text).exists():
        if not text:
            raise UserError("a side of a comparison is empty: write NAME=VALUE, such as torch=2.11, or a database")
        return Selector(text, database=text)
    conditions = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in (*STUDY_NAMES, *ENVIRONMENT_COLUMNS):
            raise UnknownNameError("condition", name, (*STUDY_NAMES, *ENVIRONMENT_COLUMNS))
        if not value or name in conditions:
            raise UserError(f"'{part}' says nothing, or the same twice: write NAME=VALUE once for each name")
        conditions[name] = value
    return Selector(text, conditions=conditions)


def select_best(database: Database, selector: Selector, *, kernel: str | None = None) -> list[BestRow]:
    """The best results that meet a selector's conditions, one a kernel, source, problem, device, compiler and regime.

    Where an environment is asked for, only trials that ran in it count, and only comparisons made in it confirm.

    Raises:
        UserError: nothing in the database has such a value; the message has those that there are.
        DatabaseError: the database cannot be read, or holds what tunebench does not write.
    """
    wanted = selector.conditions
    with database.reading() as connection:
        sources = _sources(connection, wanted["source"]) if "source" in wanted else None
        for name, column in (
            ("device", DeviceTable.name),
            ("architecture", DeviceTable.architecture),
            ("compiler", StudyTable.compiler),
        ):
            if name in wanted:
                _require_known(name, wanted[name], connection.scalars(select(column).distinct()))
        environments = _environments(connection, wanted)
        if environments is not None:
            return _best_within(connection, kernel, sources, wanted, environments)
    rows = best(database, kernel=kernel, device=wanted.get("device"), architecture=wanted.get("architecture"))
    compiler = wanted.get("compiler")
    return [
        row for row in rows if compiler in (None, row.compiler) and (sources is None or row.source_digest in sources)
    ]


def _require_known(name: str, value: str, known: Iterable[str | None]) -> None:
    values = {one for one in known if one is not None}
    if value not in values:
        raise UnknownNameError(name, value, values)


def _sources(connection: Connection, start: str) -> list[str]:
    """The source that a beginning of its digest names."""
    digests = connection.scalars(select(StudyTable.source_digest).distinct()).all()
    found = [digest for digest in digests if digest.startswith(start)]
    if not found:
        raise UnknownNameError("source", start, (digest[:12] for digest in digests))
    return found


def _environments(connection: Connection, wanted: Mapping[str, str]) -> list[int] | None:
    """The environments that meet the conditions on them; None where there are no such conditions."""
    names = [name for name in wanted if name in ENVIRONMENT_COLUMNS]
    if not names:
        return None
    rows = connection.execute(select(EnvironmentTable.id, *(ENVIRONMENT_COLUMNS[name] for name in names))).all()
    for place, name in enumerate(names, 1):
        if not any(_is_version(row[place], wanted[name]) for row in rows):
            raise UnknownNameError(name, wanted[name], {str(row[place]) for row in rows})
    return [row[0] for row in rows if all(_is_version(row[place], wanted[name]) for place, name in enumerate(names, 1))]


def _is_version(value: object, wanted: str) -> bool:
    """Whether a version is the one wanted, or begins with it where its number ends: 2.1 does not mean 2.11.

    A commit is meant by any beginning of it.
    """
    full = "" if value is None else str(value)
    if not full.startswith(wanted):
        return False
    if len(full) == len(wanted) or re.match("[0-9a-f]{40}", full):
        return True
    return not (full[len(wanted)].isalnum() and full[len(wanted) - 1].isalnum())


def _best_within(
    connection: Connection,
    kernel: str | None,
    sources: list[str] | None,
    wanted: Mapping[str, str],
    environments: list[int],
) -> list[BestRow]:
    """The best of the trials that ran in one of these environments."""
    conditions = study_conditions(
        study_columns={"kernel": kernel, "compiler": wanted.get("compiler")},
        problem_columns={},
        device_columns={"name": wanted.get("device"), "architecture": wanted.get("architecture")},
    )
    if sources is not None:
        conditions.append(StudyTable.source_digest.in_(sources))
    ordering = (StudyTable.kernel, ProblemTable.key, TrialTable.id)
    query = everything_about(winners(conditions, environments)).order_by(*ordering)
    return [BestRow(**fields_of(row, {})) for row in connection.execute(query)]
