"""The plots of a study's search: how it went, what its tunables do, how its trials ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunebench.db.queries.rows import TrialRow
from tunebench.studies.display.report import style
from tunebench.studies.display.report.analysis import Grid, Marginal, best_so_far
from tunebench.studies.display.report.gather import StudyData
from tunebench.studies.display.report.style import Plot, new_plot, scatter
from tunebench.tuner.result import Baseline, TrialStatus

_MOST_POINTS = 4000
"""A plot with more points is slow, and no easier to read."""

_HOPELESS = 2.5
"""Ratio to the slowest of the lines beyond which trials are drawn at the edge: the lines are what matters."""

_DARKEST = 3.0
"""A cell so many times slower than the best is as dark as they come, so that colours tell the good ones apart."""

_MOST_CELLS = 13
"""A heat map with more cells in a row has no room for numbers in them."""

_FAR_BELOW = 8.0
"""A copy so many times faster than the best is no line to come close to."""

_BEYOND = "triangle-up-open"
_ROW_PIXELS = 34
_LABEL_PIXELS = 100  # axis titles, tick labels and the legend

_KINDS = (
    (TrialStatus.CORRECT, "correct", {"color": style.COLOURS["best"], "opacity": 0.7}, "circle"),
    (TrialStatus.PRUNED, "given up early", {"color": style.OTHER_COLOUR, "opacity": 1.0}, "x-thin-open"),
)
"""How the points of timed trials look."""


@dataclass(frozen=True)
class Figure:
    """A plot with the words that go with it.

    Attributes:
        name: unique within a study; an HTML identifier.
        label: what the plot shows, for readers who cannot see it.
        caption: how to read it.
        zoomable: whether it has more in it than is seen at once.
        least_width: pixels below which it is scrolled.
    """

    name: str
    plot: Plot
    label: str
    caption: str
    zoomable: bool = False
    least_width: int = 0


def convergence(study: StudyData) -> Figure | None:
    """Plot the best so far by trial, every timed trial, and the final comparison's contenders as lines."""
    steps = best_so_far(study.trials)
    if not steps:
        return None
    unit = style.time_unit(steps[-1][1])
    lines = _contender_lines(study)
    shown = [median for _, median in steps] + list(lines.values())
    edge_ms = _HOPELESS * max(shown)
    shown += [trial.median_ms for trial in study.timed if trial.median_ms and trial.median_ms <= edge_ms]
    beyond = len(study.timed) - len(shown) + len(steps) + len(lines)
    last = study.trials[-1].number
    ends = [*steps, (last, steps[-1][1])]
    traces = [
        *_trial_points(study.timed, unit, edge_ms),
        scatter(
            [trial for trial, _ in ends],
            [median * unit.factor for _, median in ends],
            "best so far",
            "lines",
            line={"color": style.COLOURS["best"], "width": 3, "shape": "hv"},
            hovertemplate="best so far %{y:.4g} " + unit.symbol + " at trial %{x}<extra></extra>",
        ),
    ]
    for name, median in lines.items():
        words = f"{name} {unit.text(median)}"
        line = {"color": style.COLOURS[name], "width": 1.8, "dash": style.DASHES[name]}
        ys = [median * unit.factor] * 2
        traces.append(scatter([study.trials[0].number, last], ys, words, "lines", line=line, hoverinfo="name"))
    axis = style.Scale.over([value * unit.factor for value in ([*shown, edge_ms] if beyond else shown)]).axis()
    return Figure(
        "convergence",
        new_plot(
            400,
            traces,
            style.TRIAL_AXIS,
            {"title": f"time of one forward, {unit.symbol}", **axis},
        ),
        f"Convergence: the best time fell from {unit.text(steps[0][1])} at trial {steps[0][0]} to "
        f"{unit.text(steps[-1][1])} at trial {steps[-1][0]} of {len(study.trials)}.",
        "Each point is a trial's median as screened; the line is the best correct one so far. Horizontal lines are "
        "medians of the final interleaved comparison. A study begins with the default configuration, unless it was "
        "imported."
        + (f" {beyond} trials slower than {unit.text(edge_ms)} are triangles at the upper edge." if beyond else "")
        + _thinning_note(len(study.timed)),
        zoomable=True,
    )


def _contender_lines(study: StudyData) -> dict[str, float]:
    if study.comparison is None:
        return {}
    measured = study.comparison.medians_ms
    medians = {name: measured[name] for name in style.ORDER if name in style.DASHES and name in measured}
    # Far below a kernel that computes much, the copy's line would take the room that its trials need.
    if "best" in measured and medians.get(Baseline.COPY, math.inf) < measured["best"] / _FAR_BELOW:
        del medians[Baseline.COPY]
    return medians


