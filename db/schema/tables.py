"""The results database as tables: documents, with what is asked of them in typed columns beside.

Tables carry the prefix `tunebench_` because Optuna's own `studies` and `trials` live in the same database. Invariants
are constraints, so that no program can write a row that breaks them; rows are only ever added (triggers refuse UPDATE
and DELETE, see `schema.creation`). A change here needs another revision and a step that brings older databases to it:
a test says so.

A trial, a build and a comparison are documents (JSON): a fact more needs no column. Beside each stand columns for what
SQL asks, which the writer takes from the document. They are plain ones and not generated, because SQLite reads a number
in JSON to 15 digits only, and its versions disagree on whether a view may look into JSON where the schema is not
trusted. What many rows share, and what rankings and filters of a million trials go by, are rows of their own: problems,
devices, environments, configurations. A document is the last column, so that what stands before it is read without it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from types import NoneType
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, MetaData, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine

from tunebench.db.schema.columns import KEY, Json, JsonValue, Moment, Number, Truth, Whole, Words
from tunebench.tuner import environment
from tunebench.tuner.build import CompilerName
from tunebench.tuner.device import DeviceKind
from tunebench.tuner.result import Baseline, CacheRegime, TrialStatus

TABLE_PREFIX = "tunebench_"
VERSION_TABLE = "tunebench_version"

REVISION = "0010"
"""Revision of the schema of these tables and views."""

OVER = tuple(f"over_{baseline.value}" for baseline in Baseline)
"""The columns of speed-ups; each has its interval in `_low` and `_high`."""

OWN_ORIGIN = 1
"""The `tunebench_origins` row of the database itself, written when it is created."""

_STRICT = {"sqlite_strict": True}
# Numbers are never used again after a row is pruned: the Optuna copy of a study refers to trials by them.
_LASTING = {"sqlite_strict": True, "sqlite_autoincrement": True}

Identity = Annotated[int, mapped_column(KEY, primary_key=True)]


def _one_of(column: str, names: Iterable[StrEnum]) -> str:
    return f"{column} IN ({', '.join(repr(name.value) for name in names)})"


_TIMED = _one_of("status", (status for status in TrialStatus if status.timed))


_COLUMN_TYPES: dict[Any, TypeEngine[Any]] = {
    str: Words(),
    int: Whole(),
    float: Number(),
    bool: Truth(),
    datetime: Moment(),
}


class Base(DeclarativeBase):
    """Root of the tables."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = _COLUMN_TYPES


class Origin(Base):
    """A database that studies began in; row 1 is this database. Merged studies keep their origin, hence their identity.

    Attributes:
        uid: 32 hexadecimal digits, drawn when that database was created.
    """

    __tablename__ = "tunebench_origins"
    __table_args__ = (UniqueConstraint("uid"), _STRICT)

    id: Mapped[Identity]
    uid: Mapped[str]
    created_at: Mapped[datetime]


class Device(Base):
    """A device and its limits, as `tunebench.tuner.device.Device` has them.

    The CUDA index is left out: it is where the card sits today, not what it is.

    Attributes:
        digest: SHA-256 of all other columns but `id`; the row's identity in every database.
    """

    __tablename__ = "tunebench_devices"
    __table_args__ = (
        UniqueConstraint("digest"),
        CheckConstraint(_one_of("kind", DeviceKind), name="kind"),
        CheckConstraint("multiprocessors > 0 AND memory_bytes > 0 AND warp_size > 0", name="positive_limits"),
        Index(None, "name", "architecture"),
        _STRICT,
    )

    id: Mapped[Identity]
    digest: Mapped[str]
    kind: Mapped[str]
    name: Mapped[str]
    architecture: Mapped[str]
    uuid: Mapped[str]
    multiprocessors: Mapped[int]
    memory_bytes: Mapped[int]
    l2_bytes: Mapped[int]
    max_threads_per_block: Mapped[int]
    max_shared_bytes: Mapped[int]
    max_threads_per_multiprocessor: Mapped[int]
    warp_size: Mapped[int]


