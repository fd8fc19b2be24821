"""The plots of a study's final comparison: speed-ups, the roofline, and the samples round by round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tunebench.db.queries.studies import ComparisonRow, ContenderRow
from tunebench.studies.report.figures import Figure
from tunebench.studies.report.gather import StudySummary
from tunebench.studies.report.style import (
    COLOURS,
    DASHES,
    ORDER,
    OTHER_COLOUR,
    SYMBOLS,
    Scale,
    decimal_unit,
    dress_axes,
    new_plot,
    number,
    plain,
    ratio_text,
    time_unit,
    verdict_text,
)
from tunebench.tuner.problem import Work
from tunebench.tuner.result import CONTROL, Baseline

_FAR_OUT = 8.0
"""A sample so many interquartile ranges above the third quartile is drawn at the edge."""


def speed_ups(summary: StudySummary) -> Figure | None:
    """How many times faster the best is than each baseline, with intervals; None where nothing was compared."""
    found = summary.comparison.speed_ups if summary.comparison else {}
    ratios = {name: ratio for name, ratio in found.items() if name != Baseline.COPY}
    ratios = dict(sorted(ratios.items(), key=lambda item: _place(item[0])))
    if not ratios:
        return None
    plot = new_plot(64 * len(ratios) + 90, showlegend=False)
    plot.add_bar(
        x=[ratio.value for ratio in ratios.values()],
        y=[f"over {plain(name, 24)}<br>{ratio_text(ratio)}" for name, ratio in ratios.items()],
        orientation="h",
        width=0.5,
        marker_color=[COLOURS.get(name, OTHER_COLOUR) for name in ratios],
        error_x={
            "type": "data",
            "array": [ratio.high - ratio.value for ratio in ratios.values()],
            "arrayminus": [ratio.value - ratio.low for ratio in ratios.values()],
            "color": COLOURS["best"],
            "thickness": 2,
            "width": 6,
        },
        hovertemplate="%{y}<extra></extra>",
    )
    plot.add_vline(x=1, line={"color": COLOURS["reference"], "width": 1.5, "dash": "dot"})
    # An interval that is many times its ratio runs out of the plot; the text beside the bar has it.
    end = min(max(ratio.high for ratio in ratios.values()), 2 * max(1.0, *(ratio.value for ratio in ratios.values())))
    plot.update_xaxes(title_text="times as fast", range=[0, 1.05 * max(end, 1.0)])
    plot.update_yaxes(autorange="reversed", type="category")
    words = "; ".join(
        f"{ratio_text(ratio)} over the {name}, {verdict_text(summary.decision(name) or ratio.decision)}"
        for name, ratio in ratios.items()
    )
    one = next(iter(ratios.values()))
    return Figure(
        "speed-ups",
        dress_axes(plot),
        f"Speed-ups of the best configuration: {words}.",
        f"Medians of per-round ratios from {one.rounds} interleaved rounds, with their {100 * one.confidence:g} % "
        "intervals; the dotted line is equal speed.",
    )


def roofline(comparison: ComparisonRow, work: Work) -> Figure | None:
    """The contenders under the memory's ceiling; None where no copy was measured."""
    copy = comparison.contender(Baseline.COPY)
    if copy is None:
        return None
    points = {
        contender.name: work.operations / contender.median_ms * 1e3
        for contender in _ordered(comparison)
        if contender.name not in (Baseline.COPY, CONTROL)
    }
    if not points:
        return None
    intensity = work.operations / work.bytes
    ceiling = work.operations / copy.median_ms * 1e3
    bandwidth = work.bytes / copy.median_ms * 1e3
    unit, bytes_unit = decimal_unit(max(points.values()), "op/s"), decimal_unit(bandwidth, "B/s")
    ends = [intensity / 4, intensity * 4]
    plot = new_plot(400)
    plot.add_scatter(
        x=ends,
        y=[end * bandwidth * unit.factor for end in ends],
        name=f"memory ceiling {bytes_unit.text(bandwidth)}",
        mode="lines",
        line={"color": COLOURS["copy"], "width": 2.5, "dash": DASHES["copy"]},
        hoverinfo="name",
    )
    for name, rate in points.items():
        plot.add_scatter(
            x=[intensity],
            y=[rate * unit.factor],
            name=f"{plain(name, 24)} {unit.text(rate)}, {number(100 * rate / ceiling, 3)} %",
            mode="markers",
            marker={"color": COLOURS.get(name, OTHER_COLOUR), "symbol": f"{SYMBOLS.get(name, 'circle')}-open"}
            | {"size": 13, "line": {"width": 2.5}},
            hoverinfo="name",
        )
    heights = [rate * unit.factor for rate in (*points.values(), ceiling / 4, ceiling * 4)]
    plot.update_layout(hoverlabel_namelength=-1, legend_orientation="v")
    plot.update_xaxes(title_text="arithmetic intensity, operations per byte", **Scale.over(ends, room=0).axis())
    plot.update_yaxes(title_text=f"rate, {unit.symbol}", **Scale.over(heights).axis())
    words = ", ".join(f"{name} {number(100 * rate / ceiling, 3)} %" for name, rate in points.items())
    return Figure(
        "roofline",
        dress_axes(plot),
        f"Roofline at {number(intensity)} operations per byte; of the memory ceiling are reached: {words}.",
        f"The problem must move {decimal_unit(work.bytes, 'B').text(work.bytes)} and takes "
        f"{decimal_unit(work.operations, 'op').text(work.operations)}, by the kernel's own account. Rates are of "
        "medians. The ceiling is that of a plain copy of as many bytes, timed in the same rounds. The arithmetic "
        "ceiling is not measured: far to the right, points may lie below a roof that is not drawn. Where "
        "caches are warm, a point may lie above the line.",
        zoomable=True,
    )


