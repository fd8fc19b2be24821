"""The plots of several studies: all speed-ups, time against size, and two studies side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tunebench.studies.display.report import style
from tunebench.studies.display.report.analysis import best_so_far
from tunebench.studies.display.report.figures import Figure
from tunebench.studies.display.report.gather import StudyData, StudySummary
from tunebench.studies.display.report.style import Plot, new_plot, scatter
from tunebench.tuner.problem import CALL_OPTION
from tunebench.tuner.result import Baseline, Comparison

_MOST_ROWS = 60
_LONGEST_PROBLEM = 44
_OVER = {Baseline.REFERENCE: "the reference", Baseline.COMPILED: "torch.compile", Baseline.DEFAULT: "the default"}
_SIDES = (("best", "solid"), ("default", "dash"))
"""Colours and dashes of two studies."""


def all_speed_ups(summaries: Sequence[StudySummary], problems: Sequence[str]) -> Figure | None:
    """Plot every concluded study's speed-ups with their intervals, a row a study; None where none is concluded."""
    rows = [
        (f"{style.plain(one.row.kernel, 30)}<br>{style.plain(problem, _LONGEST_PROBLEM)}", one.row, one.comparison)
        for one, problem in zip(summaries, problems, strict=True)
        if one.comparison is not None and one.comparison.speedups.keys() & _OVER.keys()
    ][:_MOST_ROWS]
    if not rows:
        return None
    traces, ends = [], [1.0]
    for baseline, words in _OVER.items():
        drawn = [(place, one) for place, (_, _, found) in enumerate(rows) if (one := found.speedups.get(baseline))]
        if not drawn:
            continue
        ends += [one.value for _, one in drawn]
        look = {"size": 11, "symbol": style.SYMBOLS[baseline], "color": style.COLOURS[baseline]}
        look["color"] = style.COLOURS["best"] if baseline is Baseline.REFERENCE else look["color"]
        traces.append(
            scatter(
                [one.value for _, one in drawn],
                [place for place, _ in drawn],
                f"over {words}",
                marker=look,
                error_x=style.interval([one for _, one in drawn]) | {"color": look["color"]},
                text=[f"{rows[place][0]}<br>{style.ratio_text(one)} over {words}" for place, one in drawn],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    # Room for the points; an interval that is many times its ratio runs out of the plot.
    scale = style.Scale.over([min(ends) / 1.15, max(ends) * 1.15])
    return Figure(
        "speed-ups",
        new_plot(
            46 * len(rows) + 110,
            traces,
            {"title": "times as fast", **scale.axis()},
            {"tickvals": list(range(len(rows))), "ticktext": [text for text, _, _ in rows]}
            | {"range": [len(rows) - 0.5, -0.5], "tickfont": {"size": 11}},
            shapes=[style.line_across(x=1)],
        ),
        "Speed-ups: " + "; ".join(_words(row.kernel, found) for _, row, found in rows) + ".",
        "Each row is a study's best configuration: medians of per-round ratios with 99 % intervals. The dotted line is "
        "equal speed; left of it the best is slower.",
    )


def _words(kernel: str, comparison: Comparison) -> str:
    found = [(_OVER[name], ratio) for name, ratio in comparison.speedups.items() if name in _OVER]
    return f"{kernel} " + ", ".join(f"{style.number(ratio.value)}× over {words}" for words, ratio in found)


def times_by_size(summaries: Sequence[StudySummary]) -> list[Figure]:
    """Plot best and reference against the problem's size, for each kernel and device with several sizes."""
    groups: dict[tuple[object, ...], list[StudySummary]] = {}
    for one in summaries:
        row, problem = one.row, one.row.problem.without(CALL_OPTION)
        options = tuple(sorted(problem.options.items()))
        groups.setdefault((row.kernel, row.device.name, row.compiler, problem.dtype, options), []).append(one)
    return [
        figure
        for place, group in enumerate(groups.values())
        if (figure := _time_by_size(f"sizes-{place}", group)) is not None
    ]


def _time_by_size(name: str, group: Sequence[StudySummary]) -> Figure | None:
    sized = [(math.prod(one.row.problem.axes.values()), one) for one in group if one.best_ms]
    sized.sort(key=lambda pair: pair[0])
    sizes = [float(size) for size, _ in sized]
    if len(set(sizes)) < 2 or min(sizes) <= 0:
        return None
    row = sized[0][1].row
    lines: dict[str, list[tuple[float, float]]] = {"best": [(size, one.best_ms or 0.0) for size, one in sized]}
    for baseline in (Baseline.REFERENCE, Baseline.COMPILED):
        found = [
            (float(size), one.comparison.medians_ms[baseline])
            for size, one in sized
            if one.comparison is not None and baseline in one.comparison.medians_ms
        ]
        if found:
            lines[baseline] = found
    times = [time for points in lines.values() for _, time in points]
    unit = style.time_unit(sorted(times)[len(times) // 2])
    traces = [
        scatter(
            [size for size, _ in points],
            [time * unit.factor for _, time in points],
            contender,
            "lines+markers",
            line={"color": style.COLOURS[contender], "width": 2},
            marker={"size": 9, "symbol": style.SYMBOLS[contender], "color": style.COLOURS[contender]},
            hovertemplate="%{y:.4g} " + unit.symbol + " at size %{x}<extra></extra>",
        )
        for contender, points in lines.items()
    ]
    title = f"{row.kernel}, {row.problem.dtype}, {row.device.name}"
    return Figure(
        name,
        new_plot(
            320,
            traces,
            {"title": " × ".join(map(style.plain, row.problem.axes)), **style.Scale.over(sizes).axis()},
            {"title": f"time, {unit.symbol}", **style.Scale.over([time * unit.factor for time in times]).axis()},
        ),
        f"Time against size of {title}: "
        + ", ".join(f"{style.time_unit(time).text(time)} at {style.number(size)}" for size, time in lines["best"])
        + ".",
        f"{title}.",
    )


def side_by_side(first: StudyData, second: StudyData) -> Figure | None:
    """Plot the best so far of two studies in one plot; None where one of them has nothing correct."""
    found = [(study, best_so_far(study.trials)) for study in (first, second)]
    if not all(steps for _, steps in found):
        return None
    unit = style.time_unit(min(steps[-1][1] for _, steps in found))
    traces: list[Plot] = []
    for (study, steps), (colour, dash) in zip(found, _SIDES, strict=True):
        ends = [*steps, (study.trials[-1].number, steps[-1][1])]
        line = {"color": style.COLOURS[colour], "dash": dash, "width": 2.5, "shape": "hv"}
        name = f"study {study.row.study_id}"
        xs, ys = [trial for trial, _ in ends], [time * unit.factor for _, time in ends]
        hover = name + ": %{y:.4g} " + unit.symbol + " at trial %{x}<extra></extra>"
        traces.append(scatter(xs, ys, name, "lines", line=line, hovertemplate=hover))
    times = [time * unit.factor for _, steps in found for _, time in steps]
    words = (f"study {study.row.study_id} {unit.text(steps[-1][1])}" for study, steps in found)
    return Figure(
        "side-by-side",
        new_plot(
            340,
            traces,
            style.TRIAL_AXIS,
            {"title": f"best so far, {unit.symbol}", **style.Scale.over(times).axis()},
        ),
        f"Best so far of both studies, in the end: {', '.join(words)}.",
        "The best correct trial so far, as screened.",
        zoomable=True,
    )