class Environment(Base):
    """Software and machine: a column for every attribute of `tunebench.tuner.environment.Environment`.

    Attributes:
        digest: SHA-256 of all other columns but `id`; the row's identity in every database.
    """

    __tablename__ = "tunebench_environments"
    __table_args__ = (UniqueConstraint("digest"), _STRICT)

    id: Mapped[Identity]
    digest: Mapped[str]


for _name, _kind in get_type_hints(environment.Environment).items():
    _types = [one for one in get_args(_kind) or (_kind,) if one is not NoneType]
    setattr(Environment, _name, mapped_column(_COLUMN_TYPES[_types[0]], nullable=NoneType in get_args(_kind)))

ENVIRONMENT_COLUMNS = {
    "compiler_version" if name == "compiler" else name: Environment.__table__.c[name]
    for name in get_type_hints(environment.Environment)
}
"""The columns of an environment as questions call them: a study's `compiler` is which one, this is its version."""


def digested_columns(table: type[Device | Environment]) -> list[str]:
    """The columns that such a row's digest is made of."""
    return [column.name for column in table.__table__.columns if column.name not in ("id", "digest")]


def digest_of(table: type[Device | Environment], value: object) -> str:
    """The digest of the row that has a value's attributes in its columns of the same names.

    What is NULL is left out, so that a row keeps its digest when its table gets another column.
    """
    parts = {name: getattr(value, name) for name in digested_columns(table)}
    known = {name: part for name, part in parts.items() if part is not None}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


class Problem(Base):
    """A problem.

    Attributes:
        key: `Problem.key`, the identity; `dtype`, `axes` and `options` are its parts, for queries.
    """

    __tablename__ = "tunebench_problems"
    __table_args__ = (UniqueConstraint("key"), _STRICT)

    id: Mapped[Identity]
    key: Mapped[str]
    dtype: Mapped[str]
    axes: Mapped[JsonValue] = mapped_column(Json)
    options: Mapped[JsonValue] = mapped_column(Json)


class Configuration(Base):
    """A configuration; the same one is tried in many studies.

    Attributes:
        key: `Configuration.key`: canonical JSON, which both databases' JSON operators read.
    """

    __tablename__ = "tunebench_configurations"
    __table_args__ = (UniqueConstraint("key"), _STRICT)

    id: Mapped[Identity]
    key: Mapped[str]


class Study(Base):
    """A study, identified by everything in its description and by the database it began in.

    Attributes:
        warm_starts: JSON array of the configurations that it began with because of earlier results, each with its
            origin in words; empty where it began without, NULL where that was not recorded yet.
    """

    __tablename__ = "tunebench_studies"
    __table_args__ = (
        # Problem and device stand first so that the index behind the constraint also serves the search by them.
        UniqueConstraint(
            "kernel",
            "source_digest",
            "problem_id",
            "device_id",
            "compiler",
            "space_digest",
            "sampler",
            "seed",
            "origin_id",
            name="uq_tunebench_studies_identity",
        ),
        CheckConstraint(_one_of("compiler", CompilerName), name="compiler"),
        CheckConstraint("kernel <> ''", name="kernel_named"),
        Index(None, "device_id"),
        Index(None, "problem_id"),
        _LASTING,
    )

    id: Mapped[Identity]
    origin_id: Mapped[int] = mapped_column(ForeignKey(Origin.id))
    kernel: Mapped[str]
    source_digest: Mapped[str]
    space_digest: Mapped[str]
    problem_id: Mapped[int] = mapped_column(ForeignKey(Problem.id))
    device_id: Mapped[int] = mapped_column(ForeignKey(Device.id))
    compiler: Mapped[str]
    sampler: Mapped[str]
    seed: Mapped[int]
    begun_at: Mapped[datetime]
    warm_starts: Mapped[JsonValue] = mapped_column(Json, nullable=True)


