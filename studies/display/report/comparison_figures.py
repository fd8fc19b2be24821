"""The plots of a study's final comparison: speed-ups, the roofline, and the samples round by round."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tunebench.studies.display.report import style
from tunebench.studies.display.report.figures import Figure
from tunebench.tuner.problem import Work
from tunebench.tuner.result import CONTROL, Baseline, Comparison

_FAR_OUT = 8.0
"""A sample so many interquartile ranges above the third quartile is drawn at the edge."""


def speed_ups(comparison: Comparison) -> Figure | None:
    """Plot how many times faster the best is than each baseline, with intervals; None where nothing was compared."""
    ratios = {name: ratio for name, ratio in comparison.speedups.items() if name is not Baseline.COPY}
    ratios = dict(sorted(ratios.items(), key=lambda item: _place(item[0])))
    if not ratios:
        return None
    plot = style.new_plot(64 * len(ratios) + 90, showlegend=False)
    plot.add_bar(
        x=[ratio.value for ratio in ratios.values()],
        y=[f"over {style.plain(name, 24)}<br>{style.ratio_text(ratio)}" for name, ratio in ratios.items()],
        orientation="h",
        width=0.5,
        marker_color=[style.COLOURS.get(name, style.OTHER_COLOUR) for name in ratios],
        error_x={
            "type": "data",
            "array": [ratio.high - ratio.value for ratio in ratios.values()],
            "arrayminus": [ratio.value - ratio.low for ratio in ratios.values()],
            "color": style.COLOURS["best"],
            "thickness": 2,
            "width": 6,
        },
        hovertemplate="%{y}<extra></extra>",
    )
    plot.add_vline(x=1, line={"color": style.COLOURS["reference"], "width": 1.5, "dash": "dot"})
    # An interval that is many times its ratio runs out of the plot; the text beside the bar has it.
    end = min(max(ratio.high for ratio in ratios.values()), 2 * max(1.0, *(ratio.value for ratio in ratios.values())))
    plot.update_xaxes(title_text="times as fast", range=[0, 1.05 * max(end, 1.0)])
    plot.update_yaxes(autorange="reversed", type="category")
    words = "; ".join(
        f"{style.ratio_text(ratio)} over the {name}, {style.verdict_text(comparison.decision(name) or ratio.decision)}"
        for name, ratio in ratios.items()
    )
    one = next(iter(ratios.values()))
    return Figure(
        "speed-ups",
        style.dress_axes(plot),
        f"Speed-ups of the best configuration: {words}.",
        f"Medians of per-round ratios from {one.rounds} interleaved rounds, with their {100 * one.confidence:g} % "
        "intervals; the dotted line is equal speed.",
    )


def roofline(comparison: Comparison, work: Work) -> Figure | None:
    """Plot the contenders under the memory's ceiling; None where no copy was measured."""
    copy_ms = comparison.medians_ms.get(Baseline.COPY)
    if copy_ms is None:
        return None
    points = {
        name: work.operations / comparison.medians_ms[name] * 1e3
        for name in _ordered(comparison)
        if name not in (Baseline.COPY, CONTROL)
    }
    if not points:
        return None
    intensity = work.operations / work.bytes
    ceiling = work.operations / copy_ms * 1e3
    bandwidth = work.bytes / copy_ms * 1e3
    unit, bytes_unit = style.decimal_unit(max(points.values()), "op/s"), style.decimal_unit(bandwidth, "B/s")
    ends = [intensity / 4, intensity * 4]
    plot = style.new_plot(400)
    plot.add_scatter(
        x=ends,
        y=[end * bandwidth * unit.factor for end in ends],
        name=f"memory ceiling {bytes_unit.text(bandwidth)}",
        mode="lines",
        line={"color": style.COLOURS["copy"], "width": 2.5, "dash": style.DASHES["copy"]},
        hoverinfo="name",
    )
    for name, rate in points.items():
        plot.add_scatter(
            x=[intensity],
            y=[rate * unit.factor],
            name=f"{style.plain(name, 24)} {unit.text(rate)}, {style.number(100 * rate / ceiling, 3)} %",
            mode="markers",
            marker={
                "color": style.COLOURS.get(name, style.OTHER_COLOUR),
                "symbol": f"{style.SYMBOLS.get(name, 'circle')}-open",
            }
            | {"size": 13, "line": {"width": 2.5}},
            hoverinfo="name",
        )
    heights = [rate * unit.factor for rate in (*points.values(), ceiling / 4, ceiling * 4)]
    plot.update_layout(hoverlabel_namelength=-1, legend_orientation="v")
    plot.update_xaxes(title_text="arithmetic intensity, operations per byte", **style.Scale.over(ends, room=0).axis())
    plot.update_yaxes(title_text=f"rate, {unit.symbol}", **style.Scale.over(heights).axis())
    words = ", ".join(f"{name} {style.number(100 * rate / ceiling, 3)} %" for name, rate in points.items())
    return Figure(
        "roofline",
        style.dress_axes(plot),
        f"Roofline at {style.number(intensity)} operations per byte; of the memory ceiling are reached: {words}.",
        f"The problem must move {style.decimal_unit(work.bytes, 'B').text(work.bytes)} and takes "
        f"{style.decimal_unit(work.operations, 'op').text(work.operations)}, by the kernel's own account. Rates are of "
        "medians. The ceiling is that of a plain copy of as many bytes, timed in the same rounds. The arithmetic "
        "ceiling is not measured: far to the right, points may lie below a roof that is not drawn. Where "
        "caches are warm, a point may lie above the line.",
        zoomable=True,
    )


