"""The words, tiles, tables and plots of a report, ready for its template; everything is text, nothing is HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

from tunebench.studies.display.report import comparison_figures, figures, overview_figures, trial_figures
from tunebench.studies.display.report.analysis import (
    ENOUGH_FOR_IMPORTANCE,
    grid,
    importances,
    marginals,
    refusals,
)
from tunebench.studies.display.report.figures import Figure
from tunebench.studies.display.report.gather import MOST_IN_TABLE, ReportData, StudyData, StudySummary
from tunebench.studies.display.report.style import (
    bytes_text,
    ratio_text,
    share_text,
    time_unit,
    verdict_text,
)
from tunebench.studies.display.report.tables import (
    OVER,
    Cell,
    Table,
    anchor_of,
    both_table,
    fastest_table,
    moment_text,
    number_cell,
    rates_table,
    reasons_table,
)
from tunebench.studies.display.tables import eager_had
from tunebench.tuner.ceilings import GENEROSITY
from tunebench.tuner.problem import briefly
from tunebench.tuner.result import Baseline, LaunchCounters, TrialStatus
from tunebench.tuner.timing.counters import METRICS, longest

_PAIRED_TUNABLES = 3
"""Number of the most important tunables that are shown in pairs."""

_MOST_EXPLAINED = 6
_TOO_FEW = "fewer than two tunables varied"


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
        parts.append(Part("both", "Side by side", figures=_known(figure), tables=(both_table(first, second),)))
    return tuple(part for part in parts if part.figures or part.tables)


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
            "parallel", "Parallel coordinates", trial_figures.parallel(study, ranked), "fewer than two tunables varied"
        ),
        _outcome_part(study),
        _noise_part(study),
        _environment_part(study),
    )
    return StudyView(
        anchor=anchor_of(row),
        title=f"{row.kernel}: {row.problem}",
        gist=_gist(study.summary),
        subtitle=f"Study {row.study_id} on {row.device.name}, built by {row.compiler}, searched by {row.sampler} with "
        f"seed {row.seed}, {moment_text(row.begun_at)} to {moment_text(row.last_at)}; "
        f"{eager_had([row.problem.options])}.",
        notes=_notes(study),
        tiles=tuple(_tiles(study)),
        parts=parts,
    )


def _gist(summary: StudySummary) -> str:
    decision = summary.comparison.decision(Baseline.REFERENCE) if summary.comparison else None
    if summary.comparison is None or decision is None:
        return f"{summary.row.device.name}: not concluded"
    ratio = summary.comparison.speedups[Baseline.REFERENCE]
    return f"{summary.row.device.name}: {ratio_text(ratio)} over the reference, {verdict_text(decision)}"


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
        notes += [f"No time was left for {question}." for question in study.comparison.unasked]
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
    for baseline, words in OVER.items():
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
    pictures += _known(roof)
    return Part(
        "comparison",
        title,
        texts,
        pictures,
        "pair" if len(pictures) > 1 else "",
        tables=(rates_table(comparison, work, known),),
    )


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
    tables = (reasons_table(reasons),) if reasons else ()
    return Part("refusals", "Refused variants", texts, (figures.outcomes(study),), tables=tables)


def _fastest_part(study: StudyData) -> Part:
    """Return the table of the fastest trials: times as screened, rates, and what the variants take."""
    chosen = [trial for trial in study.correct if trial.trial_id in study.recorded][:MOST_IN_TABLE]
    if not chosen:
        return Part("fastest", "Fastest trials", ("Nothing to show: no variant was correct.",))
    table = fastest_table(study, chosen)
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
    figure = trial_figures.pareto(study)
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
        return number_cell(launch[1].values.get(name))

    rows = [
        (Cell(words), *(value(launch, name) for launch in launches))
        for name, words in METRICS.items()
        if any(name in launch.values for _, launch in launches)
    ]
    heads = ("counter", *(f"trial {number}: {launch.kernel}" for number, launch in launches))
    drawn = [trial_figures.peaks(number, longest(one.counters)) for number, one in read[:_MOST_EXPLAINED]]
    text = "What Nsight Compute read of the launches of one forward ('tunebench explain'); the bars are of the longest."
    table = Table("Counters of launches", heads, tuple(rows))
    pictures = tuple(figure for figure in drawn if figure is not None)
    return (Part("counters", "Counters", (text,), pictures, "small", tables=(table,)),)


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
        moments = f"{entry.trials} trials, {moment_text(entry.first_at)} to {moment_text(entry.last_at)}"
        facts.append(("environment of", moments))
        facts += [(name, "none" if value is None else str(value)) for name, value in asdict(entry.environment).items()]
    rows = tuple((Cell(name), Cell(value, "reason")) for name, value in facts)
    return Part("environment", "Environment", tables=(Table("Environment", ("what", "value"), rows),))
