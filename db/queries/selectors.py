"""One side of a comparison of results: a database, or the results in one that meet conditions such as `torch=2.11`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, and_, func, select
from sqlalchemy.orm import aliased

from tunebench.db.connection.database import Database
from tunebench.db.queries.statements import CORRECT, everything_about, fields_of, study_conditions
from tunebench.db.queries.trials import BestRow, best
from tunebench.db.schema.tables import (
    ComparisonRecord,
    DeviceRecord,
    EnvironmentRecord,
    ProblemRecord,
    StudyRecord,
    TrialRecord,
)
from tunebench.tuner.errors import UnknownNameError, UserError

STUDY_NAMES = ("device", "architecture", "compiler", "source")
ENVIRONMENT_NAMES = {
    "driver": EnvironmentRecord.driver,
    "cuda": EnvironmentRecord.cuda,
    "torch": EnvironmentRecord.torch,
    "compiler_version": EnvironmentRecord.compiler,
    "tunebench": EnvironmentRecord.tunebench,
    "python": EnvironmentRecord.python,
    "host": EnvironmentRecord.host,
    "throttle": EnvironmentRecord.throttle,
}
"""Conditions on the environment that a trial ran in, and their columns."""


@dataclass(frozen=True)
class Selector:
    """What one side of a comparison is.

    Attributes:
        text: as it was given.
        database: a file or URL; None for the database that is asked anyway.
        conditions: wanted value by name. Versions and sources may be shortened: `2.11` means `2.11.0+cu130` too.
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
        if name not in (*STUDY_NAMES, *ENVIRONMENT_NAMES):
            raise UnknownNameError("condition", name, (*STUDY_NAMES, *ENVIRONMENT_NAMES))
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
            ("device", DeviceRecord.name),
            ("architecture", DeviceRecord.architecture),
            ("compiler", StudyRecord.compiler),
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
    digests = connection.scalars(select(StudyRecord.source_digest).distinct()).all()
    found = [digest for digest in digests if digest.startswith(start)]
    if not found:
        raise UnknownNameError("source", start, (digest[:12] for digest in digests))
    return found


def _environments(connection: Connection, wanted: Mapping[str, str]) -> list[int] | None:
    """The environments that meet the conditions on them; None where there are no such conditions."""
    names = [name for name in wanted if name in ENVIRONMENT_NAMES]
    if not names:
        return None
    rows = connection.execute(select(EnvironmentRecord.id, *(ENVIRONMENT_NAMES[name] for name in names))).all()
    for place, name in enumerate(names, 1):
        if not any(_is_version(row[place], wanted[name]) for row in rows):
            raise UnknownNameError(name, wanted[name], {str(row[place]) for row in rows})
    return [row[0] for row in rows if all(_is_version(row[place], wanted[name]) for place, name in enumerate(names, 1))]


def _is_version(full: object, wanted: str) -> bool:
    """Whether a version is the one wanted, or begins with it where its number ends: 2.1 does not mean 2.11."""
    if not isinstance(full, str) or not full.startswith(wanted):
        return False
    return len(full) == len(wanted) or not (full[len(wanted)].isalnum() and full[len(wanted) - 1].isalnum())


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
        conditions.append(StudyRecord.source_digest.in_(sources))
    won = aliased(ComparisonRecord, name="won")
    confirmed_at = (
        select(func.max(won.concluded_at))
        .where(
            won.study_id == TrialRecord.study_id,
            won.configuration_id == TrialRecord.configuration_id,
            won.environment_id.in_(environments),
        )
        .correlate(TrialRecord)
        .scalar_subquery()
    )
    timed = (
        select(
            TrialRecord.id.label("trial_id"),
            func.row_number()
            .over(
                partition_by=(
                    *(StudyRecord.kernel, StudyRecord.source_digest, StudyRecord.problem_id),
                    *(DeviceRecord.name, DeviceRecord.architecture, StudyRecord.compiler, TrialRecord.regime),
                ),
                order_by=(confirmed_at.is_(None), confirmed_at.desc(), TrialRecord.median_ms, TrialRecord.id),
            )
            .label("place"),
        )
        .join(StudyRecord, StudyRecord.id == TrialRecord.study_id)
        .join(DeviceRecord, DeviceRecord.id == StudyRecord.device_id)
        .where(and_(CORRECT, TrialRecord.environment_id.in_(environments), *conditions))
        .cte("timed")
    )
    picked = select(timed.c.trial_id).where(timed.c.place == 1).cte("picked")
    query = everything_about(picked).order_by(StudyRecord.kernel, ProblemRecord.key, TrialRecord.id)
    return [BestRow(**fields_of(row, {})) for row in connection.execute(query)]
