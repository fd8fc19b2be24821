"""The tables of a report: rows of cells, with one unit in a column; everything is text, nothing is HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tunebench.db.queries.rows import StudyRow, TrialRow
from tunebench.studies.display.report import comparison_figures, figures
from tunebench.studies.display.report.analysis import RefusalCount
from tunebench.studies.display.report.gather import StudyData, StudySummary
from tunebench.studies.display.report.rates import Ceilings, resources, share_words
from tunebench.studies.display.report.style import Unit, fixed, number, ratio_text, time_unit, verdict_text
from tunebench.tuner.problem import Work
from tunebench.tuner.result import Baseline, Comparison

OVER = {Baseline.REFERENCE: "over the reference", Baseline.DEFAULT: "over the default"} | {
    Baseline.COMPILED: "over torch.compile"
}


_MOST_REASONS = 12


@dataclass(frozen=True)
class Cell:
    """A table's cell.

    Attributes:
        kind: a CSS class: `number` does not wrap, `reason` and `configuration` have room, `differs` stands out.
        link: a place on the page.
        value: what its column is sorted by; None for the text.
    """

    text: str
    kind: str = ""
    link: str = ""
    value: float | None = None


@dataclass(frozen=True)
class Table:
    """A table with its label for readers who cannot see it."""

    label: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def number_cell(value: float | None, digits: int = 4) -> Cell:
    """Return a cell with a number; empty where it is not known."""
    return Cell("" if value is None else number(value, digits), "number", value=value)


def fixed_cell(value: float) -> Cell:
    """Return a cell with a number of four significant digits, zeros included."""
    return Cell(fixed(value, 4), "number", value=value)


def table_of(label: str, columns: dict[str, Callable[[Any], Cell]], rows: Sequence[Any]) -> Table:
    """Return a table of a cell for each column and row, without the columns in which nothing is known."""
    made = {name: [cell(row) for row in rows] for name, cell in columns.items()}
    kept = {name: cells for name, cells in made.items() if any(cell.text for cell in cells)}
    return Table(label, tuple(kept), tuple(zip(*kept.values(), strict=True)))


def unit_of(times_ms: Sequence[float]) -> Unit:
    """Return one unit for a column of times: that of the time in the middle."""
    return time_unit(sorted(times_ms)[len(times_ms) // 2] if times_ms else 1.0)


def anchor_of(row: StudyRow) -> str:
    """Return the place of a study's section on the page."""
    return f"study-{row.study_id}"