class Build(Base):
    """A compiled variant without its binary; trials that share a binary share the row.

    Attributes:
        code_sha256: digest of the binary.
        registers, spill_bytes, shared_bytes, seconds: from the document, see `schema.documents`.
        document: `tunebench.tuner.build.BuildRecord`: the compiler's full output, and its figures of each entry
            point.
    """

    __tablename__ = "tunebench_builds"
    __table_args__ = (
        UniqueConstraint(
            "variant_digest", "compiler", "compiler_version", "code_sha256", name="uq_tunebench_builds_identity"
        ),
        CheckConstraint(_one_of("compiler", CompilerName), name="compiler"),
        CheckConstraint("seconds >= 0 AND registers >= 0 AND spill_bytes >= 0 AND shared_bytes >= 0", name="sizes"),
        Index(None, "code_sha256"),
        _STRICT,
    )

    id: Mapped[Identity]
    variant_digest: Mapped[str]
    compiler: Mapped[str]
    compiler_version: Mapped[str]
    code_sha256: Mapped[str]
    registers: Mapped[int | None]
    spill_bytes: Mapped[int | None]
    shared_bytes: Mapped[int | None]
    seconds: Mapped[float]
    document: Mapped[JsonValue] = mapped_column(Json)


class Trial(Base):
    """One configuration tried in a study: a document, with what is asked for by SQL in columns beside it.

    A correct trial may be refused by a stage of the gate that is asked later. That is the one change that a row allows:
    its status becomes `correctness`, and the document keeps what was measured before.

    Attributes:
        environment_id: in force when the trial ran; a study may be resumed under a newer driver.
        status to message: how the trial stands, from the document, see `schema.documents`.
        document: `tunebench.db.entries.entry.RecordedTrial` but for what is shared with other trials.
    """

    __tablename__ = "tunebench_trials"
    __table_args__ = (
        UniqueConstraint("study_id", "number"),
        # In this order the index also finds the trials of a configuration.
        UniqueConstraint("configuration_id", "study_id"),
        CheckConstraint(_one_of("status", TrialStatus), name="status"),
        CheckConstraint("number >= 0", name="number"),
        CheckConstraint(f"({_TIMED}) = (median_ms IS NOT NULL)", name="timed_has_median"),
        CheckConstraint(
            "(median_ms IS NULL) = (low_ms IS NULL) AND (median_ms IS NULL) = (high_ms IS NULL) "
            "AND (median_ms IS NULL) = (regime IS NULL) AND (median_ms IS NULL) = (clock IS NULL) "
            "AND (median_ms IS NULL) = (sample_count IS NULL)",
            name="measured_together",
        ),
        CheckConstraint("low_ms > 0 AND low_ms <= median_ms AND median_ms <= high_ms", name="interval"),
        CheckConstraint(_one_of("regime", CacheRegime), name="regime"),
        CheckConstraint("sample_count > 0", name="samples"),
        CheckConstraint(f"{_TIMED} OR message <> ''", name="failure_says_why"),
        # A study's fastest correct trial in one cache regime is one step into this index. On PostgreSQL, too, it is of
        # correct trials alone: `schema.creation` says so, since to say it here imports that dialect for every command.
        Index(
            "ix_tunebench_trials_fastest",
            "study_id",
            "regime",
            "median_ms",
            "id",
            sqlite_where=text("status = 'correct'"),
        ),
        # The fastest of all, and of many studies: a walk that ends at the limit.
        Index(
            "ix_tunebench_trials_by_time",
            "median_ms",
            "id",
            "study_id",
            sqlite_where=text("status = 'correct'"),
        ),
        # Behind its key with all that `leaderboard` sorts by, so that it reads no row, whose document may be long.
        Index(
            "ix_tunebench_trials_by_status",
            *("study_id", "status", "number", "configuration_id", "regime", "median_ms"),
        ),
        Index(None, "recorded_at"),
        _LASTING,
    )

    id: Mapped[Identity]
    study_id: Mapped[int] = mapped_column(ForeignKey(Study.id))
    number: Mapped[int]
    configuration_id: Mapped[int] = mapped_column(ForeignKey(Configuration.id))
    environment_id: Mapped[int] = mapped_column(ForeignKey(Environment.id))
    build_id: Mapped[int | None] = mapped_column(ForeignKey(Build.id))
    recorded_at: Mapped[datetime]
    status: Mapped[str]
    median_ms: Mapped[float | None]
    low_ms: Mapped[float | None]
    high_ms: Mapped[float | None]
    regime: Mapped[str | None]
    clock: Mapped[str | None]
    sample_count: Mapped[int | None]
    max_relative_error: Mapped[float | None]
    tolerance: Mapped[float | None]
    message: Mapped[str]
    document: Mapped[JsonValue] = mapped_column(Json)


