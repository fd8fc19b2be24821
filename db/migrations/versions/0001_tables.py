"""The tables, whose rows are added and never changed or removed, and the database's own origin."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# What follows is not taken from the models: a revision stays what it was when it was released.

_TABLES = (
    "origins",
    "devices",
    "environments",
    "problems",
    "configurations",
    "studies",
    "builds",
    "build_figures",
    "verdicts",
    "verdict_stages",
    "measurements",
    "trials",
    "late_refusals",
    "comparisons",
    "contenders",
    "speed_ups",
)
_MESSAGE = "results are only ever added, never changed or removed"


def _columns(kind: Any, *names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=nullable) for name in names]


_whole = partial(_columns, sa.BigInteger().with_variant(sa.Integer(), "sqlite"))
_number = partial(_columns, sa.DOUBLE_PRECISION().with_variant(sa.REAL(), "sqlite"))
_truth = partial(_columns, sa.Boolean().with_variant(sa.Integer(), "sqlite"))
_words = partial(_columns, sa.Text())
_moment = partial(_columns, sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite"))
_json = partial(_columns, sa.JSON().with_variant(sa.Text(), "sqlite"))


def _conditions() -> list[sa.Column[Any]]:
    """The state of the device while a time was taken."""
    return [
        *_number("control_ms", nullable=True),
        *_whole("sm_clock_mhz", "memory_clock_mhz", "temperature_c", nullable=True),
        *_words("throttle_reasons", nullable=True),
        *_whole("foreign_processes", nullable=True),
    ]


def _create(
    name: str,
    *columns: list[sa.Column[Any]],
    key: str = "id",
    checks: Mapping[str, str] | None = None,
    references: Mapping[str, str] | None = None,
    identity: str = "",
    unique: Sequence[str] = (),
    **options: bool,
) -> sa.Table:
    """Create a table.

    Args:
        key, identity, unique: names of columns, with blanks between them; `identity` is what names a row's constraint.
        checks: by the end of their names.
        references: by the columns here, the other table and its columns.
    """
    table = f"tunebench_{name}"
    constraints: list[sa.schema.SchemaItem] = [
        sa.CheckConstraint(text, name=op.f(f"ck_{table}_{end}")) for end, text in (checks or {}).items()
    ]
    for ours, target in (references or {}).items():
        other, *theirs = target.split()
        there = [f"tunebench_{other}.{column}" for column in theirs]
        constraints.append(sa.ForeignKeyConstraint(ours.split(), there, name=f"fk_{table}_{ours.replace(' ', '_')}"))
    constraints.append(sa.PrimaryKeyConstraint(*key.split(), name=f"pk_{table}"))
    for group in unique:
        constraints.append(sa.UniqueConstraint(*group.split(), name=f"uq_{table}_{group.replace(' ', '_')}"))
    if identity:
        constraints.append(sa.UniqueConstraint(*identity.split(), name=f"uq_{table}_identity"))
    return op.create_table(table, *chain.from_iterable(columns), *constraints, sqlite_strict=True, **options)


def _index(table: str, *columns: str, name: str = "", of_correct: bool = False) -> None:
    """Create an index, of correct trials alone where that is asked for."""
    some = sa.text("status = 'correct'") if of_correct else None
    full_name = f"ix_tunebench_{table}_{name or '_'.join(columns)}"
    op.create_index(full_name, f"tunebench_{table}", columns, sqlite_where=some, postgresql_where=some)


def upgrade() -> None:
    """Create the tables and their triggers, and the row of the database's own origin."""
    _create(
        "builds",
        _whole("id"),
        _words("variant_digest", "compiler", "compiler_version", "code_sha256"),
        _whole("code_bytes"),
        _words("log"),
        _number("seconds"),
        checks={"compiler": "compiler IN ('nvrtc', 'cpu', 'inline')", "sizes": "code_bytes >= 0 AND seconds >= 0"},
        identity="variant_digest compiler compiler_version code_sha256",
    )
    _index("builds", "code_sha256")
    _create(
        "configurations",
        _whole("id"),
        _words("key"),
        unique=["key"],
    )
    _create(
        "devices",
        _whole("id"),
        _words("digest", "kind", "name", "architecture", "uuid"),
        _whole(
            "multiprocessors",
            "memory_bytes",
            "l2_bytes",
            "max_threads_per_block",
            "max_shared_bytes",
            "max_threads_per_multiprocessor",
            "warp_size",
        ),
        checks={
            "kind": "kind IN ('cuda', 'cpu')",
            "positive_limits": "multiprocessors > 0 AND memory_bytes > 0 AND warp_size > 0",
        },
        unique=["digest"],
    )
    _index("devices", "name", "architecture")
    _create(
        "environments",
        _whole("id"),
        _words("digest", "tunebench", "python", "torch"),
        _words("cuda", "driver", nullable=True),
        _words("compiler", "platform", "host"),
        _whole("sm_clock_mhz", "memory_clock_mhz", "power_limit_w", nullable=True),
        _words("throttle", nullable=True),
        unique=["digest"],
    )
    _create(
        "measurements",
        _whole("id"),
        _number("median_ms", "low_ms", "high_ms"),
        _words("regime", "clock"),
        _whole("sample_count"),
        _json("samples_ms"),
        _conditions(),
        checks={
            "regime": "regime IN ('cold', 'warm')",
            "interval": "low_ms > 0 AND low_ms <= median_ms AND median_ms <= high_ms",
            "samples": "sample_count > 0 AND json_array_length(samples_ms) = sample_count",
        },
        unique=["id median_ms regime"],
    )
    origins = _create(
        "origins",
        _whole("id"),
        _words("uid"),
        _moment("created_at"),
        unique=["uid"],
    )
    _create(
        "problems",
        _whole("id"),
        _words("key", "dtype"),
        _json("axes", "options"),
        unique=["key"],
    )
    _create(
        "verdicts",
        _whole("id"),
        _truth("passed"),
        _words("reason"),
        _number(
            "tolerance",
            "max_absolute",
            "max_relative",
            "relative_norm",
            "reference_max_relative",
            "reference_relative_norm",
            nullable=True,
        ),
        _whole("first_wrong_index", "untouched", nullable=True),
        checks={
            "refusal_has_reason": "passed = (reason = '')",
            "counts": "first_wrong_index >= 0 AND untouched >= 0",
            "passed": "passed IN (true, false)",
            "figures_together": "untouched IS NOT NULL OR "
            "(max_absolute IS NULL AND max_relative IS NULL AND relative_norm IS NULL "
            "AND reference_max_relative IS NULL AND reference_relative_norm IS NULL AND first_wrong_index IS NULL)",
        },
        unique=["id passed"],
    )
    _create(
        "build_figures",
        _whole("build_id"),
        _words("entry_point"),
        _whole("registers", "spill_stores", "spill_loads", "stack", "shared", nullable=True),
        key="build_id entry_point",
        checks={"sizes": "registers >= 0 AND spill_stores >= 0 AND spill_loads >= 0 AND stack >= 0 AND shared >= 0"},
        references={"build_id": "builds id"},
        sqlite_with_rowid=False,
    )
    _create(
        "studies",
        _whole("id", "origin_id"),
        _words("kernel", "source_digest", "space_digest"),
        _whole("problem_id", "device_id"),
        _words("compiler", "sampler"),
        _whole("seed"),
        _moment("begun_at"),
        _json("warm_starts", nullable=True),
        checks={"compiler": "compiler IN ('nvrtc', 'cpu', 'inline')", "kernel_named": "kernel <> ''"},
        references={"device_id": "devices id", "origin_id": "origins id", "problem_id": "problems id"},
        identity="kernel source_digest problem_id device_id compiler space_digest sampler seed origin_id",
        sqlite_autoincrement=True,
    )
    _index("studies", "device_id")
    _index("studies", "problem_id")
    _create(
        "verdict_stages",
        _whole("verdict_id", "position"),
        _words("name"),
        _truth("passed"),
        _number("seconds"),
        _words("detail"),
        key="verdict_id position",
        checks={"passed": "passed IN (true, false)", "position": "position >= 0"},
        references={"verdict_id": "verdicts id"},
        sqlite_with_rowid=False,
    )
    _create(
        "trials",
        _whole("id", "study_id", "number", "configuration_id", "environment_id"),
        _words("status"),
        _whole("build_id", nullable=True),
        _truth("build_cached", nullable=True),
        _whole("verdict_id", nullable=True),
        _truth("verdict_passed", nullable=True),
        _whole("measurement_id", nullable=True),
        _number("median_ms", nullable=True),
        _words("regime", nullable=True),
        _moment("recorded_at"),
        _json("seconds"),
        _words("message"),
        checks={
            "refused_by_verdict": "(status = 'correctness') = (verdict_passed IS NOT NULL AND NOT verdict_passed)",
            "timed_has_measurement": "(status IN ('correct', 'pruned')) = (measurement_id IS NOT NULL)",
            "timed_has_passed": "NOT (status IN ('correct', 'pruned')) "
            "OR (verdict_passed IS NOT NULL AND verdict_passed)",
            "failure_says_why": "status IN ('correct', 'pruned') OR message <> ''",
            "status": "status IN ('correct', 'pruned', 'constraints', 'compile', 'runtime', 'correctness', 'timeout')",
            "build_cached": "(build_id IS NULL) = (build_cached IS NULL)",
            "measurement_repeated": "(measurement_id IS NULL) = (median_ms IS NULL) "
            "AND (measurement_id IS NULL) = (regime IS NULL)",
            "verdict_repeated": "(verdict_id IS NULL) = (verdict_passed IS NULL)",
            "number": "number >= 0",
        },
        references={
            "build_id": "builds id",
            "configuration_id": "configurations id",
            "environment_id": "environments id",
            "measurement_id median_ms regime": "measurements id median_ms regime",
            "study_id": "studies id",
            "verdict_id verdict_passed": "verdicts id passed",
        },
        unique=["measurement_id", "configuration_id study_id", "study_id number", "verdict_id"],
        sqlite_autoincrement=True,
    )
    _index("trials", "study_id", "regime", "median_ms", "id", name="fastest", of_correct=True)
    _index("trials", "median_ms", "id", "study_id", name="by_time", of_correct=True)
    _index("trials", "recorded_at")
    _index("trials", "study_id", "status", "number")
    _create(
        "comparisons",
        _whole("id", "study_id", "configuration_id", "environment_id"),
        _moment("concluded_at"),
        _json("missing_baselines", nullable=True),
        _conditions(),
        references={
            "environment_id": "environments id",
            "study_id configuration_id": "trials study_id configuration_id",
        },
        sqlite_autoincrement=True,
    )
    _index("comparisons", "study_id", "configuration_id")
    _create(
        "contenders",
        _whole("comparison_id"),
        _words("name"),
        _number("median_ms"),
        _whole("sample_count"),
        _json("samples_ms"),
        key="comparison_id name",
        checks={
            "median": "median_ms > 0",
            "samples": "sample_count > 0 AND json_array_length(samples_ms) = sample_count",
        },
        references={"comparison_id": "comparisons id"},
        sqlite_with_rowid=False,
    )
    _create(
        "speed_ups",
        _whole("comparison_id"),
        _words("baseline"),
        _number("ratio", "low", "high"),
        _whole("rounds"),
        _number("confidence"),
        key="comparison_id baseline",
        checks={
            "interval": "low > 0 AND low <= ratio AND ratio <= high",
            "rounds": "rounds > 0 AND confidence > 0 AND confidence < 1",
        },
        references={"comparison_id": "comparisons id"},
        sqlite_with_rowid=False,
    )
    _create(
        "late_refusals",
        _whole("trial_id"),
        _words("stage"),
        _number("seconds"),
        _words("detail"),
        _moment("recorded_at"),
        key="trial_id",
        checks={"says_why": "stage <> '' AND detail <> ''"},
        references={"trial_id": "trials id"},
    )
    _add_own_origin(origins)
    _refuse_changes()


