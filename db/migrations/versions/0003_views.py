"""Views for people who ask with SQL: `trials_flat`, `best` and `leaderboard`."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BASELINES = ("reference", "default", "copy")

# No function that a database opened with SQLite's `trusted_schema = OFF` would refuse, and no JSON function.
_TRIALS_FLAT = f"""
CREATE VIEW trials_flat AS
SELECT
    t.id AS trial, t.study_id AS study, t.number AS number,
    s.kernel AS kernel, p.key AS problem, p.dtype AS dtype, d.name AS device, d.architecture AS architecture,
    s.compiler AS compiler, t.status AS status, c.key AS configuration,
    t.median_ms AS median_ms, m.low_ms AS low_ms, m.high_ms AS high_ms, t.regime AS regime,
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
    e.python AS python, e.platform AS platform, e.host AS host, d.uuid AS device_uuid, o.uid AS origin,
    t.recorded_at AS recorded_at, t.message AS message
FROM tunebench_trials t
JOIN tunebench_studies s ON s.id = t.study_id
JOIN tunebench_origins o ON o.id = s.origin_id
JOIN tunebench_problems p ON p.id = s.problem_id
JOIN tunebench_devices d ON d.id = s.device_id
JOIN tunebench_configurations c ON c.id = t.configuration_id
JOIN tunebench_environments e ON e.id = t.environment_id
LEFT JOIN tunebench_builds b ON b.id = t.build_id
LEFT JOIN tunebench_verdicts v ON v.id = t.verdict_id
LEFT JOIN tunebench_measurements m ON m.id = t.measurement_id
LEFT JOIN tunebench_comparisons k ON k.id = (
    SELECT n.id FROM tunebench_comparisons n
    WHERE n.study_id = t.study_id AND n.configuration_id = t.configuration_id
    ORDER BY n.concluded_at DESC, n.id DESC LIMIT 1
)
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

_BEST = f"""
CREATE VIEW best AS
SELECT * FROM trials_flat WHERE trial IN (
    SELECT trial_id FROM (
        SELECT offers.trial_id AS trial_id, row_number() OVER (
            PARTITION BY {_GROUP}, t.regime
            ORDER BY offers.confirmed_at IS NULL, offers.confirmed_at DESC, t.median_ms, t.id
        ) AS place
        FROM (
            SELECT (
                SELECT t.id FROM tunebench_trials t
                WHERE t.study_id = s.id AND t.regime = regimes.regime AND t.status = 'correct'
                ORDER BY t.median_ms, t.id LIMIT 1
            ) AS trial_id, NULL AS confirmed_at
            FROM tunebench_studies s CROSS JOIN (SELECT 'cold' AS regime UNION ALL SELECT 'warm') regimes
            UNION ALL
            SELECT (
                SELECT t.id FROM tunebench_trials t
                WHERE t.study_id = k.study_id AND t.configuration_id = k.configuration_id AND t.status = 'correct'
            ), k.concluded_at
            FROM tunebench_comparisons k
        ) offers
        JOIN tunebench_trials t ON t.id = offers.trial_id
        JOIN tunebench_studies s ON s.id = t.study_id
        JOIN tunebench_devices d ON d.id = s.device_id
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
        WHERE t.status = 'correct'
    ) attempts
    WHERE attempt = 1
) placed
JOIN trials_flat ON trials_flat.trial = placed.trial_id
"""


def upgrade() -> None:
    """Create the views."""
    if op.get_bind().dialect.name == "postgresql":
        # A NULL without a type is text there.
        timed = _BEST.replace("NULL AS confirmed_at", "CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS confirmed_at")
        for view in (_TRIALS_FLAT, timed, _LEADERBOARD):
            op.execute(view)
        return
    for view in (_TRIALS_FLAT, _BEST, _LEADERBOARD):
        op.execute(view)
