"""The words, tiles, tables and plots of a report, ready for its template; everything is text, nothing is HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import combinations

from tunebench.db.queries.rows import StudyRow, TrialRow
from tunebench.studies.display.report import comparison_figures, figures
from tunebench.studies.display.report.analysis import (
    ENOUGH_FOR_IMPORTANCE,
    RefusalCount,
    grid,
    importances,
    marginals,
    refusals,
)
from tunebench.studies.display.report.figures import Figure
from tunebench.studies.display.report.gather import StudyData, StudySummary
from tunebench.studies.display.report.style import bytes_text, fixed, ratio_text, share_text, time_unit, verdict_text
from tunebench.studies.display.tables import eager_had
from tunebench.tuner.result import Baseline, TrialStatus

_PAIRED_TUNABLES = 3
"""Number of the most important tunables that are shown in pairs."""

_MOST_REASONS = 12
_FASTEST = 10


@dataclass(frozen=True)
class Cell:
    """A table's cell.

    Attributes:
        kind: a CSS class: `number` does not wrap, `reason` has room.
        link: a place on the page.
    """

    text: str
    kind: str = ""
    link: str = ""


@dataclass(frozen=True)
class Table:
    """A table with its label for readers who cannot see it."""

    label: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Tile:
    """One figure of the summary."""

    name: str
    text: str
    note: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Part:
    """A part of a study's section.

    Attributes:
        name: unique within the study; an HTML identifier.
        layout: a CSS class for its plots: `pair`, `small`, or empty.
        lead: a plot that stands before them, as wide as the page.
    """

    name: str
    title: str
    texts: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    layout: str = ""
    lead: Figure | None = None
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class StudyView:
    """A study's section.

    Attributes:
        gist: what is seen of it while it is folded, beside its title.
    """

    anchor: str
    title: str
    gist: str
    subtitle: str
    notes: tuple[str, ...]
    tiles: tuple[Tile, ...]
    parts: tuple[Part, ...]


OVERVIEW_COLUMNS = ("kernel", "problem", "device", "best", "over reference", "verdict", "over default", "trials")


def overview_row(summary: StudySummary, problem: str, *, has_section: bool) -> tuple[Cell, ...]:
    """Return the study's row in the table at the top; the problem as `told_apart` has it."""
    row, ratios = summary.row, summary.comparison.speedups if summary.comparison else {}
    reference, default = (ratios.get(name) for name in (Baseline.REFERENCE, Baseline.DEFAULT))
    decision = summary.comparison.decision(Baseline.REFERENCE) if summary.comparison else None
    best = "none" if summary.best_ms is None else time_unit(summary.best_ms).text(summary.best_ms)
    return (
        Cell(row.kernel, link=_anchor(row) if has_section else ""),
        Cell(problem),
        Cell(row.device.name),
        Cell(best, "number"),
        Cell(ratio_text(reference) if reference else "", "number"),
        Cell("not concluded" if decision is None else verdict_text(decision)),
        Cell(ratio_text(default) if default else "", "number"),
        Cell(f"{row.trials:,}", "number"),
    )


def study_view(study: StudyData) -> StudyView:
    """Return a study's section."""
    row = study.row
    space = study.kernel.space if study.kernel else None
    timed = study.timed
    shares = importances(timed)
    by_value = marginals(timed, space)
    order = {name: place for place, name in enumerate(shares)}
    by_value.sort(key=lambda marginal: order.get(marginal.tunable, len(order)))
    ranked = [marginal.tunable for marginal in by_value][:_PAIRED_TUNABLES]
    pairs = [grid(timed, *pair, space) for pair in combinations(ranked, 2)]
    parts = (
        _convergence_part(study),
        _comparison_part(study),
        _tunables_part(study, figures.importance(shares), figures.effects(by_value, timed)),
        _pairs_part([figures.heat_map(position, pair) for position, pair in enumerate(pairs)]),
        _fastest_part(study),
        _outcome_part(study),
        _rounds_part(study),
        _environment_part(study),
    )
    return StudyView(
        anchor=_anchor(row),
        title=f"{row.kernel}: {row.problem}",
        gist=_gist(study.summary),
        subtitle=f"Study {row.study_id} on {row.device.name}, built by {row.compiler}, searched by {row.sampler} with "
        f"seed {row.seed}, {_moment(row.begun_at)} to {_moment(row.last_at)}; {eager_had([row.problem.options])}.",
        notes=_notes(study),
        tiles=tuple(_tiles(study)),
        parts=parts,
    )


