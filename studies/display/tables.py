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
from tunebench.tuner.problem import Problem, briefly, told_apart
from tunebench.tuner.result import Comparison, Decision, Ratio
from tunebench.tuner.settings import described

Row = TypeVar("Row")

Columns = Mapping[str, Callable[[Row], str] | None]
"""The columns of a table: the text of a row's cell by the column's head; None stands for the problem."""


@dataclass(frozen=True)
class Listing(Generic[Row]):
    """How rows of one kind are shown.

    Attributes:
        table: prints all of them for people; with all that is known of each where that is asked for.
        values: of one row, for JSON.
        columns: of CSV.
        cells: of one row, in that order.
    """

    table: Callable[[Sequence[Row], bool], None]
    values: Callable[[Row], object]
    columns: Sequence[str]
    cells: Callable[[Row], Sequence[str]]


@dataclass(frozen=True)
class StudyWithBest:
    """A study, and its best trial where one is correct."""

    study: StudyRow
    best: BestRow | None


def print_listing(
    rows: Sequence[Row],
    columns: Columns[Row],
    title: str = "",
    of: str = "",
    *,
    core: int | None = None,
    verbose: bool = True,
) -> None:
    """Print a table of rows each of which is of a kernel and a problem.

    Args:
        of: the attribute of a row that has these; the row itself unless given.
        core, verbose: as `print_table` has them. Where there is a core, problems are short, and also stand whole.
    """
    owners: list[Any] = [getattr(row, of) if of else row for row in rows]
    listed = [(one.kernel, one.problem) for one in owners]
    problems = told_apart(listed) if core is None else briefly(listed)
    cells = [
        [cell(row) if cell else problem for cell in columns.values()]
        for row, problem in zip(rows, problems, strict=True)
    ]
    heads = list(columns)
    if core is not None:
        heads.append("whole problem")
        cells = [[*row, whole] for row, whole in zip(cells, told_apart(listed), strict=True)]
    print_table(heads, cells, title, core=core, verbose=verbose)


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


def milliseconds(value: float | None, unit: str = " ms") -> str:
    """A time, for people."""
    return "" if value is None else f"{value:.4g}{unit}"


def decided(ratio: Ratio | None, *, confirmed: bool = True) -> str:
    """A speed-up in words: `7.11× faster`, `1.50× slower`, a tie, inconclusive, or that nothing confirms it."""
    if ratio is None:
        return ""
    if not confirmed:
        return f"{_factor(ratio.value)} unconfirmed"
    if ratio.decision is Decision.SLOWER:
        return f"{_factor(1 / ratio.value)} slower"
    return f"{_factor(ratio.value)} faster" if ratio.decision is Decision.FASTER else str(ratio.decision)


def _factor(value: float) -> str:
    return f"{value:.2f}×" if value < 9.995 else f"{value:.1f}×" if value < 99.95 else f"{value:.0f}×"


def interval(ratio: Ratio | None) -> str:
    """The interval of a speed-up; below 1 the other one is faster."""
    if ratio is None:
        return ""
    return " to ".join(f"{bound:.3f}" if bound >= 0.1 else f"{bound:.2g}" for bound in (ratio.low, ratio.high))


def share(ratio: Ratio | None) -> str:
    """A ratio as a percentage with its interval."""
    return "" if ratio is None else f"{ratio.value:.1%} [{ratio.low:.1%}, {ratio.high:.1%}]"


def over_reference(row: TrialRow) -> str:
    """A trial's speed-up over the reference."""
    return decided(row.over_reference, confirmed=row.confirmed) or "not compared"


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
    "ms": lambda row: milliseconds(row.time_ms, ""),
    "over reference": over_reference,
    "over torch.compile": lambda row: decided(row.over_compiled, confirmed=row.confirmed),
    "99 % interval": lambda row: interval(row.over_reference),
    "over default": lambda row: decided(row.over_default, confirmed=row.confirmed),
    "device": lambda row: row.device_name,
    "of copy rate": lambda row: share(row.over_copy),
    "compiler": lambda row: row.compiler,
    "trial": lambda row: str(row.trial_id),
    "configuration": lambda row: str(row.configuration),
}


def _print_best(rows: Sequence[BestRow], verbose: bool) -> None:
    title = f"Medians in ms; {eager_had(row.problem.options for row in rows)}"
    print_listing(rows, _BEST, title, core=4, verbose=verbose)
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
    "ms": lambda row: milliseconds(row.median_ms, ""),
    "kernel": lambda row: row.kernel,
    "problem": None,
    "device": lambda row: row.device_name,
    "configuration": lambda row: str(row.configuration),
    "message": lambda row: row.message.splitlines()[0][:200] if row.message else "",
}


def _print_trials(rows: Sequence[TrialRow], verbose: bool) -> None:
    print_listing(rows, _TRIALS, core=6, verbose=verbose)


_STUDIES: Columns[StudyWithBest] = {
    "study": lambda row: str(row.study.study_id),
    "kernel": lambda row: row.study.kernel,
    "problem": None,
    "best ms": lambda row: milliseconds(row.best.time_ms, "") if row.best else "",
    "over reference": lambda row: over_reference(row.best) if row.best else "",
    "trials": lambda row: str(row.study.trials),
    "last trial": lambda row: _minute(row.study.last_at),
    "device": lambda row: row.study.device.name,
    "sampler": lambda row: f"{row.study.sampler}, seed {row.study.seed}",
}


def _print_studies(rows: Sequence[StudyWithBest], verbose: bool) -> None:
    title = eager_had(row.study.problem.options for row in rows)
    print_listing(rows, _STUDIES, title, of="study", core=5, verbose=verbose)


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
    "tuned since": lambda row: "yes" if row.tuned else "",
    "device": lambda row: row.device_name,
    "last": lambda row: _minute(row.last_at),
    "served by": lambda row: row.served or "",
}


def _print_misses(rows: Sequence[MissRow], verbose: bool) -> None:
    print_listing(rows, _MISSES, core=4, verbose=verbose)


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
TRIALS = Listing(_print_trials, row_values, FLAT_COLUMNS, _trial_cells)
STUDIES = Listing(_print_studies, _study_values, _STUDY_COLUMNS, _study_cells)
MISSES = Listing(_print_misses, _miss_values, _MISS_COLUMNS, _miss_cells)