class Comparison(Base):
    """The interleaved comparison that ended a study; a study that went on has several.

    The newest conclusive one counts.

    Attributes:
        configuration_id: the best, which is a trial of the study.
        concluded_at: never before that of an earlier one of the same kernel and problem, although the clock go back.
        conclusive: its rounds say how the best compares with the reference; where not, they confirm nothing.
        best_ms, over_BASELINE: the best's median, and how many times faster it is, from the document, see
            `schema.documents`.
        document: `tunebench.db.entries.entry.RecordedComparison` but for its environment and moment.
    """

    __tablename__ = "tunebench_comparisons"
    __table_args__ = (
        ForeignKeyConstraint(["study_id", "configuration_id"], [Trial.study_id, Trial.configuration_id]),
        *(
            CheckConstraint(f"{name}_low > 0 AND {name}_low <= {name} AND {name} <= {name}_high", name=name)
            for name in OVER
        ),
        # All that rankings ask, so that they read no document, and in the order in which a trial's newest comes first.
        Index(
            "ix_tunebench_comparisons_won",
            *("study_id", "configuration_id", "conclusive", "concluded_at", "id", "environment_id"),
        ),
        _LASTING,
    )

    id: Mapped[Identity]
    study_id: Mapped[int]
    configuration_id: Mapped[int]
    environment_id: Mapped[int] = mapped_column(ForeignKey(Environment.id))
    concluded_at: Mapped[datetime]
    conclusive: Mapped[bool]
    best_ms: Mapped[float | None]
    over_reference: Mapped[float | None]
    over_reference_low: Mapped[float | None]
    over_reference_high: Mapped[float | None]
    over_default: Mapped[float | None]
    over_default_low: Mapped[float | None]
    over_default_high: Mapped[float | None]
    over_compiled: Mapped[float | None]
    over_compiled_low: Mapped[float | None]
    over_compiled_high: Mapped[float | None]
    over_copy: Mapped[float | None]
    over_copy_low: Mapped[float | None]
    over_copy_high: Mapped[float | None]
    document: Mapped[JsonValue] = mapped_column(Json)


class Miss(Base):
    """A problem of a kernel that was served without evidence on a kind of device, and in how many calls.

    Counts are not results: these rows are changed, and neither merged nor exported.

    Attributes:
        path: of the kernel's folder or file.
        served: what served it in the latest of them, and why: a duel's scores; NULL of calls before that was kept.
    """

    __tablename__ = "tunebench_misses"
    __table_args__ = (
        UniqueConstraint(
            "kernel", "source_digest", "problem_id", "device", "architecture", name="uq_tunebench_misses_identity"
        ),
        CheckConstraint("calls > 0", name="calls"),
        _STRICT,
    )

    id: Mapped[Identity]
    kernel: Mapped[str]
    source_digest: Mapped[str]
    path: Mapped[str]
    problem_id: Mapped[int] = mapped_column(ForeignKey(Problem.id))
    device: Mapped[str]
    architecture: Mapped[str]
    calls: Mapped[int]
    first_at: Mapped[datetime]
    last_at: Mapped[datetime]
    served: Mapped[str | None]
