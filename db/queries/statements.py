"""The SQL behind the questions: first which trials answer one, then everything about those few.

The two are apart so that the first works on indexes alone. On SQLite, without statistics, what it visits is what its
text says: a study's conditions stand in a subquery over the small tables, and its trials are then taken from an index
in the order asked for, which lets a limit end the search early however many trials there are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict

from sqlalchemy import CTE, JSON, Connection, Label, Row, Text, cast, exists, func, literal, select, tuple_, type_coerce
from sqlalchemy.orm import InstrumentedAttribute

from tunebench.db.entries.decode import configuration_of, member_of, problem_of
from tunebench.db.queries.rows import FLAT_NAMES, TrialRow
from tunebench.db.schema import tables
from tunebench.db.schema.documents import ratio_of
from tunebench.db.schema.views import CORRECT, FLAT, AnySelect, Condition, with_parts
from tunebench.tuner.build import CompilerName
from tunebench.tuner.configuration import Value
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.problem import ACCURACY_OPTION, Accuracy, Problem
from tunebench.tuner.result import Baseline, CacheRegime, Ratio, TrialStatus

_FEW = 50_000
"""Number of trials that are found through an index and sorted within some ten milliseconds."""

PROBLEM = tuple(getattr(tables.Problem, name).label(f"problem_{name}") for name in ("key", "dtype", "axes", "options"))
"""The columns of a problem, see `problem_in`."""

_PLAIN: list[Label[Any]] = [
    FLAT[FLAT_NAMES.get(one.name, one.name)].label(one.name)
    for one in fields(TrialRow)
    if one.name != "problem" and not one.name.startswith("over_")
]
_PLAIN_NAMES = [column.name for column in _PLAIN]

_TEXT_OF_ACCURACY = {one: f'"{ACCURACY_OPTION}":"{one}"' for one in Accuracy if one is not Accuracy.TOLERANCE}
"""The text that says each accuracy in a problem's key; none says the tolerance."""


class StudyConditions(TypedDict, total=False):
    """Conditions on a study; each that is given must hold, and None is the same as leaving it out.

    Attributes:
        device: a device's name.
    """

    kernel: str | None
    source_digest: str | None
    problem: Problem | None
    dtype: str | None
    accuracy: Accuracy | None
    device: str | None
    architecture: str | None
    compiler: CompilerName | str | None


_COLUMNS: dict[str, InstrumentedAttribute[Any]] = {
    "study_id": tables.Study.id,
    "sampler": tables.Study.sampler,
    "kernel": tables.Study.kernel,
    "source_digest": tables.Study.source_digest,
    "compiler": tables.Study.compiler,
    "problem": tables.Problem.key,
    "dtype": tables.Problem.dtype,
    "device": tables.Device.name,
    "architecture": tables.Device.architecture,
}
"""Columns that conditions are on."""


def study_conditions(given: Mapping[str, object]) -> list[Condition]:
    """Return conditions on a study's row from `StudyConditions`, its number and its sampler; others are passed over."""
    required = {name: value for name, value in given.items() if name in _COLUMNS and value is not None}
    found: dict[Any, list[Condition]] = {tables.Study: [], tables.Problem: [], tables.Device: []}
    for name, value in required.items():
        column = _COLUMNS[name]
        found[column.class_].append(column == (value.key if isinstance(value, Problem) else value))
    if isinstance(accuracy := given.get("accuracy"), Accuracy):
        for one, text in _TEXT_OF_ACCURACY.items():
            has = tables.Problem.key.contains(text, autoescape=True)
            found[tables.Problem].append(has if one is accuracy else ~has)
    conditions = found[tables.Study]
    for table, reference in ((tables.Problem, tables.Study.problem_id), (tables.Device, tables.Study.device_id)):
        if found[table]:
            conditions.append(reference.in_(select(table.__table__.c.id).where(*found[table])))
    return conditions


def unless_many(connection: Connection, condition: Condition) -> Condition:
    """Return the same condition on trials, in a form that is fast whether it holds for few trials or for many.

    Few are looked up by the condition's own index; many are met soon enough on the way through the newest.
    """
    if _holds_for_many(connection, condition):
        return condition
    # An expression that no index serves, and a sub-select that its own index does.
    return tables.Trial.id.in_(select(tables.Trial.id).where(condition).correlate(None))


