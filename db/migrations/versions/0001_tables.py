"""The tables, whose rows are added and never changed or removed, and the database's own origin."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Spelt out here, not taken from the models: a revision stays what it was when it was released.
_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_NUMBER: sa.types.TypeEngine[float] = sa.DOUBLE_PRECISION().with_variant(sa.REAL(), "sqlite")
_TRUTH = sa.Boolean().with_variant(sa.Integer(), "sqlite")
_WORDS = sa.Text()
_MOMENT = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")
_JSON = sa.JSON().with_variant(sa.Text(), "sqlite")

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


def _conditions() -> list[sa.Column[Any]]:
    """The state of the device while a time was taken."""
    return [
        sa.Column("control_ms", _NUMBER, nullable=True),
        sa.Column("sm_clock_mhz", _WHOLE, nullable=True),
        sa.Column("memory_clock_mhz", _WHOLE, nullable=True),
        sa.Column("temperature_c", _WHOLE, nullable=True),
        sa.Column("throttle_reasons", _WORDS, nullable=True),
        sa.Column("foreign_processes", _WHOLE, nullable=True),
    ]


def upgrade() -> None:
    """Create the tables and their triggers, and the row of the database's own origin."""
    op.create_table(
        "tunebench_builds",
        sa.Column("id", _WHOLE, nullable=False),
        sa.Column("variant_digest", _WORDS, nullable=False),
        sa.Column("compiler", _WORDS, nullable=False),
        sa.Column("compiler_version", _WORDS, nullable=False),
        sa.Column("code_sha256", _WORDS, nullable=False),
        sa.Column("code_bytes", _WHOLE, nullable=False),
        sa.Column("log", _WORDS, nullable=False),
        sa.Column("seconds", _NUMBER, nullable=False),
        sa.CheckConstraint("compiler IN ('nvrtc', 'cpu', 'inline')", name=op.f("ck_tunebench_builds_compiler")),
        sa.CheckConstraint("code_bytes >= 0 AND seconds >= 0", name=op.f("ck_tunebench_builds_sizes")),
        sa.PrimaryKeyConstraint("id", name="pk_tunebench_builds"),
        sa.UniqueConstraint(
            "variant_digest", "compiler", "compiler_version", "code_sha256", name="uq_tunebench_builds_identity"
        ),
        sqlite_strict=True,
    )
    op.create_index("ix_tunebench_builds_code_sha256", "tunebench_builds", ["code_sha256"])
    op.create_table(
        "tunebench_configurations",
        sa.Column("id", _WHOLE, nullable=False),
        sa.Column("key", _WORDS, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tunebench_configurations"),
        sa.UniqueConstraint("key", name="uq_tunebench_configurations_key"),
        sqlite_strict=True,
    )
    op.create_table(
        "tunebench_devices",
        sa.Column("id", _WHOLE, nullable=False),
        sa.Column("digest", _WORDS, nullable=False),
        sa.Column("kind", _WORDS, nullable=False),
        sa.Column("name", _WORDS, nullable=False),
        sa.Column("architecture", _WORDS, nullable=False),
        sa.Column("uuid", _WORDS, nullable=False),
        sa.Column("multiprocessors", _WHOLE, nullable=False),
        sa.Column("memory_bytes", _WHOLE, nullable=False),
        sa.Column("l2_bytes", _WHOLE, nullable=False),
        sa.Column("max_threads_per_block", _WHOLE, nullable=False),
        sa.Column("max_shared_bytes", _WHOLE, nullable=False),
        sa.Column("max_threads_per_multiprocessor", _WHOLE, nullable=False),
        sa.Column("warp_size", _WHOLE, nullable=False),
        sa.CheckConstraint("kind IN ('cuda', 'cpu')", name=op.f("ck_tunebench_devices_kind")),
        sa.CheckConstraint(
            "multiprocessors > 0 AND memory_bytes > 0 AND warp_size > 0",
            name=op.f("ck_tunebench_devices_positive_limits"),
        ),
        sa.PrimaryKeyConstraint("id", name="pk_tunebench_devices"),
        sa.UniqueConstraint("digest", name="uq_tunebench_devices_digest"),
        sqlite_strict=True,
    )
    op.create_index("ix_tunebench_devices_name_architecture", "tunebench_devices", ["name", "architecture"])
    op.create_table(
        "tunebench_environments",
        sa.Column("id", _WHOLE, nullable=False),
        sa.Column("digest", _WORDS, nullable=False),
        sa.Column("tunebench", _WORDS, nullable=False),
        sa.Column("python", _WORDS, nullable=False),
        sa.Column("torch", _WORDS, nullable=False),
        sa.Column("cuda", _WORDS, nullable=True),
        sa.Column("driver", _WORDS, nullable=True),
        sa.Column("compiler", _WORDS, nullable=False),
        sa.Column("platform", _WORDS, nullable=False),
        sa.Column("host", _WORDS, nullable=False),
        sa.Column("sm_clock_mhz", _WHOLE, nullable=True),
        sa.Column("memory_clock_mhz", _WHOLE, nullable=True),
        sa.Column("power_limit_w", _WHOLE, nullable=True),
        sa.Column("throttle", _WORDS, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tunebench_environments"),
        sa.UniqueConstraint("digest", name="uq_tunebench_environments_digest"),
        sqlite_strict=True,
    )
    op.create_table(
        "tunebench_measurements",
        sa.Column("id", _WHOLE, nullable=False),
        sa.Column("median_ms", _NUMBER, nullable=False),
        sa.Column("low_ms", _NUMBER, nullable=False),
        sa.Column("high_ms", _NUMBER, nullable=False),
        sa.Column("regime", _WORDS, nullable=False),
        sa.Column("clock", _WORDS, nullable=False),
        sa.Column("sample_count", _WHOLE, nullable=False),
        sa.Column("samples_ms", _JSON, nullable=False),
        *_conditions(),
        sa.CheckConstraint("regime IN ('cold', 'warm')", name=op.f("ck_tunebench_measurements_regime")),
        sa.CheckConstraint(
            "low_ms > 0 AND low_ms <= median_ms AND median_ms <= high_ms",
            name=op.f("ck_tunebench_measurements_interval"),
        ),
        sa.CheckConstraint(
            "sample_count > 0 AND json_array_length(samples_ms) = sample_count",
            name=op.f("ck_tunebench_measurements_samples"),
        ),
        sa.PrimaryKeyConstraint("id", name="pk_tunebench_measurements"),
        sa.UniqueConstraint("id", "median_ms", "regime", name="uq_tunebench_measurements_id_median_ms_regime"),
        sqlite_strict=True,
    )
    origins = op.create_table(
        "tunebench_origins",
        sa.Column("id", _WHOLE, nullable=False),
        sa.Column("uid", _WORDS, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tunebench_origins"),
        sa.UniqueConstraint("uid", name="uq_tunebench_origins_uid"),
        sqlite_strict=True,
    )
    op.create_table(
        "tunebench_problems",
        sa.Column("id", _WHOLE, nullable=False),
        sa.Column("key", _WORDS, nullable=False),
        sa.Column("dtype", _WORDS, nullable=False),
        sa.Column("axes", _JSON, nullable=False),
        sa.Column("options", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tunebench_problems"),
        sa.UniqueConstraint("key", name="uq_tunebench_problems_key"),
        sqlite_strict=True,
    )
    op.create_table(
        "tunebench_verdicts",
        sa.Column("id", _WHOLE, nullable=False),
        sa.Column("passed", _TRUTH, nullable=False),
        sa.Column("reason", _WORDS, nullable=False),
        sa.Column("tolerance", _NUMBER, nullable=True),
        sa.Column("max_absolute", _NUMBER, nullable=True),
        sa.Column("max_relative", _NUMBER, nullable=True),
        sa.Column("relative_norm", _NUMBER, nullable=True),
        sa.Column("reference_max_relative", _NUMBER, nullable=True),
        sa.Column("reference_relative_norm", _NUMBER, nullable=True),
        sa.Column("first_wrong_index", _WHOLE, nullable=True),
        sa.Column("untouched", _WHOLE, nullable=True),
        sa.CheckConstraint("passed = (reason = '')", name=op.f("ck_tunebench_verdicts_refusal_has_reason")),
        sa.CheckConstraint("first_wrong_index >= 0 AND untouched >= 0", name=op.f("ck_tunebench_verdicts_counts")),
        sa.CheckConstraint("passed IN (true, false)", name=op.f("ck_tunebench_verdicts_passed")),
        sa.CheckConstraint(
            "untouched IS NOT NULL OR (max_absolute IS NULL AND max_relative IS NULL AND relative_norm IS NULL AND "
            "reference_max_relative IS NULL AND reference_relative_norm IS NULL AND first_wrong_index IS NULL)",
            name=op.f("ck_tunebench_verdicts_figures_together"),
        ),
        sa.PrimaryKeyConstraint("id", name="pk_tunebench_verdicts"),
        sa.UniqueConstraint("id", "passed", name="uq_tunebench_verdicts_id_passed"),
        sqlite_strict=True,
    )
    op.create_table(
        "tunebench_build_figures",
        sa.Column("build_id", _WHOLE, nullable=False),
        sa.Column("entry_point", _WORDS, nullable=False),
        sa.Column("registers", _WHOLE, nullable=True),
        sa.Column("spill_stores", _WHOLE, nullable=True),
        sa.Column("spill_loads", _WHOLE, nullable=True),
        sa.Column("stack", _WHOLE, nullable=True),
        sa.Column("shared", _WHOLE, nullable=True),
        sa.CheckConstraint(
            "registers >= 0 AND spill_stores >= 0 AND spill_loads >= 0 AND stack >= 0 AND shared >= 0",
            name=op.f("ck_tunebench_build_figures_sizes"),
        ),
        sa.ForeignKeyConstraint(["build_id"], ["tunebench_builds.id"], name="fk_tunebench_build_figures_build_id"),
        sa.PrimaryKeyConstraint("build_id", "entry_point", name="pk_tunebench_build_figures"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tunebench_studies",
        sa.Column("id", _WHOLE, nullable=False),
        sa.Column("origin_id", _WHOLE, nullable=False),
        sa.Column("kernel", _WORDS, nullable=False),
        sa.Column("source_digest", _WORDS, nullable=False),
        sa.Column("space_digest", _WORDS, nullable=False),
        sa.Column("problem_id", _WHOLE, nullable=False),
        sa.Column("device_id", _WHOLE, nullable=False),
        sa.Column("compiler", _WORDS, nullable=False),
        sa.Column("sampler", _WORDS, nullable=False),
        sa.Column("seed", _WHOLE, nullable=False),
        sa.Column("begun_at", _MOMENT, nullable=False),
        sa.Column("warm_starts", _JSON, nullable=True),
        sa.CheckConstraint("compiler IN ('nvrtc', 'cpu', 'inline')", name=op.f("ck_tunebench_studies_compiler")),
        sa.CheckConstraint("kernel <> ''", name=op.f("ck_tunebench_studies_kernel_named")),
        sa.ForeignKeyConstraint(["device_id"], ["tunebench_devices.id"], name="fk_tunebench_studies_device_id"),
        sa.ForeignKeyConstraint(["origin_id"], ["tunebench_origins.id"], name="fk_tunebench_studies_origin_id"),
        sa.ForeignKeyConstraint(["problem_id"], ["tunebench_problems.id"], name="fk_tunebench_studies_problem_id"),
        sa.PrimaryKeyConstraint("id", name="pk_tunebench_studies"),
        sa.UniqueConstraint(
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
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_index("ix_tunebench_studies_device_id", "tunebench_studies", ["device_id"])
    op.create_index("ix_tunebench_studies_problem_id", "tunebench_studies", ["problem_id"])
    op.create_table(
        "tunebench_verdict_stages",
        sa.Column("verdict_id", _WHOLE, nullable=False),
        sa.Column("position", _WHOLE, nullable=False),
        sa.Column("name", _WORDS, nullable=False),
        sa.Column("passed", _TRUTH, nullable=False),
        sa.Column("seconds", _NUMBER, nullable=False),
        sa.Column("detail", _WORDS, nullable=False),
        sa.CheckConstraint("passed IN (true, false)", name=op.f("ck_tunebench_verdict_stages_passed")),
        sa.CheckConstraint("position >= 0", name=op.f("ck_tunebench_verdict_stages_position")),
        sa.ForeignKeyConstraint(
            ["verdict_id"], ["tunebench_verdicts.id"], name="fk_tunebench_verdict_stages_verdict_id"
        ),
        sa.PrimaryKeyConstraint("verdict_id", "position", name="pk_tunebench_verdict_stages"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tunebench_trials",
        sa.Column("id", _WHOLE, nullable=False),
        sa.Column("study_id", _WHOLE, nullable=False),
        sa.Column("number", _WHOLE, nullable=False),
        sa.Column("configuration_id", _WHOLE, nullable=False),
        sa.Column("environment_id", _WHOLE, nullable=False),
        sa.Column("status", _WORDS, nullable=False),
        sa.Column("build_id", _WHOLE, nullable=True),
        sa.Column("build_cached", _TRUTH, nullable=True),
        sa.Column("verdict_id", _WHOLE, nullable=True),
        sa.Column("verdict_passed", _TRUTH, nullable=True),
        sa.Column("measurement_id", _WHOLE, nullable=True),
        sa.Column("median_ms", _NUMBER, nullable=True),
        sa.Column("regime", _WORDS, nullable=True),
        sa.Column("recorded_at", _MOMENT, nullable=False),
        sa.Column("seconds", _JSON, nullable=False),
        sa.Column("message", _WORDS, nullable=False),
        sa.CheckConstraint(
            "(status = 'correctness') = (verdict_passed IS NOT NULL AND NOT verdict_passed)",
            name=op.f("ck_tunebench_trials_refused_by_verdict"),
        ),
        sa.CheckConstraint(
            "(status IN ('correct', 'pruned')) = (measurement_id IS NOT NULL)",
            name=op.f("ck_tunebench_trials_timed_has_measurement"),
        ),
        sa.CheckConstraint(
            "NOT (status IN ('correct', 'pruned')) OR (verdict_passed IS NOT NULL AND verdict_passed)",
            name=op.f("ck_tunebench_trials_timed_has_passed"),
        ),
        sa.CheckConstraint(
            "status IN ('correct', 'pruned') OR message <> ''", name=op.f("ck_tunebench_trials_failure_says_why")
        ),
        sa.CheckConstraint(
            "status IN ('correct', 'pruned', 'constraints', 'compile', 'runtime', 'correctness', 'timeout')",
            name=op.f("ck_tunebench_trials_status"),
        ),
        sa.CheckConstraint(
            "(build_id IS NULL) = (build_cached IS NULL)", name=op.f("ck_tunebench_trials_build_cached")
        ),
        sa.CheckConstraint(
            "(measurement_id IS NULL) = (median_ms IS NULL) AND (measurement_id IS NULL) = (regime IS NULL)",
            name=op.f("ck_tunebench_trials_measurement_repeated"),
        ),
        sa.CheckConstraint(
            "(verdict_id IS NULL) = (verdict_passed IS NULL)", name=op.f("ck_tunebench_trials_verdict_repeated")
        ),
        sa.CheckConstraint("number >= 0", name=op.f("ck_tunebench_trials_number")),
        sa.ForeignKeyConstraint(["build_id"], ["tunebench_builds.id"], name="fk_tunebench_trials_build_id"),
        sa.ForeignKeyConstraint(
            ["configuration_id"], ["tunebench_configurations.id"], name="fk_tunebench_trials_configuration_id"
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["tunebench_environments.id"], name="fk_tunebench_trials_environment_id"
        ),
        sa.ForeignKeyConstraint(
            ["measurement_id", "median_ms", "regime"],
            ["tunebench_measurements.id", "tunebench_measurements.median_ms", "tunebench_measurements.regime"],
            name="fk_tunebench_trials_measurement_id_median_ms_regime",
        ),
        sa.ForeignKeyConstraint(["study_id"], ["tunebench_studies.id"], name="fk_tunebench_trials_study_id"),
        sa.ForeignKeyConstraint(
            ["verdict_id", "verdict_passed"],
            ["tunebench_verdicts.id", "tunebench_verdicts.passed"],
            name="fk_tunebench_trials_verdict_id_verdict_passed",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_tunebench_trials"),
        sa.UniqueConstraint("measurement_id", name="uq_tunebench_trials_measurement_id"),
        sa.UniqueConstraint("configuration_id", "study_id", name="uq_tunebench_trials_configuration_id_study_id"),
        sa.UniqueConstraint("study_id", "number", name="uq_tunebench_trials_study_id_number"),
        sa.UniqueConstraint("verdict_id", name="uq_tunebench_trials_verdict_id"),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_index(
        "ix_tunebench_trials_fastest",
        "tunebench_trials",
        ["study_id", "regime", "median_ms", "id"],
        sqlite_where=sa.text("status = 'correct'"),
        postgresql_where=sa.text("status = 'correct'"),
    )
    op.create_index(
        "ix_tunebench_trials_by_time",
        "tunebench_trials",
        ["median_ms", "id", "study_id"],
        sqlite_where=sa.text("status = 'correct'"),
        postgresql_where=sa.text("status = 'correct'"),
    )
    op.create_index("ix_tunebench_trials_recorded_at", "tunebench_trials", ["recorded_at"])
    op.create_index("ix_tunebench_trials_study_id_status_number", "tunebench_trials", ["study_id", "status", "number"])
    op.create_table(
        "tunebench_comparisons",
        sa.Column("id", _WHOLE, nullable=False),
        sa.Column("study_id", _WHOLE, nullable=False),
        sa.Column("configuration_id", _WHOLE, nullable=False),
        sa.Column("environment_id", _WHOLE, nullable=False),
        sa.Column("concluded_at", _MOMENT, nullable=False),
        sa.Column("missing_baselines", _JSON, nullable=True),
        *_conditions(),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["tunebench_environments.id"], name="fk_tunebench_comparisons_environment_id"
        ),
        sa.ForeignKeyConstraint(
            ["study_id", "configuration_id"],
            ["tunebench_trials.study_id", "tunebench_trials.configuration_id"],
            name="fk_tunebench_comparisons_study_id_configuration_id",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_tunebench_comparisons"),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_index(
        "ix_tunebench_comparisons_study_id_configuration_id", "tunebench_comparisons", ["study_id", "configuration_id"]
    )
    op.create_table(
        "tunebench_contenders",
        sa.Column("comparison_id", _WHOLE, nullable=False),
        sa.Column("name", _WORDS, nullable=False),
        sa.Column("median_ms", _NUMBER, nullable=False),
        sa.Column("sample_count", _WHOLE, nullable=False),
        sa.Column("samples_ms", _JSON, nullable=False),
        sa.CheckConstraint("median_ms > 0", name=op.f("ck_tunebench_contenders_median")),
        sa.CheckConstraint(
            "sample_count > 0 AND json_array_length(samples_ms) = sample_count",
            name=op.f("ck_tunebench_contenders_samples"),
        ),
        sa.ForeignKeyConstraint(
            ["comparison_id"], ["tunebench_comparisons.id"], name="fk_tunebench_contenders_comparison_id"
        ),
        sa.PrimaryKeyConstraint("comparison_id", "name", name="pk_tunebench_contenders"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tunebench_speed_ups",
        sa.Column("comparison_id", _WHOLE, nullable=False),
        sa.Column("baseline", _WORDS, nullable=False),
        sa.Column("ratio", _NUMBER, nullable=False),
        sa.Column("low", _NUMBER, nullable=False),
        sa.Column("high", _NUMBER, nullable=False),
        sa.Column("rounds", _WHOLE, nullable=False),
        sa.Column("confidence", _NUMBER, nullable=False),
        sa.CheckConstraint("low > 0 AND low <= ratio AND ratio <= high", name=op.f("ck_tunebench_speed_ups_interval")),
        sa.CheckConstraint(
            "rounds > 0 AND confidence > 0 AND confidence < 1", name=op.f("ck_tunebench_speed_ups_rounds")
        ),
        sa.ForeignKeyConstraint(
            ["comparison_id"], ["tunebench_comparisons.id"], name="fk_tunebench_speed_ups_comparison_id"
        ),
        sa.PrimaryKeyConstraint("comparison_id", "baseline", name="pk_tunebench_speed_ups"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tunebench_late_refusals",
        sa.Column("trial_id", _WHOLE, nullable=False),
        sa.Column("stage", _WORDS, nullable=False),
        sa.Column("seconds", _NUMBER, nullable=False),
        sa.Column("detail", _WORDS, nullable=False),
        sa.Column("recorded_at", _MOMENT, nullable=False),
        sa.CheckConstraint("stage <> '' AND detail <> ''", name=op.f("ck_tunebench_late_refusals_says_why")),
        sa.ForeignKeyConstraint(["trial_id"], ["tunebench_trials.id"], name="fk_tunebench_late_refusals_trial_id"),
        sa.PrimaryKeyConstraint("trial_id", name="pk_tunebench_late_refusals"),
        sqlite_strict=True,
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
