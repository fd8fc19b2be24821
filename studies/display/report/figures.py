"""The plots of a study's search: how it went, what its tunables do, how its trials ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from tunebench.db.queries.rows import TrialRow
from tunebench.studies.display.report import style
from tunebench.studies.display.report.analysis import Grid, Marginal, best_so_far
from tunebench.studies.display.report.gather import StudyData
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


@dataclass(frozen=True)
class Figure:
    """A plot with the words that go with it.

    Attributes:
        name: unique within a study; an HTML identifier.
        label: what the plot shows, for readers who cannot see it.
        caption: how to read it.
        zoomable: whether it has more in it than is seen at once.
    """

    name: str
    plot: go.Figure
    label: str
    caption: str
    zoomable: bool = False


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
    plot = style.new_plot(400)
    _add_trials(plot, study.timed, unit, edge_ms)
    last = study.trials[-1].number
    ends = [*steps, (last, steps[-1][1])]
    plot.add_scatter(
        x=[trial for trial, _ in ends],
        y=[median * unit.factor for _, median in ends],
        name="best so far",
        mode="lines",
        line={"color": style.COLOURS["best"], "width": 3, "shape": "hv"},
        hovertemplate="best so far %{y:.4g} " + unit.symbol + " at trial %{x}<extra></extra>",
    )
    for name, median in lines.items():
        plot.add_scatter(
            x=[study.trials[0].number, last],
            y=[median * unit.factor] * 2,
            name=f"{name} {unit.text(median)}",
            mode="lines",
            line={"color": style.COLOURS[name], "width": 1.8, "dash": style.DASHES[name]},
            hovertemplate=f"{name} {unit.text(median)}<extra></extra>",
        )
    plot.update_xaxes(title_text="trial", rangemode="tozero", tickformat=",d")
    plot.update_yaxes(
        title_text=f"time of one forward, {unit.symbol}", **_scaled([*shown, edge_ms] if beyond else shown, unit).axis()
    )
    return Figure(
        "convergence",
        style.dress_axes(plot),
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


def _add_trials(plot: go.Figure, timed: Sequence[TrialRow], unit: style.Unit, edge_ms: float) -> None:
    kinds = (
        (TrialStatus.CORRECT, "correct", style.COLOURS["best"], 0.7, "circle"),
        (TrialStatus.PRUNED, "given up early", style.OTHER_COLOUR, 1.0, "x-thin-open"),
    )
    for status, name, colour, opacity, symbol in kinds:
        trials = style.thinned([trial for trial in timed if trial.status is status], _MOST_POINTS)
        if trials:
            plot.add_scatter(
                x=[trial.number for trial in trials],
                y=[min(trial.median_ms or 0.0, edge_ms) * unit.factor for trial in trials],
                customdata=[(trial.median_ms or 0.0) * unit.factor for trial in trials],
                text=[_configuration_text(trial) for trial in trials],
                name=name,
                mode="markers",
                marker={"size": 6, "color": colour, "opacity": opacity}
                | {"symbol": [symbol if (trial.median_ms or 0.0) <= edge_ms else _BEYOND for trial in trials]},
                hovertemplate="trial %{x}: %{customdata:.4g} " + unit.symbol + "<br>%{text}<extra></extra>",
            )


def _configuration_text(trial: TrialRow) -> str:
    return "<br>".join(style.plain(f"{name}={value}", 60) for name, value in trial.configuration.items())


def _scaled(values: Sequence[float], unit: style.Unit) -> style.Scale:
    return style.Scale.over([value * unit.factor for value in values])


def _thinning_note(count: int) -> str:
    return f" {_MOST_POINTS:,} of {count:,} trials are drawn." if count > _MOST_POINTS else ""


def outcomes(study: StudyData) -> Figure:
    """Plot how many trials ended in which way."""
    counts = {status: study.count(status) for status in TrialStatus}
    shown = {status: count for status, count in counts.items() if count or status is TrialStatus.CORRECT}
    colours = {TrialStatus.CORRECT: style.COLOURS["copy"], TrialStatus.PRUNED: style.COLOURS["reference"]}
    names = {TrialStatus.PRUNED: "given up early"}
    labels = [f"{names.get(status, status.value)}: {count}" for status, count in shown.items()]
    drawn = [colours.get(status, style.REFUSED_COLOUR) for status in shown]
    plot = _bars(labels, list(shown.values()), drawn, "trials", tickformat=",d")
    words = ", ".join(f"{count} {names.get(status, status.value)}" for status, count in shown.items())
    return Figure(
        "outcomes",
        plot,
        f"How the {len(study.trials)} trials ended: {words}.",
        "Correct trials passed every stage of the gate and were timed in full; those given up early passed it too, and "
        "were hopelessly slower than the best. Every other trial was refused.",
    )


def importance(shares: Mapping[str, float]) -> Figure | None:
    """Plot each tunable's share in reaching the fastest tenth."""
    if not shares:
        return None
    labels = [f"{style.plain(name, 40)}: {style.percent(share)}" for name, share in shares.items()]
    plot = _bars(labels, [100 * one for one in shares.values()], style.COLOURS["best"], "share of importance, %")
    words = ", ".join(f"{name} {style.percent(share)}" for name, share in shares.items())
    return Figure(
        "importance",
        plot,
        f"Importance of the tunables: {words}.",
        "How much a tunable's value decides whether a trial is among the fastest tenth of all timed trials (Optuna's "
        "PED-ANOVA, relative to what the search tried). Which value is the fast one is for the plots below to say.",
    )


