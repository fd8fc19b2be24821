"""The plots of a study's final comparison: speed-ups, the roofline, and the samples round by round."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tunebench.studies.display.report import style
from tunebench.studies.display.report.figures import Figure
from tunebench.studies.display.report.rates import Ceilings, share_words
from tunebench.studies.display.report.style import Plot, new_plot, scatter
from tunebench.tuner.problem import Work
from tunebench.tuner.result import CONTROL, Baseline, Comparison

_FAR_OUT = 8.0
"""A sample so many interquartile ranges above the third quartile is drawn at the edge."""

_ROOF_DASHES = ("solid", "dash")


def speed_ups(comparison: Comparison) -> Figure | None:
    """Plot how many times faster the best is than each baseline, with intervals; None where nothing was compared."""
    ratios = {name: ratio for name, ratio in comparison.speedups.items() if name is not Baseline.COPY}
    ratios = dict(sorted(ratios.items(), key=lambda item: _place(item[0])))
    if not ratios:
        return None
    # An interval that is many times its ratio runs out of the plot; the text beside the bar has it.
    end = min(max(ratio.high for ratio in ratios.values()), 2 * max(1.0, *(ratio.value for ratio in ratios.values())))
    bars = {
        "type": "bar",
        "orientation": "h",
        "width": 0.5,
        "x": [ratio.value for ratio in ratios.values()],
        "y": [f"over {style.plain(name, 24)}<br>{style.ratio_text(ratio)}" for name, ratio in ratios.items()],
        "marker": {"color": [style.COLOURS.get(name, style.OTHER_COLOUR) for name in ratios]},
        "error_x": style.interval(list(ratios.values())),
        "hovertemplate": "%{y}<extra></extra>",
    }
    words = "; ".join(
        f"{style.ratio_text(ratio)} over the {name}, {style.verdict_text(comparison.decision(name) or ratio.decision)}"
        for name, ratio in ratios.items()
    )
    one = next(iter(ratios.values()))
    return Figure(
        "speed-ups",
        new_plot(
            64 * len(ratios) + 90,
            [bars],
            {"title": "times as fast", "range": [0, 1.05 * max(end, 1.0)]},
            {"autorange": "reversed", "type": "category"},
            showlegend=False,
            shapes=[style.line_across(x=1)],
        ),
        f"Speed-ups of the best configuration: {words}.",
        f"Medians of per-round ratios from {one.rounds} interleaved rounds, with their {100 * one.confidence:g} % "
        "intervals; the dotted line is equal speed.",
    )


def contender_rates(comparison: Comparison, work: Work) -> Mapping[str, float]:
    """Return the operations a second of each contender that does the problem's work."""
    names = [name for name in ordered(comparison) if name not in (Baseline.COPY, CONTROL)]
    return {name: work.operations / comparison.medians_ms[name] * 1e3 for name in names}