def _trial_points(timed: Sequence[TrialRow], unit: style.Unit, edge_ms: float) -> list[Plot]:
    traces = []
    for status, name, look, symbol in _KINDS:
        trials = style.thinned([trial for trial in timed if trial.status is status], _MOST_POINTS)
        medians = [trial.median_ms or 0.0 for trial in trials]
        if trials:
            traces.append(
                scatter(
                    [trial.number for trial in trials],
                    [min(median, edge_ms) * unit.factor for median in medians],
                    name,
                    customdata=[median * unit.factor for median in medians],
                    text=[configuration_text(trial) for trial in trials],
                    marker={**look, "size": 6, "symbol": [symbol if one <= edge_ms else _BEYOND for one in medians]},
                    hovertemplate="trial %{x}: %{customdata:.4g} " + unit.symbol + "<br>%{text}<extra></extra>",
                )
            )
    return traces


def configuration_text(trial: TrialRow) -> str:
    """Return a trial's configuration for a plot, a line a tunable."""
    return "<br>".join(style.plain(f"{name}={value}", 60) for name, value in trial.configuration.items())


def half_width(trial: TrialRow) -> float:
    """Return half the width of a timed trial's interval, in percent of its median."""
    return 50 * ((trial.high_ms or 0.0) - (trial.low_ms or 0.0)) / (trial.median_ms or 1.0)


def _thinning_note(count: int) -> str:
    return f" {_MOST_POINTS:,} of {count:,} trials are drawn." if count > _MOST_POINTS else ""


