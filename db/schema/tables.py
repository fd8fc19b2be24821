"""The results database as typed tables: everything that a result depends on is a column.

Tables carry the prefix `tunebench_` because Optuna's own `studies` and `trials` live in the same database. Invariants
are constraints, so that no program can write a row that breaks them; rows are only ever added (triggers refuse UPDATE
and DELETE, see the migrations). A change here needs a migration: a test compares the two.

A verdict and a measurement are written before the trial that they belong to, which refers to them. The check
constraints of one row, the trial's, can then say exactly when each exists; `verdict_passed`, `median_ms` and `regime`
are repeated in the trial for its constraints and for the index behind "best", and composite foreign keys keep them
equal to the original.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from types import NoneType
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, MetaData, UniqueConstraint, text, true
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine

from tunebench.db.schema.columns import KEY, Json, JsonValue, Moment, Number, Truth, Whole, Words
from tunebench.tuner import environment
from tunebench.tuner.build import CompilerName
from tunebench.tuner.device import DeviceKind
from tunebench.tuner.result import CacheRegime, TrialStatus

TABLE_PREFIX = "tunebench_"
VERSION_TABLE = "tunebench_version"

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
        code_sha256, code_bytes: digest and size of the binary.
        log: the compiler's full output.
        seconds: what compiling took when it was made.
    """

    __tablename__ = "tunebench_builds"
    __table_args__ = (
        UniqueConstraint(
            "variant_digest", "compiler", "compiler_version", "code_sha256", name="uq_tunebench_builds_identity"
        ),
        CheckConstraint(_one_of("compiler", CompilerName), name="compiler"),
        CheckConstraint("code_bytes >= 0 AND seconds >= 0", name="sizes"),
        Index(None, "code_sha256"),
        _STRICT,
    )

    id: Mapped[Identity]
    variant_digest: Mapped[str]
    compiler: Mapped[str]
    compiler_version: Mapped[str]
    code_sha256: Mapped[str]
    code_bytes: Mapped[int]
    log: Mapped[str]
    seconds: Mapped[float]


class BuildFigures(Base):
    """What the compiler's log says of one entry point of a build; NULL where that compiler does not say.

    Attributes:
        registers: registers a thread.
        spill_stores, spill_loads, stack: bytes a thread.
        shared: static shared memory, bytes a block.
    """

    __tablename__ = "tunebench_build_figures"
    __table_args__ = (
        CheckConstraint(
            "registers >= 0 AND spill_stores >= 0 AND spill_loads >= 0 AND stack >= 0 AND shared >= 0", name="sizes"
        ),
        {"sqlite_strict": True, "sqlite_with_rowid": False},
    )

    build_id: Mapped[int] = mapped_column(ForeignKey(Build.id), primary_key=True)
    entry_point: Mapped[str] = mapped_column(primary_key=True)
    registers: Mapped[int | None]
    spill_stores: Mapped[int | None]
    spill_loads: Mapped[int | None]
    stack: Mapped[int | None]
    shared: Mapped[int | None]


class Verdict(Base):
    """The outcome of the correctness gate.

    Attributes:
        max_absolute to untouched: the error figures, all NULL where no output could be compared; a figure that is NULL
            beside an `untouched` that is not was not a number.
    """

    __tablename__ = "tunebench_verdicts"
    __table_args__ = (
        UniqueConstraint("id", "passed"),
        CheckConstraint("passed IN (true, false)", name="passed"),
        CheckConstraint("passed = (reason = '')", name="refusal_has_reason"),
        CheckConstraint(
            "untouched IS NOT NULL OR (max_absolute IS NULL AND max_relative IS NULL AND relative_norm IS NULL AND "
            "reference_max_relative IS NULL AND reference_relative_norm IS NULL AND first_wrong_index IS NULL)",
            name="figures_together",
        ),
        CheckConstraint("first_wrong_index >= 0 AND untouched >= 0", name="counts"),
        _STRICT,
    )

    id: Mapped[Identity]
    passed: Mapped[bool]
    reason: Mapped[str]
    tolerance: Mapped[float | None]
    max_absolute: Mapped[float | None]
    max_relative: Mapped[float | None]
    relative_norm: Mapped[float | None]
    reference_max_relative: Mapped[float | None]
    reference_relative_norm: Mapped[float | None]
    first_wrong_index: Mapped[int | None]
    untouched: Mapped[int | None]