def _anchor(row: StudyRow) -> str:
    return f"study-{row.study_id}"


def _gist(summary: StudySummary) -> str:
    decision = summary.comparison.decision(Baseline.REFERENCE) if summary.comparison else None
    if summary.comparison is None or decision is None:
        return f"{summary.row.device.name}: not concluded"
    ratio = summary.comparison.speedups[Baseline.REFERENCE]
    return f"{summary.row.device.name}: {ratio_text(ratio)} over the reference, {verdict_text(decision)}"


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _refused(study: StudyData) -> int:
    return len(study.trials) - len(study.timed)


def _notes(study: StudyData) -> tuple[str, ...]:
    notes = []
    if len(study.trials) < study.row.trials:
        notes.append(f"Only the newest {len(study.trials):,} of {study.row.trials:,} trials are shown here.")
    if not study.correct:
        notes.append("No variant of this study was correct.")
    elif study.comparison is None:
        notes.append("This study was not concluded: there is no comparison with the baselines yet.")
    if study.comparison is not None:
        notes += [f"Baseline {name} is missing: {reason}" for name, reason in study.comparison.missing.items()]
    if len(study.environments) > 1:
        notes.append("The trials ran under more than one environment: see below before comparing their times.")
    return tuple(notes)


def _tiles(study: StudyData) -> list[Tile]:
    tiles = []
    if study.best is not None:
        tiles.append(Tile("best configuration", str(study.best.configuration), f"trial {study.best.number}", wide=True))
    if best_ms := study.summary.best_ms:
        note = "median of the final comparison" if study.comparison else "as screened, not confirmed"
        tiles.append(Tile("best time", time_unit(best_ms).text(best_ms), note))
    comparison = study.comparison
    ratios = comparison.speedups if comparison else {}
    for baseline in (Baseline.REFERENCE, Baseline.DEFAULT, Baseline.COMPILED):
        if comparison and (ratio := ratios.get(baseline)):
            value, _, interval = ratio_text(ratio).partition(" ")
            tiles.append(
                Tile(
                    "over torch.compile" if baseline is Baseline.COMPILED else f"over the {baseline}",
                    value,
                    f"{interval}, {verdict_text(comparison.decision(baseline) or ratio.decision)}",
                )
            )
    if copy := ratios.get(Baseline.COPY):
        value, _, interval = share_text(copy).partition(" [")
        tiles.append(Tile("of the copy rate", value, f"[{interval}"))
    early = study.count(TrialStatus.PRUNED)
    tiles.append(
        Tile(
            "verified",
            f"{len(study.timed):,} of {len(study.trials):,}",
            f"{early:,} of them given up early" if early else "all of them timed in full",
        )
    )
    tiles.append(Tile("refused", f"{_refused(study):,}", "wrong, failing or not built"))
    return tiles


def _convergence_part(study: StudyData) -> Part:
    figure = figures.convergence(study)
    texts = () if figure else ("Nothing to show: no variant was correct.",)
    return Part("convergence", "Convergence", texts, (figure,) if figure else ())


def _comparison_part(study: StudyData) -> Part:
    comparison = study.comparison
    if comparison is None:
        return Part("comparison", "Speed-ups and roofline", ("Nothing to show: this study was not concluded.",))
    bars = comparison_figures.speed_ups(comparison)
    roof = comparison_figures.roofline(comparison, study.work) if study.work else None
    texts: tuple[str, ...] = ()
    if study.work is None:
        texts = (f"The roofline is left out: {study.work_missing}.",)
    elif roof is None:
        texts = ("The roofline is left out: this comparison has no plain copy, which measures the memory's ceiling.",)
    pictures = tuple(figure for figure in (bars, roof) if figure is not None)
    return Part("comparison", "Speed-ups and roofline", texts, pictures, "pair" if len(pictures) > 1 else "")