def rounds(comparison: Comparison) -> Figure:
    """Plot every sample of the final comparison by round, a strip a contender, and its distribution next to it."""
    names = _ordered(comparison)
    plot = make_subplots(
        rows=len(names),
        cols=2,
        shared_xaxes="columns",
        shared_yaxes="rows",
        column_widths=[0.84, 0.16],
        horizontal_spacing=0.02,
        vertical_spacing=0.06,
        figure=style.new_plot(130 * len(names) + 70, showlegend=False),
    )
    outside = sum(_add_strip(plot, row, name, comparison) for row, name in enumerate(names, start=1))
    longest = max(map(len, comparison.samples_ms.values()))
    plot.update_xaxes(range=[0, longest + 1], col=1)
    plot.update_xaxes(title_text="round", row=len(names), col=1)
    plot.update_xaxes(showticklabels=False, showgrid=False, range=[-1, 1], col=2)
    words = "; ".join(_range_text(name, comparison) for name in names)
    plot.update_layout(margin_t=36)
    note = f" {outside} far outliers are triangles at the upper edge." if outside else ""
    return Figure(
        "rounds",
        style.dress_axes(plot),
        f"Samples of the final comparison by round: {words}.",
        "Raw samples of the final comparison, every contender once a round; dashes are medians. A slope or a step that "
        "all strips share is drift of the machine, which ratios within a round cancel." + note,
        zoomable=True,
    )


def _range_text(name: str, comparison: Comparison) -> str:
    median, samples = comparison.medians_ms[name], comparison.samples_ms[name]
    middle, low, high = (style.time_unit(median).text(time) for time in (median, min(samples), max(samples)))
    return f"{name} median {middle}, from {low} to {high}"


def _add_strip(plot: go.Figure, row: int, name: str, comparison: Comparison) -> int:
    """Add one contender's samples; the number of those beyond the axis."""
    median_ms = comparison.medians_ms[name]
    unit = style.time_unit(median_ms)
    samples = np.array(comparison.samples_ms[name]) * unit.factor
    first, third = np.quantile(samples, [0.25, 0.75])
    edge = float(max(third + _FAR_OUT * (third - first), samples.min() * 1.001))
    outside = samples > edge
    colour = style.COLOURS.get(name, style.OTHER_COLOUR)
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
    plot.add_hline(y=median_ms * unit.factor, line={"color": colour, "dash": "dash", "width": 1}, row=row, col=1)
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
    plot.update_yaxes(title_text=f"{style.plain(name, 24)}, {unit.symbol}", row=row, col=1)
    return int(outside.sum())


def _ordered(comparison: Comparison) -> list[str]:
    """Return the contenders' names, the known ones first."""
    return sorted(comparison.medians_ms, key=_place)


def _place(name: str) -> tuple[int, str]:
    return (style.ORDER.index(name) if name in style.ORDER else len(style.ORDER), name)