def moment_text(moment: datetime) -> str:
    """Return a moment, in UTC, to the minute."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def overview_table(summaries: Sequence[StudySummary], problems: Sequence[str], in_full: set[int]) -> Table:
    """Return the table at the top; problems as `told_apart` has them.

    Args:
        in_full: the studies that have a section.
    """
    unit = unit_of([one.best_ms for one in summaries if one.best_ms is not None])
    texts = dict(zip((one.row.study_id for one in summaries), problems, strict=True))

    def over(baseline: Baseline) -> Callable[[StudySummary], Cell]:
        def cell(one: StudySummary) -> Cell:
            ratio = one.comparison.speedups.get(baseline) if one.comparison else None
            return Cell(ratio_text(ratio), "number", value=ratio.value) if ratio else Cell("")

        return cell

    def best(one: StudySummary) -> Cell:
        return Cell("none") if one.best_ms is None else number_cell(one.best_ms * unit.factor)

    def verdict(one: StudySummary) -> Cell:
        decision = one.comparison.decision(Baseline.REFERENCE) if one.comparison else None
        return Cell("not concluded" if decision is None else verdict_text(decision))

    def kernel(one: StudySummary) -> Cell:
        return Cell(one.row.kernel, link=anchor_of(one.row) if one.row.study_id in in_full else "")

    return table_of(
        "All studies of this report",
        {
            "kernel": kernel,
            "problem": lambda one: Cell(texts[one.row.study_id]),
            "device": lambda one: Cell(one.row.device.name),
            f"best, {unit.symbol}": best,
            "over reference": over(Baseline.REFERENCE),
            "verdict": verdict,
            "over default": over(Baseline.DEFAULT),
            "over torch.compile": over(Baseline.COMPILED),
            "trials": lambda one: Cell(f"{one.row.trials:,}", "number", value=one.row.trials),
        },
        summaries,
    )


def both_table(first: StudyData, second: StudyData) -> Table:
    """Return what is known of two studies in two columns; rows that differ stand out."""
    unit = unit_of([study.summary.best_ms for study in (first, second) if study.summary.best_ms])

    def facts(study: StudyData) -> dict[str, str]:
        row, best_ms = study.row, study.summary.best_ms
        ratios = study.comparison.speedups if study.comparison else {}
        best = study.best.configuration if study.best else {}
        return {
            "kernel": row.kernel,
            "problem": str(row.problem),
            "device": row.device.name,
            "compiler": row.compiler,
            "source digest": row.source_digest[:12],
            "search": f"{row.sampler}, seed {row.seed}",
            "trials; verified": f"{row.trials:,}; {len(study.timed):,}",
            f"best time, {unit.symbol}": "none" if best_ms is None else fixed(best_ms * unit.factor, 4),
            **{words: ratio_text(ratios[name]) for name, words in OVER.items() if name in ratios},
            **{f"best {name}": str(value) for name, value in best.items()},
        }

    left, right = facts(first), facts(second)
    rows = []
    for name in dict.fromkeys([*left, *right]):
        one, other = left.get(name, ""), right.get(name, "")
        kind = "reason" if one == other else "reason differs"
        rows.append((Cell(name), Cell(one, kind), Cell(other, kind)))
    columns = ("", *(f"study {study.row.study_id}" for study in (first, second)))
    return Table("Two studies side by side", columns, tuple(rows))


def reasons_table(reasons: Sequence[RefusalCount]) -> Table:
    """Return the table of reasons of refusal, the rare ones counted together."""
    rows = [
        (
            Cell(str(refusal.count), "number"),
            Cell(refusal.status.value),
            Cell(refusal.reason, "reason"),
            Cell(str(refusal.trial), "number"),
        )
        for refusal in reasons[:_MOST_REASONS]
    ]
    if rest := reasons[_MOST_REASONS:]:
        count = sum(refusal.count for refusal in rest)
        rows.append((Cell(str(count), "number"), Cell(""), Cell(f"{len(rest)} other reasons", "reason"), Cell("")))
    return Table("Refused variants by reason", ("trials", "status", "reason of the first", "first trial"), tuple(rows))


def fastest_table(study: StudyData, chosen: Sequence[TrialRow]) -> Table:
    """Return a table of trials: times as screened, rates, and what the variants take."""
    work, unit = study.work, unit_of([trial.median_ms or 0.0 for trial in chosen])
    taken = {trial.trial_id: resources(study.recorded[trial.trial_id], study.row.device) for trial in chosen}

    def rate(quantity: int | None, factor: float) -> Callable[[TrialRow], Cell]:
        return lambda trial: number_cell(None if quantity is None else quantity / (trial.median_ms or 1.0) * factor)

    def occupied(trial: TrialRow) -> Cell:
        found = taken[trial.trial_id].occupancy
        text = "" if found is None else f"{100 * found.share:.0f}, by {found.bound}"
        return Cell(text, "number", value=None if found is None else found.share)

    def shared(trial: TrialRow) -> float | None:
        count = taken[trial.trial_id].shared
        return None if count is None else count / 1024

    return table_of(
        "Fastest trials as screened",
        {
            "trial": lambda trial: Cell(str(trial.number), "number", value=trial.number),
            f"median, {unit.symbol}": lambda trial: fixed_cell((trial.median_ms or 0.0) * unit.factor),
            "± %": lambda trial: number_cell(figures.half_width(trial), 2),
            "GB/s": rate(None if work is None else work.bytes, 1e-6),
            "TFLOP/s": rate(None if work is None else work.operations, 1e-9),
            "energy, mJ": lambda trial: number_cell(study.energies_mj.get(trial.trial_id)),
            "registers": lambda trial: number_cell(taken[trial.trial_id].registers),
            "spills, B": lambda trial: number_cell(taken[trial.trial_id].spills),
            "shared, KiB": lambda trial: number_cell(shared(trial)),
            "occupancy, %": occupied,
            "configuration": lambda trial: Cell(str(trial.configuration), "configuration"),
        },
        chosen,
    )


def rates_table(comparison: Comparison, work: Work, known: Ceilings) -> Table:
    """Return a table of the contenders' times and rates, and the shares of ceilings that they reach."""
    rates = comparison_figures.contender_rates(comparison, work)
    unit = unit_of([comparison.medians_ms[name] for name in rates])
    moved = {name: work.bytes / comparison.medians_ms[name] * 1e3 for name in rates}
    has_ceiling = known.bytes_per_second is not None
    return table_of(
        "Rates of the contenders",
        {
            "contender": Cell,
            f"median, {unit.symbol}": lambda name: number_cell(comparison.medians_ms[name] * unit.factor),
            "GB/s": lambda name: number_cell(moved[name] / 1e9),
            "TFLOP/s": lambda name: number_cell(rates[name] / 1e12),
            "energy, mJ": lambda name: number_cell(comparison.energies_mj.get(name)),
            "reaches": lambda name: Cell(
                share_words(rates[name], work.operations / work.bytes, known) if has_ceiling else ""
            ),
        },
        list(rates),
    )
