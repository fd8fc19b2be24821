"""Databases of the revisions before the first release, 0001 to 0009: a table for every part of a result.

They are read in pages, so that a million trials are never in memory at once, and keep their numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

from sqlalchemy import Connection, TableClause, column, insert, inspect, select, text
from sqlalchemy import table as table_clause
from sqlalchemy.types import NullType

from tunebench.db.schema import tables
from tunebench.db.schema.columns import Json, Moment, Truth
from tunebench.db.schema.creation import create
from tunebench.db.schema.documents import build_columns, comparison_columns, trial_columns
from tunebench.db.schema.views import VIEWS

REVISIONS = tuple(f"{number:04}" for number in range(1, 10))

_PAGE = 500
_ASIDE = "older"
_SHARED = ("origins", "devices", "environments", "problems", "configurations", "studies", "misses")
"""Tables that are as they were, but for columns that some of the revisions did not have yet."""

_OTHERS = (
    *("builds", "build_figures", "verdicts", "verdict_stages", "measurements", "trials", "late_refusals"),
    *("comparisons", "contenders", "speed_ups"),
)
_TYPES = {
    **dict.fromkeys(("recorded_at", "concluded_at"), Moment()),
    **dict.fromkeys(("samples_ms", "missing_baselines"), Json()),
    **dict.fromkeys(("passed", "build_cached", "conclusive"), Truth()),
}

Row: TypeAlias = dict[str, Any]


def bring(connection: Connection) -> None:
    """Make the tables of today from those of an older revision, inside the connection's transaction.

    Raises:
        DatabaseError: a value is not of its column's kind.
    """
    older = _Older(connection)
    older.put_aside()
    create(connection, own_origin=False)
    for name in _SHARED:
        older.copy(name)
    older.convert("builds", tables.Build, older.builds)
    older.convert("trials", tables.Trial, older.trials)
    older.convert("comparisons", tables.Comparison, older.comparisons)
    older.go_on_counting()
    older.drop()


class _Older:
    """The tables of the older revision, which stand aside while those of today are filled."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sqlite = connection.dialect.name == "sqlite"
        there = set(inspect(connection).get_table_names())
        self._tables = [name for name in (*_SHARED, *_OTHERS) if f"tunebench_{name}" in there]

    def put_aside(self) -> None:
        """Rename the tables; what belongs to them by name would be in the way of today's, and goes."""
        run = self._connection.exec_driver_sql
        for view in reversed(VIEWS):
            run(f"DROP VIEW IF EXISTS {view}")
        run(f"DROP TABLE {tables.VERSION_TABLE}")
        if not self._sqlite:
            run(f"CREATE SCHEMA tunebench_{_ASIDE}")
            for name in self._tables:
                run(f"ALTER TABLE tunebench_{name} SET SCHEMA tunebench_{_ASIDE}")
            return
        named = [f"tunebench_{name}" for name in self._tables]
        query = "SELECT type, name, tbl_name FROM sqlite_master WHERE type IN ('trigger', 'index') AND sql IS NOT NULL"
        for kind, name, table in run(query).all():
            if table in named:
                run(f"DROP {kind} {name}")
        for name in named:
            run(f"ALTER TABLE {name} RENAME TO {_ASIDE}_{name}")

    def drop(self) -> None:
        """Remove the older tables."""
        if not self._sqlite:
            self._connection.exec_driver_sql(f"DROP SCHEMA tunebench_{_ASIDE} CASCADE")
            return
        for name in self._tables:
            self._connection.exec_driver_sql(f"DROP TABLE {_ASIDE}_tunebench_{name}")

    def copy(self, name: str) -> None:
        """Take a table over in the columns that there were."""
        if name not in self._tables:
            return
        older = self._table(name)
        names = [one.name for one in older.columns]
        target = tables.Base.metadata.tables[f"tunebench_{name}"]
        self._connection.execute(insert(target).from_select(names, select(*older.columns)))

    def convert(self, name: str, target: type[tables.Base], rows: Callable[[list[Row]], Iterator[Row]]) -> None:
        """Take a table over in pages, a row for each of its rows."""
        older, after = self._table(name), 0
        query = select(*older.columns).order_by(older.c.id).limit(_PAGE)
        while page := self._rows(query.where(older.c.id > after)):
            after = page[-1]["id"]
            self._connection.execute(insert(target), list(rows(page)))

    def builds(self, page: list[Row]) -> Iterator[Row]:
        figures = self._parts("build_figures", "build_id", [row["id"] for row in page])
        for row in page:
            document = {name: value for name, value in row.items() if name != "id"}
            document["figures"] = {one.pop("entry_point"): one for one in figures[row["id"]]}
            identity = ("id", "variant_digest", "compiler", "compiler_version", "code_sha256")
            yield {name: row[name] for name in identity} | build_columns(document) | {"document": document}

    def trials(self, page: list[Row]) -> Iterator[Row]:
        verdicts = self._by_id("verdicts", {row["verdict_id"] for row in page} - {None})
        stages = self._parts("verdict_stages", "verdict_id", verdicts)
        measurements = self._by_id("measurements", {row["measurement_id"] for row in page} - {None})
        refusals = self._parts("late_refusals", "trial_id", [row["id"] for row in page])
        for row in page:
            verdict, measurement = verdicts.get(row["verdict_id"]), measurements.get(row["measurement_id"])
            if verdict is not None:
                verdict["stages"] = stages[row["verdict_id"]]
                for stage in verdict["stages"]:
                    del stage["position"]
            if measurement is not None:
                del measurement["sample_count"]
            refusal = next(iter(refusals[row["id"]]), None)
            if refusal is not None:
                refusal["recorded_at"] = refusal["recorded_at"].isoformat()
            document = {
                "status": row["status"],
                "build_cached": row["build_cached"],
                "verdict": verdict and _finite(verdict),
                "measurement": measurement,
                "seconds": row["seconds"],
                "message": row["message"],
                "late_refusal": refusal,
            }
            kept = ("id", "study_id", "number", "configuration_id", "environment_id", "build_id", "recorded_at")
            yield {name: row[name] for name in kept} | trial_columns(document) | {"document": document}

    def comparisons(self, page: list[Row]) -> Iterator[Row]:
        numbers = [row["id"] for row in page]
        contenders = self._parts("contenders", "comparison_id", numbers)
        speed_ups = self._parts("speed_ups", "comparison_id", numbers)
        for row in page:
            kept = {name: row.pop(name) for name in ("id", "study_id", "configuration_id", "environment_id")}
            kept["concluded_at"] = row.pop("concluded_at")
            row.pop("conclusive", None)  # it was not there before 0009
            document = row | {
                "contenders": {
                    one["name"]: {"median_ms": one["median_ms"], "samples_ms": one["samples_ms"]}
                    for one in contenders[kept["id"]]
                },
                "speed_ups": {one.pop("baseline"): _finite(one) for one in speed_ups[kept["id"]]},
            }
            yield kept | comparison_columns(document) | {"document": document}

    def go_on_counting(self) -> None:
        """Numbers of rows that were pruned are not used again."""
        run = self._connection.exec_driver_sql
        if self._sqlite:
            for name, last in run(
                f"SELECT name, seq FROM sqlite_sequence WHERE name LIKE '{_ASIDE}\\_%' ESCAPE '\\'"
            ).all():
                table = name.removeprefix(f"{_ASIDE}_")
                run("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
                run("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, last))
            return
        for table in (f"tunebench_{name}" for name in self._tables):
            if table in tables.Base.metadata.tables and "id" in tables.Base.metadata.tables[table].columns:
                last = f"(SELECT last_value FROM tunebench_{_ASIDE}.{table}_id_seq)"
                called = f"(SELECT is_called FROM tunebench_{_ASIDE}.{table}_id_seq)"
                run(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), {last}, {called})")

    def _table(self, name: str) -> TableClause:
        """An older table with the columns that it has."""
        place = f"{_ASIDE}_tunebench_{name}" if self._sqlite else f"tunebench_{_ASIDE}.tunebench_{name}"
        names = self._connection.execute(text(f"SELECT * FROM {place} LIMIT 0")).keys()
        types = _TYPES | ({"seconds": Json()} if name == "trials" else {})
        columns = [column(one, types.get(one, NullType())) for one in names]
        if self._sqlite:
            return table_clause(place, *columns)
        return table_clause(f"tunebench_{name}", *columns, schema=f"tunebench_{_ASIDE}")

    def _rows(self, query: Any) -> list[Row]:
        return [dict(row) for row in self._connection.execute(query).mappings()]

    def _by_id(self, name: str, numbers: Collection[int]) -> dict[int, Row]:
        if not numbers:
            return {}
        older = self._table(name)
        return {row.pop("id"): row for row in self._rows(select(*older.columns).where(older.c.id.in_(numbers)))}

    def _parts(self, name: str, reference: str, numbers: Collection[int]) -> dict[int, list[Row]]:
        """Rows that belong to others, by the number of the row that they belong to."""
        found: dict[int, list[Row]] = defaultdict(list)
        if numbers and name in self._tables:
            older = self._table(name)
            query = select(*older.columns).where(older.c[reference].in_(numbers))
            for row in self._rows(query.order_by(*list(older.columns)[:2])):  # their primary key
                found[row.pop(reference)].append(row)
        return found


def _finite(values: Row) -> Row:
    """JSON has no infinity, so that a document has it as text."""
    return {
        name: ("Infinity" if value > 0 else "-Infinity") if isinstance(value, float) and math.isinf(value) else value
        for name, value in values.items()
    }
