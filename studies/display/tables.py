"""How recorded results are listed: tables for people, plain values for programs."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from tunebench.db.queries.data_frames import FLAT_COLUMNS, csv_text, flat_values
from tunebench.db.queries.rows import BestRow, MissRow, StudyRow, TrialRow
from tunebench.studies.display.terminal import print_paragraph, print_table
from tunebench.tuner.problem import Problem, told_apart
from tunebench.tuner.result import Comparison, Ratio
from tunebench.tuner.settings import described

Row = TypeVar("Row")

Columns = Mapping[str, Callable[[Row], str] | None]
"""The columns of a table: the text of a row's cell by the column's head; None stands for the problem."""


@dataclass(frozen=True)
class Listing(Generic[Row]):
    """How rows of one kind are shown.

    Attributes:
        table: prints all of them for people.
        values: of one row, for JSON.
        columns: of CSV.
        cells: of one row, in that order.
    """

    table: Callable[[Sequence[Row]], None]
    values: Callable[[Row], object]
    columns: Sequence[str]
    cells: Callable[[Row], Sequence[str]]


@dataclass(frozen=True)
class StudyWithBest:
    """A study, and its best trial where one is correct."""

    study: StudyRow
    best: BestRow | None


def print_listing(rows: Sequence[Row], columns: Columns[Row], title: str = "", of: str = "") -> None:
    """Print a table of rows each of which is of a kernel and a problem.

    Args:
        of: the attribute of a row that has these; the row itself unless given.
    """
    owners: list[Any] = [getattr(row, of) if of else row for row in rows]
    problems = told_apart((one.kernel, one.problem) for one in owners)
    listed = zip(rows, problems, strict=True)
    print_table(
        list(columns), [[cell(row) if cell else problem for cell in columns.values()] for row, problem in listed], title
    )


def values_of(one: object, *names: str, **more: object) -> dict[str, object]:
    """Return attributes, and what is added to them, as plain values for `--json`."""
    return {name: plain(value) for name, value in ({name: getattr(one, name) for name in names} | more).items()}


def plain(value: Any) -> object:
    """Return a value as JSON has it: a name for a member of a set, ISO 8601 for a moment, and so on inside of it."""
    if isinstance(value, Problem):
        return problem_values(value)
    if is_dataclass(value):
        return values_of(value, *(field.name for field in fields(value)))
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value.value if isinstance(value, enum.Enum) else str(value) if isinstance(value, Path) else value


def milliseconds(value: float | None) -> str:
    """A time, for people."""
    return "" if value is None else f"{value:.4g} ms"


def decided(ratio: Ratio | None) -> str:
    """A speed-up with its interval and what it says: faster, slower, a tie, or that it is inconclusive."""
    return "" if ratio is None else f"{ratio} {ratio.decision}"


def share(ratio: Ratio | None) -> str:
    """A ratio as a percentage with its interval."""
    return "" if ratio is None else f"{ratio.value:.1%} [{ratio.low:.1%}, {ratio.high:.1%}]"


def over_reference(row: TrialRow) -> str:
    """A trial's speed-up over the reference; where that is the faster one, it comes first, since it is what serves."""
    if row.over_reference is None:
        return "not compared"
    return f"reference is faster: {row.over_reference}" if row.reference_is_faster else _said(row, row.over_reference)


def over_default(row: TrialRow) -> str:
    """A trial's speed-up over the default configuration; empty where they were not compared."""
    return _said(row, row.over_default)


def _said(row: TrialRow, ratio: Ratio | None) -> str:
    return decided(ratio) if row.confirmed or ratio is None else f"{ratio} unconfirmed"


def eager_had(problems: Iterable[Mapping[str, str]]) -> str:
    """Say under which of PyTorch's settings the reference of each row ran, for a caption.

    Args:
        problems: the options of each row's problem.
    """
    found = {described(options) for options in problems}
    if len(found) > 1:
        return "eager: PyTorch's defaults, but where a problem says otherwise"
    return f"eager: {found.pop() if found else described({})}"