def _add_own_origin(origins: sa.Table) -> None:
    now = datetime.now(UTC)
    own = {"id": 1, "uid": uuid.uuid4().hex, "created_at": now}
    if op.get_bind().dialect.name == "sqlite":
        own["created_at"] = now.isoformat(timespec="microseconds")
    op.bulk_insert(origins, [own])
    if op.get_bind().dialect.name == "postgresql":
        # The row was written with its number, which the sequence does not know of.
        op.execute("SELECT setval(pg_get_serial_sequence('tunebench_origins', 'id'), max(id)) FROM tunebench_origins")


def _refuse_changes() -> None:
    """Refuse UPDATE and DELETE on every table.

    A program that removes results on purpose lifts this inside its own transaction: on SQLite it drops the table's
    triggers and creates them again from their text in `sqlite_schema`, on PostgreSQL it disables and enables them. Both
    roll back with the transaction. A migration that rebuilds a table on SQLite has to create its triggers again.
    """
    sqlite = op.get_bind().dialect.name == "sqlite"
    if not sqlite:
        op.execute(
            "CREATE FUNCTION tunebench_refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{_MESSAGE}'; END $$"
        )
    for table in _TABLES:
        if not sqlite:
            op.execute(
                f"CREATE TRIGGER tunebench_{table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE "
                f"ON tunebench_{table} FOR EACH STATEMENT EXECUTE FUNCTION tunebench_refuse()"
            )
            continue
        for deed in ("update", "delete"):
            op.execute(
                f"CREATE TRIGGER tunebench_{table}_no_{deed} BEFORE {deed.upper()} ON tunebench_{table} "
                f"BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END"
            )
