"""The words, tiles, tables and plots of a report, ready for its template; everything is text, nothing is HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import combinations
from typing import Any

from tunebench.db.queries.rows import StudyRow, TrialRow
from tunebench.studies.display.report import comparison_figures, figures, overview_figures
from tunebench.studies.display.report.analysis import (
    ENOUGH_FOR_IMPORTANCE,
    RefusalCount,
    grid,
    importances,
    marginals,
    refusals,
)
from tunebench.studies.display.report.figures import Figure
from tunebench.studies.display.report.gather import MOST_IN_TABLE, ReportData, StudyData, StudySummary
from tunebench.studies.display.report.rates import resources, share_words
from tunebench.studies.display.report.style import (
    Unit,
    bytes_text,
    fixed,
    number,
    ratio_text,
    share_text,
    time_unit,
    verdict_text,
)
from tunebench.studies.display.tables import eager_had
from tunebench.tuner.ceilings import GENEROSITY
from tunebench.tuner.problem import briefly
from tunebench.tuner.result import Baseline, LaunchCounters, TrialStatus
from tunebench.tuner.timing.counters import METRICS, longest

_PAIRED_TUNABLES = 3
"""Number of the most important tunables that are shown in pairs."""

_MOST_REASONS = 12
_MOST_EXPLAINED = 6
_TOO_FEW = "fewer than two tunables varied"

_OVER = {Baseline.REFERENCE: "over the reference", Baseline.DEFAULT: "over the default"} | {
    Baseline.COMPILED: "over torch.compile"
}


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


@dataclass(frozen=True)
class Tile:
    """One figure of the summary."""

    name: str
    text: str
    note: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Part:
    """A part of a study's section, or of the page.

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


def _known(figure: Figure | None) -> tuple[Figure, ...]:
    return () if figure is None else (figure,)


def _figure(value: float | None, digits: int = 4) -> Cell:
    """Return a cell with a number; empty where it is not known."""
    return Cell("" if value is None else number(value, digits), "number", value=value)


def _table(label: str, columns: dict[str, Callable[[Any], Cell]], rows: Sequence[Any]) -> Table:
    """Return a table of a cell for each column and row, without the columns in which nothing is known."""
    made = {name: [cell(row) for row in rows] for name, cell in columns.items()}
    kept = {name: cells for name, cells in made.items() if any(cell.text for cell in cells)}
    return Table(label, tuple(kept), tuple(zip(*kept.values(), strict=True)))


