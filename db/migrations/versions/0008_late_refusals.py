"""Trials that were recorded as correct and are refused after that; the views tell them as refusals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_TABLE = "tunebench_late_refusals"
_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_NUMBER: sa.types.TypeEngine[float] = sa.DOUBLE_PRECISION().with_variant(sa.REAL(), "sqlite")
_MOMENT = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")

_BASELINES = ("reference", "default", "compiled", "copy")

_CORRECT = "t.status = 'correct' AND NOT EXISTS (SELECT 1 FROM tunebench_late_refusals r WHERE r.trial_id = t.id)"
_STATUS = "CASE WHEN r.trial_id IS NULL THEN t.status ELSE 'correctness' END"
_MESSAGE = "CASE WHEN r.trial_id IS NULL THEN t.message ELSE 'refused late by ' || r.stage || ': ' || r.detail END"

# A trial that was refused late has no time and has won nothing.
# No function that a database opened with SQLite's `trusted_schema = OFF` would refuse, and no JSON function.
_TRIALS_FLAT = f"""
CREATE VIEW trials_flat AS
SELECT
    t.id AS trial, t.study_id AS study, t.number AS number,
    s.kernel AS kernel, p.key AS problem, p.dtype AS dtype, d.name AS device, d.architecture AS architecture,
    s.compiler AS compiler, {_STATUS} AS status, c.key AS configuration,
    m.median_ms AS median_ms, m.low_ms AS low_ms, m.high_ms AS high_ms, m.regime AS regime,
    m.sample_count AS sample_count, m.clock AS clock,
    {
    ", ".join(
        f"{name}.ratio AS over_{baseline}, {name}.low AS over_{baseline}_low, {name}.high AS over_{baseline}_high"
        for baseline, name in ((baseline, f"over_{baseline}") for baseline in _BASELINES)
    )
},
    k.concluded_at AS confirmed_at,
    (SELECT max(f.registers) FROM tunebench_build_figures f WHERE f.build_id = t.build_id) AS registers,
    (SELECT max(f.spill_stores + f.spill_loads) FROM tunebench_build_figures f WHERE f.build_id = t.build_id)
        AS spill_bytes,
    (SELECT max(f.shared) FROM tunebench_build_figures f WHERE f.build_id = t.build_id) AS shared_bytes,
    b.seconds AS compile_seconds, v.max_relative AS max_relative_error, v.tolerance AS tolerance,
    s.source_digest AS source_digest, s.sampler AS sampler, s.seed AS seed,
    e.driver AS driver, e.cuda AS cuda, e.torch AS torch, e.compiler AS compiler_version, e.tunebench AS tunebench,
    e.python AS python, e.platform AS platform, e.host AS host,
    e.sm_clock_mhz AS sm_clock_mhz, e.memory_clock_mhz AS memory_clock_mhz, e.power_limit_w AS power_limit_w,
    e.throttle AS throttle, d.uuid AS device_uuid, o.uid AS origin,
    t.recorded_at AS recorded_at, {_MESSAGE} AS message
