"""What the command line prints: tables for people, plain values for programs."""

from __future__ import annotations

from collections.abc import Sequence

from tunebench.db.queries.trials import BestRow, TrialRow
from tunebench.studies.terminal import print_table
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Ratio


def milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.4g} ms"


def ratio(value: Ratio | None) -> str:
    return "" if value is None else str(value)


def share(value: Ratio | None) -> str:
    """A ratio as a percentage with its interval."""
    return "" if value is None else f"{value.value:.1%} [{value.low:.1%}, {value.high:.1%}]"


def ratio_values(ratio: Ratio | None) -> dict[str, float] | None:
    if ratio is None:
        return None
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high, "rounds": ratio.rounds}


def print_best(rows: Sequence[BestRow]) -> None:
    """The best trial of each kernel, problem and device."""
    columns = (
        *("kernel", "problem", "device", "compiler", "median"),
        *("over reference", "over default", "of copy rate", "configuration"),
    )
    print_table(
        columns,
        [
            (
                row.kernel,
                str(row.problem),
                row.device_name,
                row.compiler,
                milliseconds(row.median_ms),
                ratio(row.over_reference),
                ratio(row.over_default),
                share(row.over_copy),
                str(row.configuration),
            )
            for row in rows
        ],
    )


def print_trials(rows: Sequence[TrialRow]) -> None:
    """Trials, one a row, with the first line of what went wrong."""
    columns = ("trial", "study", "kernel", "problem", "status", "median", "configuration", "message")
    print_table(
        columns,
        [
            (
                str(row.trial_id),
                f"{row.study_id}.{row.number}",
                row.kernel,
                str(row.problem),
                row.status.value,
                milliseconds(row.median_ms),
                str(row.configuration),
                row.message.splitlines()[0][:200] if row.message else "",
            )
            for row in rows
        ],
    )


def row_values(row: TrialRow) -> dict[str, object]:
    """A trial as plain values for `--json`."""
    return {
        "trial": row.trial_id,
        "study": row.study_id,
        "number": row.number,
        "kernel": row.kernel,
        "source_digest": row.source_digest,
        "problem": problem_values(row.problem),
        "device": row.device_name,
        "device_uuid": row.device_uuid,
        "architecture": row.architecture,
        "compiler": row.compiler,
        "sampler": row.sampler,
        "seed": row.seed,
        "status": row.status.value,
        "configuration": dict(row.configuration),
        "median_ms": row.median_ms,
        "low_ms": row.low_ms,
        "high_ms": row.high_ms,
        "regime": row.regime.value if row.regime else None,
        "recorded_at": row.recorded_at.isoformat(),
        "message": row.message,
        "confirmed": row.confirmed,
        "over_reference": ratio_values(row.over_reference),
        "over_default": ratio_values(row.over_default),
        "over_compiled": ratio_values(row.over_compiled),
        "over_copy": ratio_values(row.over_copy),
    }


def problem_values(problem: Problem) -> dict[str, object]:
    return {"axes": dict(problem.axes), "dtype": problem.dtype, "options": dict(problem.options)}