def noise(study: StudyData) -> Figure | None:
    """Plot how wide each timed trial's interval is, relative to its median, by trial."""
    widths = {
        trial.number: 50 * ((trial.high_ms or 0) - (trial.low_ms or 0)) / (trial.median_ms or 1)
        for trial in study.timed
    }
    drawn = {number: width for number, width in widths.items() if width > 0}
    if not drawn:
        return None
    kept = style.thinned(list(drawn.items()), _MOST_POINTS)
    points = scatter(
        [number for number, _ in kept],
        [width for _, width in kept],
        marker={"size": 5, "color": style.COLOURS["best"], "opacity": 0.6},
        hovertemplate="trial %{x}: ± %{y:.3g} %<extra></extra>",
    )
    ordered = sorted(widths.values())
    middle = ordered[len(ordered) // 2]
    narrow = sum(width <= 1 for width in ordered)
    return Figure(
        "noise",
        new_plot(
            260,
            [points],
            style.TRIAL_AXIS,
            {"title": "± % of the median", **style.Scale.over([*drawn.values(), 1.0]).axis()},
            showlegend=False,
            shapes=[style.line_across(y=1.0)],
        ),
        f"Noise of the search: half of the trials are known to within ± {style.number(middle, 3)} %, "
        f"{narrow} of {len(ordered)} to within ± 1 %.",
        "Half the width of each trial's 95 % interval of the median. The dotted line is ± 1 %, where sampling stops; "
        "above it the time or the samples allowed were over first, or the trial was given up early.",
        zoomable=True,
    )


def outcomes(study: StudyData) -> Figure:
    """Plot how many trials ended in which way."""
    counts = {status: study.count(status) for status in TrialStatus}
    shown = {status: count for status, count in counts.items() if count or status is TrialStatus.CORRECT}
    colours = {TrialStatus.CORRECT: style.COLOURS["copy"], TrialStatus.PRUNED: style.COLOURS["reference"]}
    names = {TrialStatus.PRUNED: "given up early"}
    labels = [f"{names.get(status, status.value)}: {count}" for status, count in shown.items()]
    drawn = [colours.get(status, style.REFUSED_COLOUR) for status in shown]
    words = ", ".join(f"{count} {names.get(status, status.value)}" for status, count in shown.items())
    return Figure(
        "outcomes",
        bars(labels, list(shown.values()), drawn, {"title": "trials", "tickformat": ",d"}),
        f"How the {len(study.trials)} trials ended: {words}.",
        "Correct trials passed every stage of the gate and were timed in full; those given up early passed it too, and "
        "were hopelessly slower than the best. Every other trial was refused.",
    )


def importance(shares: Mapping[str, float]) -> Figure | None:
    """Plot each tunable's share in reaching the fastest tenth."""
    if not shares:
        return None
    labels = [f"{style.plain(name, 40)}: {style.percent(share)}" for name, share in shares.items()]
    lengths = [100 * one for one in shares.values()]
    words = ", ".join(f"{name} {style.percent(share)}" for name, share in shares.items())
    return Figure(
        "importance",
        bars(labels, lengths, style.COLOURS["best"], {"title": "share of importance, %"}),
        f"Importance of the tunables: {words}.",
        "How much a tunable's value decides whether a trial is among the fastest tenth of all timed trials (Optuna's "
        "PED-ANOVA, relative to what the search tried). Which value is the fast one is for the plots below to say.",
    )


def bars(labels: Sequence[str], lengths: Sequence[float], colours: str | list[str], axis: Plot) -> Plot:
    """Return horizontal bars, the first at the top."""
    bars = {"type": "bar", "x": list(lengths), "y": list(labels), "orientation": "h", "marker": {"color": colours}}
    return new_plot(
        _ROW_PIXELS * len(labels) + 80,
        [bars | {"hovertemplate": "%{y}<extra></extra>"}],
        {"rangemode": "tozero", **axis},
        {"autorange": "reversed", "type": "category"},
        showlegend=False,
    )


def effects(marginals: Sequence[Marginal], trials: Sequence[TrialRow]) -> list[Figure]:
    """Make one small plot a tunable: the times of all timed trials by its value, and the best of each value."""
    if not marginals:
        return []
    medians = [trial.median_ms or 0.0 for trial in trials]
    unit = style.time_unit(min(medians))
    limits = plot_limits(medians, [min(times) for marginal in marginals for times in marginal.times_ms])
    axis = style.Scale.over([value * unit.factor for value in limits]).axis()
    return [_effect(at, marginal, unit, axis) for at, marginal in enumerate(marginals)]


def plot_limits(medians: Sequence[float], bests: Sequence[float]) -> tuple[float, float]:
    """Return the range in which every value's best and half of all trials are seen; much slower ones are outside.

    Args:
        medians: of all trials.
        bests: the lowest median of each value.
    """
    ordered = sorted(medians)
    return ordered[0], min(ordered[-1], 1.3 * max(*bests, ordered[(len(ordered) - 1) // 2]))


def _effect(position: int, marginal: Marginal, unit: style.Unit, axis: Mapping[str, object]) -> Figure:
    values = [style.plain(value, 24) for value in marginal.values]
    traces: list[Plot] = []
    for value, times in zip(values, marginal.times_ms, strict=True):
        kept = style.thinned(sorted(times), _MOST_POINTS // len(values))
        traces.append(
            {
                "type": "box",
                "x": [value] * len(kept),
                "y": [time * unit.factor for time in kept],
                "name": value,
                "boxpoints": "all" if len(times) <= 200 else "outliers",
                "jitter": 0.5,
                "pointpos": 0,
                "marker": {"size": 3, "color": style.COLOURS["reference"], "opacity": 0.6},
                "line": {"color": style.COLOURS["reference"], "width": 1.3},
                "fillcolor": "rgba(128,128,128,0.12)",
                "hoverinfo": "y",
            }
        )
    best = [min(times) for times in marginal.times_ms]
    diamonds = {"size": 10, "symbol": "diamond", "color": style.COLOURS["best"]}
    hover = "best %{y:.4g} " + unit.symbol + "<extra></extra>"
    traces.append(scatter(values, [time * unit.factor for time in best], marker=diamonds, hovertemplate=hover))
    name = style.plain(marginal.tunable, 40)
    fastest = min(range(len(best)), key=best.__getitem__)
    return Figure(
        f"effect-{position}",
        new_plot(
            280,
            traces,
            {"title": name, "type": "category", "categoryarray": values, "showgrid": False},
            {"title": f"time, {unit.symbol}", **axis},
            showlegend=False,
        ),
        f"Time by {marginal.tunable}: the best trials are "
        + ", ".join(f"{unit.text(t)} at {v}" for v, t in zip(marginal.values, best, strict=True))
        + f"; {marginal.values[fastest]} is the fastest.",
        "",
    )


def heat_map(position: int, grid: Grid) -> Figure:
    """Plot the best time of each pair of values of two tunables."""
    known = [time for row in grid.best_ms for time in row if time is not None]
    unit = style.time_unit(min(known))
    digits, darkest = style.telling_digits(known), min(max(known), _DARKEST * min(known)) * unit.factor
    across, down = ([style.plain(v, 24) for v in values] for values in (grid.across_values, grid.down_values))
    legible = len(across) <= _MOST_CELLS and len(down) <= _MOST_CELLS
    cells = {
        "type": "heatmap",
        "x": across,
        "y": down,
        "z": [[None if t is None else t * unit.factor for t in row] for row in grid.best_ms],
        "zmin": min(known) * unit.factor,
        "zmax": darkest,
        "text": [["" if t is None else style.fixed(t * unit.factor, digits) for t in row] for row in grid.best_ms],
        "texttemplate": "%{text}" if legible else "",
        "hovertemplate": "%{x}, %{y}: %{text} " + unit.symbol + "<extra></extra>",
        "hoverongaps": False,
        "colorscale": style.FAST_TO_SLOW,
        "colorbar": {"thickness": 10, "outlinewidth": 0, "title": {"text": unit.symbol}, "nticks": 6},
        "xgap": 2,
        "ygap": 2,
    }
    axis = {"type": "category", "showgrid": False}
    best, row, column = min(
        (time, row, column)
        for row, times in enumerate(grid.best_ms)
        for column, time in enumerate(times)
        if time is not None
    )
    where = f"{grid.down}={grid.down_values[row]}, {grid.across}={grid.across_values[column]}"
    return Figure(
        f"pair-{position}",
        new_plot(
            min(640, max(260, 40 * len(down) + _LABEL_PIXELS)),
            [cells],
            {**axis, "title": style.plain(grid.across, 40)},
            {**axis, "title": style.plain(grid.down, 40), "autorange": "reversed"},
        ),
        f"Best time by {grid.down} and {grid.across}: the fastest pair is {where} with {unit.text(best)}.",
        "",
    )