FROM tunebench_trials t
LEFT JOIN tunebench_late_refusals r ON r.trial_id = t.id
JOIN tunebench_studies s ON s.id = t.study_id
JOIN tunebench_origins o ON o.id = s.origin_id
JOIN tunebench_problems p ON p.id = s.problem_id
JOIN tunebench_devices d ON d.id = s.device_id
JOIN tunebench_configurations c ON c.id = t.configuration_id
JOIN tunebench_environments e ON e.id = t.environment_id
LEFT JOIN tunebench_builds b ON b.id = t.build_id
LEFT JOIN tunebench_verdicts v ON v.id = t.verdict_id
LEFT JOIN tunebench_measurements m ON m.id = t.measurement_id AND r.trial_id IS NULL
LEFT JOIN tunebench_comparisons k ON k.id = (
    SELECT n.id FROM tunebench_comparisons n
    WHERE n.study_id = t.study_id AND n.configuration_id = t.configuration_id
    ORDER BY n.concluded_at DESC, n.id DESC LIMIT 1
) AND r.trial_id IS NULL
{
    " ".join(
        f"LEFT JOIN tunebench_speed_ups over_{baseline} "
        f"ON over_{baseline}.comparison_id = k.id AND over_{baseline}.baseline = '{baseline}'"
        for baseline in _BASELINES
    )
}
"""

_GROUP = "s.kernel, s.source_digest, s.problem_id, d.name, d.architecture, s.compiler"
"""Studies whose results are ranked against each other, in each cache regime."""

# A board is the studies whose results are ranked against each other. Its newest comparison decides for its regime; only
# for regimes that are left open are other trials looked at.
_BEST = f"""
CREATE VIEW best AS
WITH boards AS (
    SELECT s.id AS study_id, min(s.id) OVER (PARTITION BY {_GROUP}) AS board
    FROM tunebench_studies s JOIN tunebench_devices d ON d.id = s.device_id
),
confirmed AS (
    SELECT board, regime, trial_id FROM (
        SELECT newest.board AS board, t.regime AS regime, t.id AS trial_id,
            row_number() OVER (PARTITION BY newest.board, t.regime ORDER BY t.median_ms, t.id) AS place
        FROM (
            SELECT aged.board AS board, (
                SELECT t.id FROM tunebench_trials t WHERE t.study_id = aged.study_id
                AND t.configuration_id = aged.configuration_id AND {_CORRECT}
            ) AS trial_id
            FROM (
                SELECT b.board AS board, k.study_id AS study_id, k.configuration_id AS configuration_id,
                    rank() OVER (PARTITION BY b.board ORDER BY k.concluded_at DESC) AS age
                FROM boards b JOIN tunebench_comparisons k ON k.study_id = b.study_id
            ) aged
            WHERE aged.age = 1
        ) newest
        JOIN tunebench_trials t ON t.id = newest.trial_id
    ) placed
    WHERE place = 1
),
undecided AS (
    SELECT b.study_id AS study_id, b.board AS board, regimes.regime AS regime, (
        SELECT t.id FROM tunebench_trials t
        WHERE t.study_id = b.study_id AND t.regime = regimes.regime AND {_CORRECT}
        ORDER BY t.median_ms, t.id LIMIT 1
    ) AS trial_id
    FROM boards b CROSS JOIN (SELECT 'cold' AS regime UNION ALL SELECT 'warm') regimes
    WHERE NOT EXISTS (SELECT 1 FROM confirmed c WHERE c.board = b.board AND c.regime = regimes.regime)
)
SELECT * FROM trials_flat WHERE trial IN (
    SELECT trial_id FROM confirmed
    UNION ALL
    SELECT trial_id FROM (
        SELECT offers.trial_id AS trial_id, row_number() OVER (
            PARTITION BY offers.board, t.regime
            ORDER BY offers.confirmed_at IS NULL, offers.confirmed_at DESC, t.median_ms, t.id
        ) AS place
        FROM (
            SELECT u.board AS board, u.regime AS regime, u.trial_id AS trial_id, NULL AS confirmed_at
            FROM undecided u WHERE u.trial_id IS NOT NULL
            UNION ALL
            SELECT u.board, u.regime, (
                SELECT t.id FROM tunebench_trials t WHERE t.study_id = k.study_id
                AND t.configuration_id = k.configuration_id AND {_CORRECT}
            ), k.concluded_at
            FROM undecided u JOIN tunebench_comparisons k ON k.study_id = u.study_id WHERE u.trial_id IS NOT NULL
        ) offers
        JOIN tunebench_trials t ON t.id = offers.trial_id AND t.regime = offers.regime
    ) ranked
    WHERE place = 1
)
"""

# Studies are put on their boards first, by number, so that a million trials are sorted by numbers and not by text.
_LEADERBOARD = f"""
CREATE VIEW leaderboard AS
SELECT placed.place AS place, placed.times_fastest AS times_fastest, trials_flat.*
FROM (
    SELECT trial_id,
        rank() OVER (PARTITION BY board, regime ORDER BY median_ms) AS place,
        median_ms / min(median_ms) OVER (PARTITION BY board, regime) AS times_fastest
    FROM (
        SELECT t.id AS trial_id, t.median_ms AS median_ms, t.regime AS regime, boards.board AS board,
            row_number() OVER (
                PARTITION BY boards.board, t.regime, t.configuration_id ORDER BY t.median_ms, t.id
            ) AS attempt
        FROM (
            SELECT s.id AS study_id, min(s.id) OVER (PARTITION BY {_GROUP}) AS board
            FROM tunebench_studies s JOIN tunebench_devices d ON d.id = s.device_id
        ) boards
        JOIN tunebench_trials t ON t.study_id = boards.study_id
        WHERE {_CORRECT}
    ) attempts
    WHERE attempt = 1
) placed
JOIN trials_flat ON trials_flat.trial = placed.trial_id
"""


def upgrade() -> None:
    """Create the table with its triggers, and make the views anew."""
    for view in ("leaderboard", "best", "trials_flat"):
        op.execute(f"DROP VIEW {view}")
    op.create_table(
        _TABLE,
        sa.Column("trial_id", _WHOLE, nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("seconds", _NUMBER, nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("recorded_at", _MOMENT, nullable=False),
        sa.CheckConstraint("stage <> '' AND detail <> ''", name=op.f("ck_tunebench_late_refusals_says_why")),
        sa.ForeignKeyConstraint(["trial_id"], ["tunebench_trials.id"], name="fk_tunebench_late_refusals_trial_id"),
        sa.PrimaryKeyConstraint("trial_id", name="pk_tunebench_late_refusals"),
        sqlite_strict=True,
    )
    views = (_TRIALS_FLAT, _BEST, _LEADERBOARD)
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {_TABLE}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {_TABLE} "
            "FOR EACH STATEMENT EXECUTE FUNCTION tunebench_refuse()"
        )
        # A NULL without a type is text there.
        timed = _BEST.replace("NULL AS confirmed_at", "CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS confirmed_at")
        views = (_TRIALS_FLAT, timed, _LEADERBOARD)
    else:
        for deed in ("update", "delete"):
            op.execute(
                f"CREATE TRIGGER {_TABLE}_no_{deed} BEFORE {deed.upper()} ON {_TABLE} "
                "BEGIN SELECT RAISE(ABORT, 'results are only ever added, never changed or removed'); END"
            )
    for view in views:
        op.execute(view)