def _tunables_part(study: StudyData, ranking: Figure | None, effects: Sequence[Figure]) -> Part:
    if not effects:
        return Part("tunables", "Effect of each tunable", ("Nothing to show: no tunable varied among timed trials.",))
    ranked = (
        "the most important first" if ranking else f"unranked: fewer than {ENOUGH_FOR_IMPORTANCE} trials were timed"
    )
    text = (
        f"Times of the {len(study.timed):,} timed trials by each tunable's value, {ranked}. Diamonds are the best of "
        "each value; a box of mostly hopeless trials runs out of the plot. The search visits promising values more "
        "often, so boxes describe what was tried, not the whole space."
    )
    return Part("tunables", "Effect of each tunable", (text,), tuple(effects), "small", ranking)


def _pairs_part(pictures: Sequence[Figure]) -> Part:
    if not pictures:
        return Part("pairs", "Pairs of tunables", ("Nothing to show: fewer than two tunables varied.",))
    text = (
        "The best time of each pair of values, for the tunables that matter most. Colours end "
        "at three times the fastest cell of a map; empty cells were not timed."
    )
    return Part("pairs", "Pairs of tunables", (text,), tuple(pictures), "small")


def _outcome_part(study: StudyData) -> Part:
    reasons = refusals(study.trials)
    texts = () if reasons else ("No variant was refused.",)
    tables = (_reasons_table(reasons),) if reasons else ()
    return Part("refusals", "Refused variants", texts, (figures.outcomes(study),), tables=tables)


def _reasons_table(reasons: Sequence[RefusalCount]) -> Table:
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


def _fastest_part(study: StudyData) -> Part:
    if not study.correct:
        return Part("fastest", "Fastest trials", ("Nothing to show: no variant was correct.",))
    text = "As screened, with 95 % intervals of the median; the comparison decided between the first few."
    return Part("fastest", "Fastest trials", (text,), tables=(_fastest_table(study.correct[:_FASTEST]),))


def _fastest_table(trials: Sequence[TrialRow]) -> Table:
    rows = []
    for trial in trials:
        median, low, high = (value or 0.0 for value in (trial.median_ms, trial.low_ms, trial.high_ms))
        unit = time_unit(median)
        middle, *interval = (fixed(time * unit.factor, 4) for time in (median, low, high))
        cells = (Cell(str(trial.number), "number"), Cell(f"{middle} {unit.symbol} [{', '.join(interval)}]", "number"))
        rows.append((*cells, Cell(str(trial.configuration), "reason")))
    return Table("Fastest trials as screened", ("trial", "median", "configuration"), tuple(rows))


def _rounds_part(study: StudyData) -> Part:
    if study.comparison is None or not study.comparison.medians_ms:
        return Part("rounds", "Samples by round", ("Nothing to show: this study was not concluded.",))
    return Part("rounds", "Samples by round", (), (comparison_figures.rounds(study.comparison),))


def _environment_part(study: StudyData) -> Part:
    device = study.row.device
    facts = [
        ("device", f"{device.name} ({device.kind}, {device.architecture})"),
        ("device identity", device.uuid),
        ("multiprocessors", str(device.multiprocessors)),
        ("memory; last-level cache", f"{bytes_text(device.memory_bytes)}; {bytes_text(device.l2_bytes)}"),
        ("source digest", study.row.source_digest),
        ("cache regime", ", ".join(sorted({trial.regime.value for trial in study.timed if trial.regime})) or "none"),
    ]
    for entry in study.environments:
        moments = f"{entry.trials} trials, {_moment(entry.first_at)} to {_moment(entry.last_at)}"
        facts.append(("environment of", moments))
        facts += [(name, "none" if value is None else str(value)) for name, value in asdict(entry.environment).items()]
    rows = tuple((Cell(name), Cell(value, "reason")) for name, value in facts)
    return Part("environment", "Environment", tables=(Table("Environment", ("what", "value"), rows),))