def _minute(moment: datetime) -> str:
    """A moment in UTC, for people."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


_BEST: Columns[BestRow] = {
    "kernel": lambda row: row.kernel,
    "problem": None,
    "median": lambda row: milliseconds(row.time_ms),
    "over reference": over_reference,
    "over default": over_default,
    "device": lambda row: row.device_name,
    "of copy rate": lambda row: share(row.over_copy),
    "compiler": lambda row: row.compiler,
    "configuration": lambda row: str(row.configuration),
}


def _print_best(rows: Sequence[BestRow]) -> None:
    print_listing(rows, _BEST, eager_had(row.problem.options for row in rows))
    for row in rows:
        if not row.confirmed:
            print_paragraph(
                f"trial {row.trial_id} leads the search of {row.kernel} ({row.problem}) and is not confirmed: "
                f"'tunebench tune {row.trial_id}' takes the final rounds again"
            )


_TRIALS: Columns[TrialRow] = {
    "trial": lambda row: str(row.trial_id),
    "study": lambda row: f"{row.study_id}.{row.number}",
    "status": lambda row: row.status.value,
    "median": lambda row: milliseconds(row.median_ms),
    "kernel": lambda row: row.kernel,
    "problem": None,
    "configuration": lambda row: str(row.configuration),
    "message": lambda row: row.message.splitlines()[0][:200] if row.message else "",
}

_STUDIES: Columns[StudyWithBest] = {
    "study": lambda row: str(row.study.study_id),
    "kernel": lambda row: row.study.kernel,
    "problem": None,
    "best": lambda row: milliseconds(row.best.time_ms) if row.best else "",
    "over reference": lambda row: over_reference(row.best) if row.best else "",
    "trials": lambda row: str(row.study.trials),
    "sampler": lambda row: f"{row.study.sampler}, seed {row.study.seed}",
    "device": lambda row: row.study.device.name,
    "last trial": lambda row: _minute(row.study.last_at),
}


def _print_studies(rows: Sequence[StudyWithBest]) -> None:
    print_listing(rows, _STUDIES, eager_had(row.study.problem.options for row in rows), of="study")


_TRIAL_VALUES = (
    *("trial", "study", "number", "kernel", "source_digest", "problem", "accuracy", "eager"),
    *("device", "device_uuid", "architecture"),
    *("compiler", "sampler", "seed", "status", "configuration", "median_ms", "low_ms", "high_ms", "regime"),
    *("recorded_at", "message", "confirmed", "confirmed_ms"),
    *("over_reference", "over_default", "over_compiled", "over_copy"),
)


def row_values(row: TrialRow) -> dict[str, object]:
    """A trial as plain values for `--json`."""
    known = vars(row) | {
        "trial": row.trial_id,
        "study": row.study_id,
        "accuracy": row.problem.accuracy,
        "eager": described(row.problem.options),
        "device": row.device_name,
        "confirmed": row.confirmed,
    }
    return {name: plain(known[name]) for name in _TRIAL_VALUES}


def speedup_values(comparison: Comparison) -> dict[str, object]:
    """A comparison's speed-ups as plain values for `--json`, each with what it says."""
    return {
        baseline.value: asdict(ratio) | {"decision": comparison.decision(baseline)}
        for baseline, ratio in comparison.speedups.items()
    }


def problem_values(problem: Problem) -> dict[str, object]:
    """A problem as plain values for `--json`."""
    return {"axes": dict(problem.axes), "dtype": problem.dtype, "options": dict(problem.options)}


def _study_values(row: StudyWithBest) -> dict[str, object]:
    study = row.study
    names = ("kernel", "source_digest", "problem", "compiler", "sampler", "seed", "trials", "begun_at", "last_at")
    return values_of(
        study,
        *names,
        study=study.study_id,
        eager=described(study.problem.options),
        device=study.device.name,
        architecture=study.device.architecture,
        best=row_values(row.best) if row.best else None,
    )


_STUDY_COLUMNS = (
    *("study", "kernel", "problem", "dtype", "device", "architecture", "compiler", "sampler", "seed", "trials"),
    *("begun_at", "last_at", "best_trial", "best_ms", "over_reference", "over_reference_low", "over_reference_high"),
)


def _study_cells(row: StudyWithBest) -> list[str]:
    study, best = row.study, row.best
    ratio = best.over_reference if best else None
    values = (
        *(study.study_id, study.kernel, study.problem.key, study.problem.dtype, study.device.name),
        *(study.device.architecture, study.compiler, study.sampler, study.seed, study.trials),
        *(study.begun_at, study.last_at, best.trial_id if best else None, best.time_ms if best else None),
        *((ratio.value, ratio.low, ratio.high) if ratio else (None, None, None)),
    )
    return [csv_text(value) for value in values]


def _trial_cells(row: TrialRow) -> list[str]:
    return [csv_text(value) for value in flat_values(row).values()]


_MISS_COLUMNS = (
    *("kernel", "problem", "dtype", "device", "architecture", "calls", "first_at", "last_at", "tuned"),
    *("source_digest", "path", "served"),
)


_MISSES: Columns[MissRow] = {
    "calls": lambda row: str(row.calls),
    "kernel": lambda row: row.kernel,
    "problem": None,
    "device": lambda row: row.device_name,
    "last": lambda row: _minute(row.last_at),
    "tuned since": lambda row: "yes" if row.tuned else "",
    "served by": lambda row: row.served or "",
}


def _miss_values(row: MissRow) -> dict[str, object]:
    names = ("kernel", "problem", "architecture", "calls", "first_at", "last_at", "tuned", "source_digest", "path")
    return values_of(row, *names, "served", device=row.device_name)


def _miss_cells(row: MissRow) -> list[str]:
    values = (
        *(row.kernel, row.problem.key, row.problem.dtype, row.device_name, row.architecture, row.calls, row.first_at),
        *(row.last_at, str(row.tuned).lower(), row.source_digest, row.path, row.served or ""),
    )
    return [csv_text(value) for value in values]


BEST = Listing(_print_best, row_values, FLAT_COLUMNS, _trial_cells)
TRIALS = Listing(lambda rows: print_listing(rows, _TRIALS), row_values, FLAT_COLUMNS, _trial_cells)
STUDIES = Listing(_print_studies, _study_values, _STUDY_COLUMNS, _study_cells)
MISSES = Listing(lambda rows: print_listing(rows, _MISSES), _miss_values, _MISS_COLUMNS, _miss_cells)
