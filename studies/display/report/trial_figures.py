"""The plots of single trials among others: parallel coordinates, time and energy, and counters."""

from __future__ import annotations

from collections.abc import Sequence

from tunebench.studies.display.report import style
from tunebench.studies.display.report.analysis import pareto_front, value_text, values_of
from tunebench.studies.display.report.figures import Figure, bars, configuration_text
from tunebench.studies.display.report.gather import StudyData
from tunebench.studies.display.report.style import new_plot, scatter
from tunebench.tuner.result import LaunchCounters
from tunebench.tuner.timing.counters import PEAKS, reason_of

_MOST_LINES = 200
"""Parallel coordinates of more trials are a carpet."""

_MOST_AXES = 7
"""Parallel coordinates of more tunables have no room for their names."""


def parallel(study: StudyData, ranked: Sequence[str]) -> Figure | None:
    """Plot trials as lines through their tunables' values and their time, the fastest tenth on top.

    Args:
        ranked: the tunables that have several values, the most important first.
    """
    space = study.kernel.space if study.kernel else None
    values = {name: listed for name, listed in values_of(study.timed, space).items() if name in ranked[:_MOST_AXES]}
    if len(values) < 2:
        return None
    trials = sorted(study.timed, key=lambda trial: trial.median_ms or 0.0)
    times = [trial.median_ms or 0.0 for trial in trials]
    unit, scale = style.time_unit(times[0]), style.Scale.over([times[0], times[-1]], room=0)
    heights = {name: {value: _share(at, listed) for at, value in enumerate(listed)} for name, listed in values.items()}
    tenth = max(1, len(trials) // 10)
    groups = (
        ("the others", style.thinned(trials[tenth:], _MOST_LINES), style.COLOURS["reference"], 0.35, 1.0),
        ("the fastest tenth", style.thinned(trials[:tenth], _MOST_LINES), style.COLOURS["best"], 0.6, 1.8),
    )
    traces = []
    for name, chosen, colour, opacity, width in groups:
        xs: list[float | None] = []
        ys: list[float | None] = []
        for trial in chosen:
            xs += [*range(len(values) + 1), None]
            ys += [heights[one][value_text(trial.configuration, one)] for one in values]
            ys += [scale.share(trial.median_ms or 0.0), None]
        line = {"color": colour, "width": width}
        traces.append(scatter(xs, ys, name, "lines", line=line, opacity=opacity, hoverinfo="skip"))
    labels = [
        (at, height, style.plain(value, 12)) for at, one in enumerate(heights.values()) for value, height in one.items()
    ]
    labels += [(len(values), 0.0, unit.text(times[0])), (len(values), 1.0, unit.text(times[-1]))]
    names = [*(style.plain(name, 24) for name in values), "time"]
    return Figure(
        "parallel",
        new_plot(
            420,
            traces,
            {"tickvals": list(range(len(names))), "ticktext": names, "range": [-0.2, len(values) + 0.6]},
            {"range": [-0.06, 1.06], "showticklabels": False, "showgrid": False},
            annotations=[
                {"x": x, "y": y, "text": text, "showarrow": False, "xanchor": "left", "xshift": 3}
                | {"font": {"size": 11}, "bgcolor": "rgba(128,128,128,0.25)"}
                for x, y, text in labels
            ],
        ),
        f"Parallel coordinates: a line for each timed trial through the values of {', '.join(values)} and its time.",
        "A line is a trial, and the last axis is its time. Where the lines of the fastest tenth meet, a value is "
        "needed; where they spread, it does not matter."
        + (f" The {_MOST_AXES} most important tunables are shown." if len(ranked) > _MOST_AXES else ""),
        least_width=110 * len(names),
    )


def _share(place: int, values: Sequence[str]) -> float:
    return place / max(1, len(values) - 1)


def pareto(study: StudyData) -> Figure | None:
    """Plot each trial's energy against its time, and the front that nothing beats in both; None without energies."""
    energies = study.energies_mj
    trials = [trial for trial in study.correct if trial.trial_id in energies]
    if not trials:
        return None
    points = [(trial.median_ms or 0.0, energies[trial.trial_id]) for trial in trials]
    front = pareto_front(points)
    unit = style.time_unit(points[0][0])
    hover = "%{x:.4g} " + unit.symbol + ", %{y:.4g} mJ<br>%{text}<extra></extra>"
    marker = {"size": 7, "color": style.COLOURS["reference"], "opacity": 0.7}
    line = {"color": style.COLOURS["best"], "width": 2.5, "shape": "hv"}
    traces = [
        scatter(
            [time * unit.factor for time, _ in points],
            [energy for _, energy in points],
            "correct",
            marker=marker,
            text=[f"trial {trial.number}<br>{configuration_text(trial)}" for trial in trials],
            hovertemplate=hover,
        ),
        scatter(
            [time * unit.factor for time, _ in front],
            [energy for _, energy in front],
            "Pareto front",
            "lines+markers",
            line=line,
            marker={"size": 9, "symbol": "diamond", "color": style.COLOURS["best"]},
            hoverinfo="skip",
        ),
    ]
    times, joules = ([point[axis] for point in points] for axis in (0, 1))
    return Figure(
        "pareto",
        new_plot(
            380,
            traces,
            {"title": f"time, {unit.symbol}", **style.Scale.over([time * unit.factor for time in times]).axis()},
            {"title": "energy of a call, mJ", **style.Scale.over(joules).axis()},
        ),
        "Time and energy: on the Pareto front lie "
        + ", ".join(f"{unit.text(time)} with {style.number(energy)} mJ" for time, energy in front)
        + ".",
        "No trial is both faster and takes less energy than one on the front. Energy is the card's, by NVML, while the "
        "call runs back to back with warm caches.",
        zoomable=True,
    )


def peaks(number: int, launch: LaunchCounters) -> Figure | None:
    """Plot how busy a launch keeps the parts of the device, by its counters; None where none of them was read."""
    shown = {words: launch.values[name] for name, words in PEAKS.items() if name in launch.values}
    if not shown:
        return None
    labels = [f"{words}: {style.number(share, 3)} %" for words, share in shown.items()]
    axis = {"title": "% of its peak", "range": [0, 100]}
    return Figure(
        f"peaks-{number}",
        bars(labels, list(shown.values()), style.COLOURS["best"], axis),
        f"Trial {number}, {launch.kernel}: " + ", ".join(labels) + ".",
        f"Trial {number}. {reason_of(launch)}",
    )