def roofline(comparison: Comparison, work: Work, ceilings: Ceilings, note: str) -> Figure | None:
    """Plot the contenders under the memory's ceiling and the arithmetic roofs; None where no ceiling is known.

    Args:
        note: where the work is from.
    """
    points, bandwidth = contender_rates(comparison, work), ceilings.bytes_per_second
    if bandwidth is None or not points:
        return None
    intensity = work.operations / work.bytes
    ridges = {name: roof / bandwidth for name, roof in ceilings.roofs.items()}
    left, right = intensity / 4, max([intensity, *ridges.values()]) * 4
    top = max(points.values(), default=0.0)
    unit = style.decimal_unit(top, "op/s")
    highest = max(ceilings.roofs.values(), default=right * bandwidth)
    traces = [
        scatter(
            [left, highest / bandwidth],
            [left * bandwidth * unit.factor, highest * unit.factor],
            f"memory {style.decimal_unit(bandwidth, 'B/s').text(bandwidth)}",
            "lines",
            line={"color": style.COLOURS["copy"], "width": 2.5, "dash": style.DASHES["copy"]},
            hoverinfo="name",
        )
    ]
    for (name, roof), dash in zip(ceilings.roofs.items(), _ROOF_DASHES, strict=False):
        words = f"{name} {style.decimal_unit(roof, 'op/s').text(roof)}"
        line = {"color": style.COLOURS["reference"], "width": 1.5, "dash": dash}
        xs, ys = [ridges[name], right], [roof * unit.factor] * 2
        traces.append(scatter(xs, ys, words, "lines", line=line, hoverinfo="name"))
    shares = {name: share_words(rate, intensity, ceilings) for name, rate in points.items()}
    for name, rate in points.items():
        look = {"color": style.COLOURS.get(name, style.OTHER_COLOUR), "size": 13, "line": {"width": 2.5}}
        symbol = f"{style.SYMBOLS.get(name, 'circle')}-open"
        words = f"{style.plain(name, 24)} {unit.text(rate)}, {shares[name]}"
        point = [intensity], [rate * unit.factor]
        traces.append(scatter(*point, words, marker=look | {"symbol": symbol}, hoverinfo="name"))
    heights = [*points.values(), left * bandwidth, highest]
    return Figure(
        "roofline",
        new_plot(
            420,
            traces,
            {"title": "arithmetic intensity, operations per byte", **style.Scale.over([left, right], room=0).axis()},
            {"title": f"rate, {unit.symbol}", **style.Scale.over([one * unit.factor for one in heights]).axis()},
            legend={"orientation": "v", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        ),
        f"Roofline at {style.number(intensity)} operations per byte: "
        + ", ".join(f"{name} {share}" for name, share in shares.items())
        + ".",
        f"The problem must move {style.decimal_unit(work.bytes, 'B').text(work.bytes)} and takes "
        f"{style.decimal_unit(work.operations, 'op').text(work.operations)}{note}. Rates are of medians. "
        + ceilings.account,
        zoomable=True,
    )


def rounds(comparison: Comparison) -> Figure:
    """Plot every sample of the final comparison by round, a strip a contender, and its distribution next to it."""
    names = ordered(comparison)
    traces: list[Plot] = []
    layout: Plot = {"xaxis2": {"showticklabels": False, "showgrid": False, "range": [-1, 1], "domain": [0.86, 1]}}
    shapes, outside, height = [], 0, (1 + _GAP) / len(names) - _GAP
    for row, name in enumerate(names, start=1):
        drawn, axis, line, far = _strip(row, name, comparison)
        bottom = 1 - row * height - (row - 1) * _GAP
        layout[f"yaxis{row}" if row > 1 else "yaxis"] = axis | {"domain": [max(0.0, bottom), min(1.0, bottom + height)]}
        traces += drawn
        shapes.append(line)
        outside += far
    longest = max(map(len, comparison.samples_ms.values()))
    last = f"y{len(names)}" if len(names) > 1 else "y"
    layout["xaxis2"]["anchor"] = last
    x = {"title": "round", "range": [0, longest + 1], "domain": [0, 0.84], "anchor": last}
    y = layout.pop("yaxis")
    words = "; ".join(_range_text(name, comparison) for name in names)
    note = f" {outside} far outliers are triangles at the upper edge." if outside else ""
    return Figure(
        "rounds",
        new_plot(130 * len(names) + 70, traces, x, y, showlegend=False, shapes=shapes, **layout),
        f"Samples of the final comparison by round: {words}.",
        "Raw samples of the final comparison, every contender once a round; dashes are medians. A slope or a step that "
        "all strips share is drift of the machine, which ratios within a round cancel." + note,
        zoomable=True,
    )


_GAP = 0.06
"""Room between two strips, as a share of the plot's height."""


def _range_text(name: str, comparison: Comparison) -> str:
    median, samples = comparison.medians_ms[name], comparison.samples_ms[name]
    middle, low, high = (style.time_unit(median).text(time) for time in (median, min(samples), max(samples)))
    return f"{name} median {middle}, from {low} to {high}"


def _strip(row: int, name: str, comparison: Comparison) -> tuple[list[Plot], Plot, Plot, int]:
    """Return one contender's traces, its axis, its median's line, and the number of samples beyond the axis."""
    median_ms = comparison.medians_ms[name]
    unit = style.time_unit(median_ms)
    samples = np.array(comparison.samples_ms[name]) * unit.factor
    first, third = np.quantile(samples, [0.25, 0.75])
    edge = float(max(third + _FAR_OUT * (third - first), samples.min() * 1.001))
    outside = samples > edge
    shown = np.minimum(samples, edge).tolist()
    colour = style.COLOURS.get(name, style.OTHER_COLOUR)
    y = f"y{row}" if row > 1 else "y"
    look = {"color": colour, "size": [9 if out else 5 for out in outside]}
    traces = [
        scatter(
            range(1, len(samples) + 1),
            shown,
            mode="lines+markers",
            customdata=samples.tolist(),
            line={"color": colour, "width": 1},
            marker=look | {"symbol": ["triangle-up-open" if out else "circle" for out in outside]},
            hovertemplate="round %{x}: %{customdata:.4g} " + unit.symbol + "<extra></extra>",
            yaxis=y,
        ),
        {"type": "box", "x": [0] * len(shown), "y": shown, "marker": {"color": colour, "size": 3}}
        | {"line": {"width": 1.3}, "hoverinfo": "y", "xaxis": "x2", "yaxis": y},
    ]
    room = 0.08 * (max(shown) - min(shown)) or 0.01 * max(shown)
    title = f"{style.plain(name, 24)}, {unit.symbol}"
    axis = {"title": title, "range": [min(shown) - room, max(shown) + room], "nticks": 4}
    line = {"type": "line", "x0": 0, "x1": 1, "xref": "x domain", "yref": y, "y0": median_ms * unit.factor}
    line |= {"y1": median_ms * unit.factor, "line": {"color": colour, "dash": "dash", "width": 1}}
    return traces, axis, line, int(outside.sum())


def ordered(comparison: Comparison) -> list[str]:
    """Return the contenders' names, the known ones first."""
    return sorted(comparison.medians_ms, key=_place)


def _place(name: str) -> tuple[int, str]:
    return (style.ORDER.index(name) if name in style.ORDER else len(style.ORDER), name)