def rounds(comparison: ComparisonRow) -> Figure:
    """Every sample of the final comparison by round, a strip a contender, and its distribution beside it."""
    contenders = _ordered(comparison)
    plot = make_subplots(
        rows=len(contenders),
        cols=2,
        shared_xaxes="columns",
        shared_yaxes="rows",
        column_widths=[0.84, 0.16],
        horizontal_spacing=0.02,
        vertical_spacing=0.06,
        figure=new_plot(130 * len(contenders) + 70, showlegend=False),
    )
    outside = sum(_add_strip(plot, row, contender) for row, contender in enumerate(contenders, start=1))
    longest = max(len(contender.samples_ms) for contender in contenders)
    plot.update_xaxes(range=[0, longest + 1], col=1)
    plot.update_xaxes(title_text="round", row=len(contenders), col=1)
    plot.update_xaxes(showticklabels=False, showgrid=False, range=[-1, 1], col=2)
    words = "; ".join(
        f"{contender.name} median {time_unit(contender.median_ms).text(contender.median_ms)}, from "
        f"{time_unit(contender.median_ms).text(min(contender.samples_ms))} to "
        f"{time_unit(contender.median_ms).text(max(contender.samples_ms))}"
        for contender in contenders
    )
    plot.update_layout(margin_t=36)
    note = f" {outside} far outliers are triangles at the upper edge." if outside else ""
    return Figure(
        "rounds",
        dress_axes(plot),
        f"Samples of the final comparison by round: {words}.",
        "Raw samples of the final comparison, every contender once a round; dashes are medians. A slope or a step that "
        "all strips share is drift of the machine, which ratios within a round cancel." + note,
        zoomable=True,
    )


def _add_strip(plot: go.Figure, row: int, contender: ContenderRow) -> int:
    """Add one contender's samples; the number of those beyond the axis."""
    unit = time_unit(contender.median_ms)
    samples = np.array(contender.samples_ms) * unit.factor
    first, third = np.quantile(samples, [0.25, 0.75])
    edge = float(max(third + _FAR_OUT * (third - first), samples.min() * 1.001))
    outside = samples > edge
    colour = COLOURS.get(contender.name, OTHER_COLOUR)
    symbols = ["triangle-up-open" if out else "circle" for out in outside]
    plot.add_scatter(
        x=list(range(1, len(samples) + 1)),
        y=np.minimum(samples, edge).tolist(),
        customdata=samples.tolist(),
        mode="lines+markers",
        line={"color": colour, "width": 1},
        marker={"color": colour, "size": [9 if out else 5 for out in outside], "symbol": symbols},
        hovertemplate="round %{x}: %{customdata:.4g} " + unit.symbol + "<extra></extra>",
        row=row,
        col=1,
    )
    plot.add_hline(
        y=contender.median_ms * unit.factor, line={"color": colour, "dash": "dash", "width": 1}, row=row, col=1
    )
    plot.add_box(
        x=[0] * len(samples),
        y=np.minimum(samples, edge).tolist(),
        marker={"color": colour, "size": 3},
        line={"width": 1.3},
        hoverinfo="y",
        row=row,
        col=2,
    )
    shown = np.minimum(samples, edge)
    room = 0.08 * float(shown.max() - shown.min()) or 0.01 * float(shown.max())
    limits = [float(shown.min()) - room, float(shown.max()) + room]
    plot.update_yaxes(range=limits, nticks=4, row=row)
    plot.update_yaxes(title_text=f"{plain(contender.name, 24)}, {unit.symbol}", row=row, col=1)
    return int(outside.sum())


def _ordered(comparison: ComparisonRow) -> Sequence[ContenderRow]:
    """The contenders, the known ones first."""
    return sorted(comparison.contenders, key=lambda contender: _place(contender.name))


def _place(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)