def overview_table(summaries: Sequence[StudySummary], problems: Sequence[str], in_full: set[int]) -> Table:
    """Return the table at the top; problems as `told_apart` has them.

    Args:
        in_full: the studies that have a section.
    """
    unit = _unit_of([one.best_ms for one in summaries if one.best_ms is not None])
    texts = dict(zip((one.row.study_id for one in summaries), problems, strict=True))

    def over(baseline: Baseline) -> Callable[[StudySummary], Cell]:
        def cell(one: StudySummary) -> Cell:
            ratio = one.comparison.speedups.get(baseline) if one.comparison else None
            return Cell(ratio_text(ratio), "number", value=ratio.value) if ratio else Cell("")

        return cell

    def best(one: StudySummary) -> Cell:
        return Cell("none") if one.best_ms is None else _figure(one.best_ms * unit.factor)

    def verdict(one: StudySummary) -> Cell:
        decision = one.comparison.decision(Baseline.REFERENCE) if one.comparison else None
        return Cell("not concluded" if decision is None else verdict_text(decision))

    def kernel(one: StudySummary) -> Cell:
        return Cell(one.row.kernel, link=_anchor(one.row) if one.row.study_id in in_full else "")

    return _table(
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


def page_parts(report: ReportData) -> tuple[Part, ...]:
    """Return what the page shows of all its studies together."""
    problems = briefly((one.row.kernel, one.row.problem) for one in report.overview)
    sizes = overview_figures.times_by_size(report.overview)
    parts = [
        Part("all-speed-ups", "Speed-ups", figures=_known(overview_figures.all_speed_ups(report.overview, problems))),
        Part("all-sizes", "Time against size", figures=tuple(sizes), layout="small" if len(sizes) > 1 else ""),
    ]
    if len(report.studies) == 2:
        first, second = report.studies
        figure = overview_figures.side_by_side(first, second)
        parts.append(Part("both", "Side by side", figures=_known(figure), tables=(_both_table(first, second),)))
    return tuple(part for part in parts if part.figures or part.tables)


def _both_table(first: StudyData, second: StudyData) -> Table:
    """Return what is known of two studies in two columns; rows that differ stand out."""
    unit = _unit_of([study.summary.best_ms for study in (first, second) if study.summary.best_ms])

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
            **{words: ratio_text(ratios[name]) for name, words in _OVER.items() if name in ratios},
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


def _unit_of(times_ms: Sequence[float]) -> Unit:
    """Return one unit for a column of times: that of the time in the middle."""
    return time_unit(sorted(times_ms)[len(times_ms) // 2] if times_ms else 1.0)


def study_view(study: StudyData) -> StudyView:
    """Return a study's section."""
    row = study.row
    space = study.kernel.space if study.kernel else None
    timed = study.timed
    shares = importances(timed)
    by_value = marginals(timed, space)
    order = {name: place for place, name in enumerate(shares)}
    by_value.sort(key=lambda marginal: order.get(marginal.tunable, len(order)))
    ranked = [marginal.tunable for marginal in by_value]
    pairs = [grid(timed, *pair, space) for pair in combinations(ranked[:_PAIRED_TUNABLES], 2)]
    parts = (
        _plot_part("convergence", "Convergence", figures.convergence(study), "no variant was correct"),
        _comparison_part(study),
        _fastest_part(study),
        *_energy_part(study),
        *_counters_part(study),
        _tunables_part(study, figures.importance(shares), figures.effects(by_value, timed)),
        _pairs_part([figures.heat_map(position, pair) for position, pair in enumerate(pairs)]),
        _plot_part(
            "parallel", "Parallel coordinates", figures.parallel(study, ranked), "fewer than two tunables varied"
        ),
        _outcome_part(study),
        _noise_part(study),
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
    for baseline, words in _OVER.items():
        if comparison and (ratio := ratios.get(baseline)):
            value, _, interval = ratio_text(ratio).partition(" ")
            decision = verdict_text(comparison.decision(baseline) or ratio.decision)
            tiles.append(Tile(words, value, f"{interval}, {decision}"))
    # On a CPU, or where caches or less work beat the copy, its rate is no ceiling.
    known, copy = study.ceilings, ratios.get(Baseline.COPY)
    if copy and known and known.bytes_per_second and copy.value <= GENEROSITY:
        value, _, interval = share_text(copy).partition(" [")
        tiles.append(Tile("of the copy rate", value, f"[{interval}"))
    early = study.count(TrialStatus.PRUNED)
    note = f"{early:,} of them given up early" if early else "all of them timed in full"
    tiles.append(Tile("verified", f"{len(study.timed):,} of {len(study.trials):,}", note))
    tiles.append(Tile("refused", f"{_refused(study):,}", "wrong, failing or not built"))
    return tiles


def _plot_part(name: str, title: str, figure: Figure | None, why_not: str) -> Part:
    return Part(name, title, () if figure else (f"Nothing to show: {why_not}.",), _known(figure))


def _comparison_part(study: StudyData) -> Part:
    title, comparison, work, known = "Speed-ups and roofline", study.comparison, study.work, study.ceilings
    if comparison is None:
        return Part("comparison", title, ("Nothing to show: this study was not concluded.",))
    pictures = _known(comparison_figures.speed_ups(comparison))
    if work is None or known is None:
        return Part("comparison", title, (f"The roofline is left out: {study.work_note}.",), pictures)
    roof = comparison_figures.roofline(comparison, work, known, study.work_note)
    texts = () if roof else (f"The roofline is left out. {known.account}",)
    rates = comparison_figures.contender_rates(comparison, work)
    unit = _unit_of([comparison.medians_ms[name] for name in rates])
    moved = {name: work.bytes / comparison.medians_ms[name] * 1e3 for name in rates}
    has_ceiling = known.bytes_per_second is not None
    table = _table(
        "Rates of the contenders",
        {
            "contender": Cell,
            f"median, {unit.symbol}": lambda name: _figure(comparison.medians_ms[name] * unit.factor),
            "GB/s": lambda name: _figure(moved[name] / 1e9),
            "TFLOP/s": lambda name: _figure(rates[name] / 1e12),
            "energy, mJ": lambda name: _figure(comparison.energies_mj.get(name)),
            "reaches": lambda name: Cell(
                share_words(rates[name], work.operations / work.bytes, known) if has_ceiling else ""
            ),
        },
        list(rates),
    )
    pictures += _known(roof)
    return Part("comparison", title, texts, pictures, "pair" if len(pictures) > 1 else "", tables=(table,))


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
        return Part("pairs", "Pairs of tunables", (f"Nothing to show: {_TOO_FEW}.",))
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
    """Return the table of the fastest trials: times as screened, rates, and what the variants take."""
    chosen = [trial for trial in study.correct if trial.trial_id in study.recorded][:MOST_IN_TABLE]
    if not chosen:
        return Part("fastest", "Fastest trials", ("Nothing to show: no variant was correct.",))
    work, unit = study.work, _unit_of([trial.median_ms or 0.0 for trial in chosen])
    taken = {trial.trial_id: resources(study.recorded[trial.trial_id], study.row.device) for trial in chosen}

    def rate(quantity: int | None, factor: float) -> Callable[[TrialRow], Cell]:
        return lambda trial: _figure(None if quantity is None else quantity / (trial.median_ms or 1.0) * factor)

    def occupied(trial: TrialRow) -> Cell:
        found = taken[trial.trial_id].occupancy
        text = "" if found is None else f"{100 * found.share:.0f}, by {found.bound}"
        return Cell(text, "number", value=None if found is None else found.share)

    def shared(trial: TrialRow) -> float | None:
        count = taken[trial.trial_id].shared
        return None if count is None else count / 1024

    table = _table(
        "Fastest trials as screened",
        {
            "trial": lambda trial: Cell(str(trial.number), "number", value=trial.number),
            f"median, {unit.symbol}": lambda trial: _fixed((trial.median_ms or 0.0) * unit.factor),
            "± %": lambda trial: _figure(figures.half_width(trial), 2),
            "GB/s": rate(None if work is None else work.bytes, 1e-6),
            "TFLOP/s": rate(None if work is None else work.operations, 1e-9),
            "energy, mJ": lambda trial: _figure(study.energies_mj.get(trial.trial_id)),
            "registers": lambda trial: _figure(taken[trial.trial_id].registers),
            "spills, B": lambda trial: _figure(taken[trial.trial_id].spills),
            "shared, KiB": lambda trial: _figure(shared(trial)),
            "occupancy, %": occupied,
            "configuration": lambda trial: Cell(str(trial.configuration), "configuration"),
        },
        chosen,
    )
    texts = ["As screened, with half the 95 % interval of the median; the comparison decided between the first few."]
    if len(study.correct) > len(chosen):
        texts.append(f"The {len(chosen)} fastest of {len(study.correct):,} correct trials.")
    if "registers" in table.columns:
        texts.append("Registers are a thread's, spills bytes of a thread, shared memory a block's, largest first.")
        if "occupancy, %" not in table.columns:
            texts.append("These trials' launches were not recorded, so that their occupancy is not known.")
    return Part("fastest", "Fastest trials", (" ".join(texts),), tables=(table,))


def _energy_part(study: StudyData) -> tuple[Part, ...]:
    """Return the part about time and energy; none where no trial's energy was measured."""
    figure = figures.pareto(study)
    return () if figure is None else (Part("energy", "Time and energy", figures=(figure,)),)


def _counters_part(study: StudyData) -> tuple[Part, ...]:
    """Return the part about the trials whose counters were read; none where there are no such trials."""
    read = [
        (trial.number, one) for trial in study.correct if (one := study.recorded.get(trial.trial_id)) and one.counters
    ]
    if not read:
        return ()
    launches = [(number, launch) for number, one in read[:_MOST_EXPLAINED] for launch in one.counters]

    def value(launch: tuple[int, LaunchCounters], name: str) -> Cell:
        return _figure(launch[1].values.get(name))

    rows = [
        (Cell(words), *(value(launch, name) for launch in launches))
        for name, words in METRICS.items()
        if any(name in launch.values for _, launch in launches)
    ]
    heads = ("counter", *(f"trial {number}: {launch.kernel}" for number, launch in launches))
    drawn = [figures.peaks(number, longest(one.counters)) for number, one in read[:_MOST_EXPLAINED]]
    text = "What Nsight Compute read of the launches of one forward ('tunebench explain'); the bars are of the longest."
    table = Table("Counters of launches", heads, tuple(rows))
    pictures = tuple(figure for figure in drawn if figure is not None)
    return (Part("counters", "Counters", (text,), pictures, "small", tables=(table,)),)


def _fixed(value: float) -> Cell:
    return Cell(fixed(value, 4), "number", value=value)


def _noise_part(study: StudyData) -> Part:
    pictures = _known(figures.noise(study))
    if study.comparison is not None and study.comparison.medians_ms:
        pictures += (comparison_figures.rounds(study.comparison),)
    texts = () if study.comparison else ("No samples by round: this study was not concluded.",)
    return Part("rounds", "Noise and samples by round", texts, pictures)


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