def _bars(
    labels: Sequence[str], lengths: Sequence[float], colours: str | list[str], title: str, **axis: object
) -> go.Figure:
    """Return horizontal bars, the first at the top."""
    plot = style.new_plot(_ROW_PIXELS * len(labels) + 80, showlegend=False)
    plot.add_bar(x=lengths, y=labels, orientation="h", marker_color=colours, hovertemplate="%{y}<extra></extra>")
    plot.update_xaxes(title_text=title, rangemode="tozero", **axis)
    plot.update_yaxes(autorange="reversed", type="category")
    return style.dress_axes(plot)


def effects(marginals: Sequence[Marginal], trials: Sequence[TrialRow]) -> list[Figure]:
    """Make one small plot a tunable: the times of all timed trials by its value, and the best of each value."""
    if not marginals:
        return []
    medians = [trial.median_ms or 0.0 for trial in trials]
    unit = style.time_unit(min(medians))
    limits = plot_limits(medians, [min(times) for marginal in marginals for times in marginal.times_ms])
    axis = _scaled(limits, unit).axis()
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
    plot = style.new_plot(280, showlegend=False)
    values = [style.plain(value, 24) for value in marginal.values]
    for value, times in zip(values, marginal.times_ms, strict=True):
        kept = style.thinned(sorted(times), _MOST_POINTS // len(values))
        plot.add_box(
            x=[value] * len(kept),
            y=[time * unit.factor for time in kept],
            name=value,
            boxpoints="all" if len(times) <= 200 else "outliers",
            jitter=0.5,
            pointpos=0,
            marker={"size": 3, "color": style.COLOURS["reference"], "opacity": 0.6},
            line={"color": style.COLOURS["reference"], "width": 1.3},
            fillcolor="rgba(128,128,128,0.12)",
            hoverinfo="y",
        )
    best = [min(times) for times in marginal.times_ms]
    plot.add_scatter(
        x=values,
        y=[time * unit.factor for time in best],
        mode="markers",
        marker={"size": 10, "symbol": "diamond", "color": style.COLOURS["best"]},
        hovertemplate="best %{y:.4g} " + unit.symbol + "<extra></extra>",
    )
    plot.update_xaxes(
        title_text=style.plain(marginal.tunable, 40), type="category", categoryarray=values, showgrid=False
    )
    plot.update_yaxes(title_text=f"time, {unit.symbol}", **axis)
    fastest = min(range(len(best)), key=best.__getitem__)
    return Figure(
        f"effect-{position}",
        style.dress_axes(plot),
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
    plot = style.new_plot(min(640, max(260, 40 * len(down) + _LABEL_PIXELS)))
    legible = len(across) <= _MOST_CELLS and len(down) <= _MOST_CELLS
    plot.add_heatmap(
        x=across,
        y=down,
        z=[[None if t is None else t * unit.factor for t in row] for row in grid.best_ms],
        zmin=min(known) * unit.factor,
        zmax=darkest,
        text=[["" if t is None else style.fixed(t * unit.factor, digits) for t in row] for row in grid.best_ms],
        texttemplate="%{text}" if legible else "",
        hovertemplate="%{x}, %{y}: %{text} " + unit.symbol + "<extra></extra>",
        hoverongaps=False,
        colorscale=style.FAST_TO_SLOW,
        colorbar={"thickness": 10, "outlinewidth": 0, "title": {"text": unit.symbol}, "nticks": 6},
        xgap=2,
        ygap=2,
    )
    plot.update_xaxes(title_text=style.plain(grid.across, 40), type="category", showgrid=False)
    plot.update_yaxes(title_text=style.plain(grid.down, 40), type="category", showgrid=False, autorange="reversed")
    best, row, column = min(
        (time, row, column)
        for row, times in enumerate(grid.best_ms)
        for column, time in enumerate(times)
        if time is not None
    )
    where = f"{grid.down}={grid.down_values[row]}, {grid.across}={grid.across_values[column]}"
    return Figure(
        f"pair-{position}",
        style.dress_axes(plot),
        f"Best time by {grid.down} and {grid.across}: the fastest pair is {where} with {unit.text(best)}.",
        "",
    )
