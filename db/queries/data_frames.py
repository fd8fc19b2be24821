"""Trials as flat rows: one plain value a column, named as in the view `trials_flat`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from tunebench.db.queries.rows import TrialRow
from tunebench.tuner.errors import UserError
from tunebench.tuner.result import Baseline, Ratio

if TYPE_CHECKING:
    from pandas import DataFrame

Flat: TypeAlias = str | int | float | datetime | None

FLAT_COLUMNS = (
    *("trial", "study", "number", "kernel", "problem", "dtype", "device", "architecture", "compiler", "status"),
    *("configuration", "median_ms", "low_ms", "high_ms", "regime"),
    *(f"over_{baseline.value}{end}" for baseline in Baseline for end in ("", "_low", "_high")),
    *("confirmed_at", "confirmed_ms", "source_digest", "sampler", "seed", "device_uuid", "recorded_at", "message"),
)
"""The columns of `flat_values`, in order."""


def flat_values(row: TrialRow) -> dict[str, Flat]:
    """A trial's columns: times in milliseconds, moments in UTC, problem and configuration as JSON."""
    ratios = {
        Baseline.REFERENCE: row.over_reference,
        Baseline.DEFAULT: row.over_default,
        Baseline.COMPILED: row.over_compiled,
        Baseline.COPY: row.over_copy,
    }
    values: dict[str, Flat] = {
        "trial": row.trial_id,
        "study": row.study_id,
        "number": row.number,
        "kernel": row.kernel,
        "problem": row.problem.key,
        "dtype": row.problem.dtype,
        "device": row.device_name,
        "architecture": row.architecture,
        "compiler": row.compiler,
        "status": row.status.value,
        "configuration": row.configuration.key,
        "median_ms": row.median_ms,
        "low_ms": row.low_ms,
        "high_ms": row.high_ms,
        "regime": row.regime.value if row.regime else None,
    }
    for baseline, ratio in ratios.items():
        values.update(_ratio_values(f"over_{baseline.value}", ratio))
    return values | {
        "confirmed_at": row.confirmed_at,
        "confirmed_ms": row.confirmed_ms,
        "source_digest": row.source_digest,
        "sampler": row.sampler,
        "seed": row.seed,
        "device_uuid": row.device_uuid,
        "recorded_at": row.recorded_at,
        "message": row.message,
    }


def _ratio_values(name: str, ratio: Ratio | None) -> dict[str, float | None]:
    if ratio is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: ratio.value, f"{name}_low": ratio.low, f"{name}_high": ratio.high}


def to_dataframe(rows: Sequence[TrialRow]) -> DataFrame:
    """The rows of `best` or `trials` as a pandas DataFrame.

    Its columns are `FLAT_COLUMNS`, and beside them `axis_NAME`, `option_NAME` and `tunable_NAME` for every axis and
    option of a problem and every tunable of a configuration, missing where a row has none of that name.

    Raises:
        UserError: pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise UserError("a DataFrame needs pandas, which is not installed: pip install pandas") from error
    records = [flat_values(row) | _parts(row) for row in rows]
    names = dict.fromkeys([*FLAT_COLUMNS, *(name for record in records for name in record)])
    return DataFrame(records, columns=list(names))


def _parts(row: TrialRow) -> dict[str, Flat]:
    parts: dict[str, Flat] = {}
    for kind, values in (
        ("axis", row.problem.axes),
        ("option", row.problem.options),
        ("tunable", row.configuration),
    ):
        parts |= {f"{kind}_{name}": value for name, value in values.items()}
    return parts


def csv_text(value: Flat) -> str:
    """A value as CSV has it: nothing for None, ISO 8601 for a moment, all digits of a number."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str) else json.dumps(value)