class VerdictStage(Base):
    """One step of the gate, in the order taken. Rows, so that "which stage refuses what" is a query."""

    __tablename__ = "tunebench_verdict_stages"
    __table_args__ = (
        CheckConstraint("passed IN (true, false)", name="passed"),
        CheckConstraint("position >= 0", name="position"),
        {"sqlite_strict": True, "sqlite_with_rowid": False},
    )

    verdict_id: Mapped[int] = mapped_column(ForeignKey(Verdict.id), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    passed: Mapped[bool]
    seconds: Mapped[float]
    detail: Mapped[str]


class _Conditions:
    """The state of the device while a time was taken, in the words of `tunebench.tuner.result.Conditions`."""

    control_ms: Mapped[float | None]
    sm_clock_mhz: Mapped[int | None]
    memory_clock_mhz: Mapped[int | None]
    temperature_c: Mapped[int | None]
    throttle_reasons: Mapped[str | None]
    foreign_processes: Mapped[int | None]


class Measurement(_Conditions, Base):
    """A configuration's time.

    Attributes:
        samples_ms: JSON array of every sample in the order taken, milliseconds. A row a sample would be tens of
            millions of rows; PostgreSQL's arrays do not exist on SQLite; a packed blob is closed to SQL. A JSON array
            is read by both databases' own functions (`json_each`, `json_array_elements`) and keeps every bit.
        median_ms, low_ms, high_ms: the median and its 95 % interval.
    """

    __tablename__ = "tunebench_measurements"
    __table_args__ = (
        UniqueConstraint("id", "median_ms", "regime"),
        CheckConstraint(_one_of("regime", CacheRegime), name="regime"),
        CheckConstraint("low_ms > 0 AND low_ms <= median_ms AND median_ms <= high_ms", name="interval"),
        CheckConstraint("sample_count > 0 AND json_array_length(samples_ms) = sample_count", name="samples"),
        _STRICT,
    )

    id: Mapped[Identity]
    median_ms: Mapped[float]
    low_ms: Mapped[float]
    high_ms: Mapped[float]
    regime: Mapped[str]
    clock: Mapped[str]
    sample_count: Mapped[int]
    samples_ms: Mapped[JsonValue] = mapped_column(Json)


class Trial(Base):
    """One configuration tried in a study.

    Attributes:
        environment_id: in force when the trial ran; a study may be resumed under a newer driver.
        build_cached: the build came from the cache.
        seconds: JSON object of what each phase took.
    """

    __tablename__ = "tunebench_trials"
    __table_args__ = (
        UniqueConstraint("study_id", "number"),
        # In this order the index also finds the trials of a configuration.
        UniqueConstraint("configuration_id", "study_id"),
        UniqueConstraint("measurement_id"),
        UniqueConstraint("verdict_id"),
        ForeignKeyConstraint(
            ["measurement_id", "median_ms", "regime"],
            [Measurement.id, Measurement.median_ms, Measurement.regime],
        ),
        ForeignKeyConstraint(["verdict_id", "verdict_passed"], [Verdict.id, Verdict.passed]),
        CheckConstraint(_one_of("status", TrialStatus), name="status"),
        CheckConstraint("number >= 0", name="number"),
        CheckConstraint(f"({_TIMED}) = (measurement_id IS NOT NULL)", name="timed_has_measurement"),
        CheckConstraint(
            "(measurement_id IS NULL) = (median_ms IS NULL) AND (measurement_id IS NULL) = (regime IS NULL)",
            name="measurement_repeated",
        ),
        CheckConstraint("(verdict_id IS NULL) = (verdict_passed IS NULL)", name="verdict_repeated"),
        CheckConstraint(f"NOT ({_TIMED}) OR (verdict_passed IS NOT NULL AND verdict_passed)", name="timed_has_passed"),
        CheckConstraint(
            "(status = 'correctness') = (verdict_passed IS NOT NULL AND NOT verdict_passed)", name="refused_by_verdict"
        ),
        CheckConstraint(f"{_TIMED} OR message <> ''", name="failure_says_why"),
        CheckConstraint("(build_id IS NULL) = (build_cached IS NULL)", name="build_cached"),
        # A study's fastest correct trial in one cache regime is one step into this index. On PostgreSQL, too, it is of
        # correct trials alone; only the migration says so, since to say it here imports that dialect for every command.
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
        Index(None, "study_id", "status", "number"),
        Index(None, "recorded_at"),
        _LASTING,
    )

    id: Mapped[Identity]
    study_id: Mapped[int] = mapped_column(ForeignKey(Study.id))
    number: Mapped[int]
    configuration_id: Mapped[int] = mapped_column(ForeignKey(Configuration.id))
    environment_id: Mapped[int] = mapped_column(ForeignKey(Environment.id))
    status: Mapped[str]
    build_id: Mapped[int | None] = mapped_column(ForeignKey(Build.id))
    build_cached: Mapped[bool | None]
    verdict_id: Mapped[int | None]
    verdict_passed: Mapped[bool | None]
    measurement_id: Mapped[int | None]
    median_ms: Mapped[float | None]
    regime: Mapped[str | None]
    recorded_at: Mapped[datetime]
    seconds: Mapped[JsonValue] = mapped_column(Json)
    message: Mapped[str]


class LateRefusal(Base):
    """A trial that was recorded as correct, and refused by a stage of the gate that was asked after that.

    The trial's own row stays as it is; whatever reads trials takes one that has a row here for a refusal.

    Attributes:
        stage, seconds, detail: as `tunebench.tuner.result.Stage` has them.
    """

    __tablename__ = "tunebench_late_refusals"
    __table_args__ = (CheckConstraint("stage <> '' AND detail <> ''", name="says_why"), _STRICT)

    trial_id: Mapped[int] = mapped_column(KEY, ForeignKey(Trial.id), primary_key=True)
    stage: Mapped[str]
    seconds: Mapped[float]
    detail: Mapped[str]
    recorded_at: Mapped[datetime]


class Comparison(_Conditions, Base):
    """The interleaved comparison that ended a study; a study that went on has several.

    The newest conclusive one counts.

    Attributes:
        configuration_id: the best, which is a trial of the study.
        concluded_at: never before that of an earlier one of the same kernel and problem, although the clock go back.
        conclusive: its rounds say how the best compares with the reference; where not, they confirm nothing.
        missing_baselines: why a baseline that was asked for was not timed, by its name; NULL where none is missing.
    """

    __tablename__ = "tunebench_comparisons"
    __table_args__ = (
        ForeignKeyConstraint(["study_id", "configuration_id"], [Trial.study_id, Trial.configuration_id]),
        Index(None, "study_id", "configuration_id"),
        _LASTING,
    )

    id: Mapped[Identity]
    study_id: Mapped[int]
    configuration_id: Mapped[int]
    environment_id: Mapped[int] = mapped_column(ForeignKey(Environment.id))
    concluded_at: Mapped[datetime]
    missing_baselines: Mapped[JsonValue] = mapped_column(Json, nullable=True)
    conclusive: Mapped[bool] = mapped_column(server_default=true())


class Contender(Base):
    """One contender's samples in a comparison, such as `reference`, `default` or `best`."""

    __tablename__ = "tunebench_contenders"
    __table_args__ = (
        CheckConstraint("median_ms > 0", name="median"),
        CheckConstraint("sample_count > 0 AND json_array_length(samples_ms) = sample_count", name="samples"),
        {"sqlite_strict": True, "sqlite_with_rowid": False},
    )

    comparison_id: Mapped[int] = mapped_column(ForeignKey(Comparison.id), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    median_ms: Mapped[float]
    sample_count: Mapped[int]
    samples_ms: Mapped[JsonValue] = mapped_column(Json)


class SpeedUp(Base):
    """How many times faster a comparison's best is than one of its baselines.

    Attributes:
        ratio, low, high: the median of per-round ratios and its interval.
    """

    __tablename__ = "tunebench_speed_ups"
    __table_args__ = (
        CheckConstraint("low > 0 AND low <= ratio AND ratio <= high", name="interval"),
        CheckConstraint("rounds > 0 AND confidence > 0 AND confidence < 1", name="rounds"),
        {"sqlite_strict": True, "sqlite_with_rowid": False},
    )

    comparison_id: Mapped[int] = mapped_column(ForeignKey(Comparison.id), primary_key=True)
    baseline: Mapped[str] = mapped_column(primary_key=True)
    ratio: Mapped[float]
    low: Mapped[float]
    high: Mapped[float]
    rounds: Mapped[int]
    confidence: Mapped[float]


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
