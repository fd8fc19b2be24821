"""How recorded results are listed: tables for people, plain values for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from tunebench.db.queries.data_frames import FLAT_COLUMNS, csv_text, flat_values
from tunebench.db.queries.rows import BestRow, MissRow, StudyRow, TrialRow
from tunebench.studies.display.terminal import print_paragraph, print_table
from tunebench.tuner.problem import Problem, briefly, told_apart
from tunebench.tuner.result import Decision, Ratio
from tunebench.tuner.settings import described

Row = TypeVar("Row")


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
    return "" if ratio is None else f"{ratio.low:.3f} to {ratio.high:.3f}"


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


def _print_best(rows: Sequence[BestRow], verbose: bool) -> None:
    columns = ("kernel", "problem", "ms", "over reference", "over torch.compile", "99 % interval", "over default")
    more = ("device", "of copy rate", "compiler", "trial", "whole problem", "configuration")
    listed = [(row.kernel, row.problem) for row in rows]
    cells = [
        (
            row.kernel,
            problem,
            milliseconds(row.time_ms, ""),
            over_reference(row),
            decided(row.over_compiled, confirmed=row.confirmed),
            interval(row.over_reference),
            decided(row.over_default, confirmed=row.confirmed),
            row.device_name,
            share(row.over_copy),
            row.compiler,
            str(row.trial_id),
            whole,
            str(row.configuration),
        )
        for row, problem, whole in zip(rows, briefly(listed), told_apart(listed), strict=True)
    ]
    title = f"Medians in ms; {eager_had(row.problem.options for row in rows)}"
    print_table((*columns, *more), cells, title, core=4, verbose=verbose)
    for row in rows:
        if not row.confirmed:
            print_paragraph(
                f"trial {row.trial_id} leads the search of {row.kernel} ({row.problem}) and is not confirmed: "
                f"'tunebench tune {row.trial_id}' takes the final rounds again"
            )


def _print_trials(rows: Sequence[TrialRow], verbose: bool) -> None:
    columns = (
        "trial",
        "study",
        "status",
        "ms",
        "kernel",
        "problem",
        "device",
        "whole problem",
        "configuration",
        "message",
    )
    listed = [(row.kernel, row.problem) for row in rows]
    cells = [
        (
            str(row.trial_id),
            f"{row.study_id}.{row.number}",
            row.status.value,
            milliseconds(row.median_ms, ""),
            row.kernel,
            problem,
            row.device_name,
            whole,
            str(row.configuration),
            row.message.splitlines()[0][:200] if row.message else "",
        )
        for row, problem, whole in zip(rows, briefly(listed), told_apart(listed), strict=True)
    ]
    print_table(columns, cells, core=6, verbose=verbose)


def _print_studies(rows: Sequence[StudyWithBest], verbose: bool) -> None:
    columns = ("study", "kernel", "problem", "best ms", "over reference", "trials", "last trial", "device", "sampler")
    listed = [(row.study.kernel, row.study.problem) for row in rows]
    cells = [
        (
            str(row.study.study_id),
            row.study.kernel,
            problem,
            milliseconds(row.best.time_ms, "") if row.best else "",
            over_reference(row.best) if row.best else "",
            str(row.study.trials),
            _minute(row.study.last_at),
            row.study.device.name,
            f"{row.study.sampler}, seed {row.study.seed}",
            whole,
        )
        for row, problem, whole in zip(rows, briefly(listed), told_apart(listed), strict=True)
    ]
    print_table(
        (*columns, "whole problem"),
        cells,
        eager_had(row.study.problem.options for row in rows),
        core=5,
        verbose=verbose,
    )


_TRIAL_VALUES = (
    *("trial", "study", "number", "kernel", "source_digest", "problem", "accuracy", "eager"),
    *("device", "device_uuid", "architecture"),
    *("compiler", "sampler", "seed", "status", "configuration", "median_ms", "low_ms", "high_ms", "regime"),
    *("recorded_at", "message", "confirmed", "confirmed_ms"),
    *("over_reference", "over_default", "over_compiled", "over_copy"),
)


def row_values(row: TrialRow) -> dict[str, object]:
    """A trial as plain values for `--json`."""
    ratios = {name: ratio_values(getattr(row, name)) for name in _TRIAL_VALUES if name.startswith("over_")}
    known = (
        vars(row)
        | ratios
        | {
            "trial": row.trial_id,
            "study": row.study_id,
            "problem": problem_values(row.problem),
            "accuracy": row.problem.accuracy.value,
            "eager": described(row.problem.options),
            "device": row.device_name,
            "status": row.status.value,
            "configuration": dict(row.configuration),
            "regime": row.regime.value if row.regime else None,
            "recorded_at": row.recorded_at.isoformat(),
            "confirmed": row.confirmed,
        }
    )
    return {name: known[name] for name in _TRIAL_VALUES}


def ratio_values(ratio: Ratio | None) -> dict[str, object] | None:
    """A ratio as plain values for `--json`."""
    if ratio is None:
        return None
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high, "rounds": ratio.rounds}


def problem_values(problem: Problem) -> dict[str, object]:
    """A problem as plain values for `--json`."""
    return {"axes": dict(problem.axes), "dtype": problem.dtype, "options": dict(problem.options)}


def _study_values(row: StudyWithBest) -> dict[str, object]:
    study = row.study
    return {
        "study": study.study_id,
        "kernel": study.kernel,
        "source_digest": study.source_digest,
        "problem": problem_values(study.problem),
        "eager": described(study.problem.options),
        "device": study.device.name,
        "architecture": study.device.architecture,
        "compiler": study.compiler,
        "sampler": study.sampler,
        "seed": study.seed,
        "trials": study.trials,
        "begun_at": study.begun_at.isoformat(),
        "last_at": study.last_at.isoformat(),
        "best": row_values(row.best) if row.best else None,
    }


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


def _print_misses(rows: Sequence[MissRow], verbose: bool) -> None:
    listed = [(row.kernel, row.problem) for row in rows]
    cells = [
        (
            str(row.calls),
            row.kernel,
            problem,
            "yes" if row.tuned else "",
            row.device_name,
            _minute(row.last_at),
            row.served or "",
            whole,
        )
        for row, problem, whole in zip(rows, briefly(listed), told_apart(listed), strict=True)
    ]
    columns = ("calls", "kernel", "problem", "tuned since", "device", "last", "served by", "whole problem")
    print_table(columns, cells, core=4, verbose=verbose)


def _miss_values(row: MissRow) -> dict[str, object]:
    return {
        "kernel": row.kernel,
        "problem": problem_values(row.problem),
        "device": row.device_name,
        "architecture": row.architecture,
        "calls": row.calls,
        "first_at": row.first_at.isoformat(),
        "last_at": row.last_at.isoformat(),
        "tuned": row.tuned,
        "source_digest": row.source_digest,
        "path": row.path,
        "served": row.served,
    }


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
