"""Trials as flat rows: one plain value a column, named as in the view `trials_flat`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

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
    """Return a trial's columns: times in milliseconds, moments in UTC, problem and configuration as JSON."""
    known: dict[str, Any] = vars(row) | {
        "trial": row.trial_id,
        "study": row.study_id,
        "problem": row.problem.key,
        "dtype": row.problem.dtype,
        "device": row.device_name,
        "status": row.status.value,
        "configuration": row.configuration.key,
        "regime": row.regime.value if row.regime else None,
    }
    for name in (f"over_{baseline.value}" for baseline in Baseline):
        ratio: Ratio | None = known[name]
        figures = (None, None, None) if ratio is None else (ratio.value, ratio.low, ratio.high)
        known |= dict(zip((name, f"{name}_low", f"{name}_high"), figures, strict=True))
    return {name: known[name] for name in FLAT_COLUMNS}


def to_dataframe(rows: Sequence[TrialRow]) -> DataFrame:
    """Return the rows of `best` or `trials` as a pandas DataFrame.

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
    kinds: dict[str, Any] = {"axis": row.problem.axes, "option": row.problem.options, "tunable": row.configuration}
    return {f"{kind}_{name}": value for kind, values in kinds.items() for name, value in values.items()}


def csv_text(value: Flat) -> str:
    """Return a value as in CSV: nothing for None, ISO 8601 for a moment, all digits of a number."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str) else json.dumps(value)