def of_many(connection: Connection, studies: AnySelect) -> Condition:
    """Return the condition for trials of these studies, fast in the order of times for few trials and for many.

    Few are found by study and sorted; of many, a walk through all in that order soon meets enough.
    """
    condition = tables.Trial.study_id.in_(studies)
    # An expression that the index by study does not serve.
    return (tables.Trial.study_id + 0).in_(studies) if _holds_for_many(connection, condition, CORRECT) else condition


def _holds_for_many(connection: Connection, *conditions: Condition) -> bool:
    some = select(literal(1)).select_from(tables.Trial).where(*conditions).limit(_FEW + 1)
    return (connection.scalar(select(func.count()).select_from(some.subquery())) or 0) > _FEW


def with_values(connection: Connection, values: Mapping[str, Value | Collection[Value]]) -> Condition:
    """Return the condition for trials whose configuration has these values; of several of one tunable, any.

    However many values there are, they are one bound parameter.
    """
    has_value = _has_value_in_file if connection.dialect.name == "sqlite" else _has_value_on_server
    found = []
    for name, legal in values.items():
        given = [legal] if isinstance(legal, Value) else legal
        # JSON has no infinities and no NaN, and no configuration either.
        found.append(has_value(name, [one for one in given if not isinstance(one, float) or math.isfinite(one)]))
    return tables.Trial.configuration_id.in_(select(tables.Configuration.id).where(*found))


def _has_value_in_file(name: str, legal: Sequence[Value]) -> Condition:
    """Return the condition for a tunable to have one of these values, of the same type: 1 is neither 1.0 nor true."""
    own = func.json_each(tables.Configuration.key).table_valued("key", "type", "value", name="own")
    asked = func.json_each(json.dumps(legal)).table_valued("type", "value", name="asked")
    is_legal = tuple_(own.c.type, own.c.value).in_(select(asked.c.type, asked.c.value))
    return exists(select(literal(1)).select_from(own).where(own.c.key == name, is_legal))


def _has_value_on_server(name: str, legal: Sequence[Value]) -> Condition:
    """Return the same condition by the values' text, which is canonical on both sides."""
    asked = func.json_array_elements(cast(literal(json.dumps(legal), Text), JSON)).column_valued("asked")
    own = cast(tables.Configuration.key, JSON).op("->")(name)
    return cast(own, Text).in_(select(cast(asked, Text)))


def everything_about(picked: CTE) -> AnySelect:
    """Select a `TrialRow`'s fields of the trials in `picked.trial_id`, under its names; of a problem, its columns."""
    won = type_coerce(tables.Comparison.document, JSON)["speed_ups"].label("won")
    query = select(*_PLAIN, *PROBLEM, won).select_from(picked)
    return with_parts(query.join(tables.Trial, tables.Trial.id == picked.c.trial_id))


def problem_in(row: Row[*tuple[Any, ...]]) -> Problem:
    """Return the problem of a row that has the columns `PROBLEM`."""
    return problem_of(row.problem_key, row.problem_dtype, row.problem_axes, row.problem_options)


def fields_of(row: Row[*tuple[Any, ...]], problems: dict[str, Problem]) -> dict[str, Any]:
    """Return a `TrialRow`'s fields from a row of `everything_about`.

    Args:
        problems: those of earlier rows by key, added to here."""
    if row.problem_key not in problems:
        problems[row.problem_key] = problem_in(row)
    return dict(zip(_PLAIN_NAMES, row, strict=False)) | {
        "problem": problems[row.problem_key],
        "status": member_of(TrialStatus, row.status),
        "configuration": configuration_of(row.configuration),
        "regime": None if row.regime is None else member_of(CacheRegime, row.regime),
        **{f"over_{baseline.value}": row.won and _ratio(row.won, baseline) for baseline in Baseline},
    }


def _ratio(won: Any, baseline: Baseline) -> Ratio | None:
    try:
        return ratio_of(won, baseline)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DatabaseError(
            f"the database holds {won!r:.80} as a comparison: it was not written by tunebench"
        ) from None
