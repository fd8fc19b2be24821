"""Draws the front page's picture from the figures of a `tunebench bench --json`.

Every bar is a median of per-round ratios with its interval. The axis is logarithmic and bars begin at 1, so that twice
as fast and half as fast are equally long. A real Chromium turns plotly's page into the file.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from tests.studies.chromium import running_chromium

from tunebench.studies.checking.bench import COMPILED_DEFAULT
from tunebench.studies.display.report.style import COLOURS, OTHER_COLOUR
from tunebench.tuner.result import Baseline

_WIDTH, _ROW_PIXELS, _AROUND_PIXELS = 960, 52, 110
_CONTENDERS = {
    Baseline.REFERENCE: ("PyTorch eager", COLOURS["best"]),
    Baseline.COMPILED: ("torch.compile, the faster of two modes", OTHER_COLOUR),
}
_BAR_SHIFT_PIXELS = 12
"""From the middle of a row to the middle of each of its two bars."""


def speed_ups(bench: Mapping[str, Any]) -> go.Figure:
    """The picture of a bench: one row a kernel and mode, one bar a baseline."""
    results = sorted(bench["results"], key=lambda result: result["speedups"][Baseline.REFERENCE]["value"])
    names = [_name(result) for result in results]
    plot = go.Figure()
    # Bars of a group are drawn from the bottom up, and the legend lists them in the same order.
    for baseline, (label, colour) in reversed(_CONTENDERS.items()):
        ratios = [_over(result, baseline) for result in results]
        values = [ratio["value"] for ratio in ratios]
        plot.add_bar(
            x=[value - 1 for value in values],
            base=1,
            y=names,
            orientation="h",
            name=f"over {label}",
            marker_color=colour,
            error_x={
                "type": "data",
                "array": [ratio["high"] - ratio["value"] for ratio in ratios],
                "arrayminus": [ratio["value"] - ratio["low"] for ratio in ratios],
                "thickness": 1.5,
                "width": 4,
                "color": "#1d2329",
            },
        )
        for name, ratio in zip(names, ratios, strict=True):
            plot.add_annotation(
                x=math.log10(max(1.0, ratio["high"])),
                y=name,
                text=_text(ratio),
                showarrow=False,
                xanchor="left",
                xshift=8,
                yshift=_BAR_SHIFT_PIXELS if baseline is Baseline.REFERENCE else -_BAR_SHIFT_PIXELS,
                font={"size": 12},
            )
    ticks = [1, 2, 5, 10, 20, 50, 100, 200]
    plot.update_xaxes(
        type="log",
        range=[-0.02, 2.75],
        tickvals=ticks,
        ticktext=[f"{tick}×" for tick in ticks],
        gridcolor="#e3e6ea",
        title={"text": f"times as fast on {_device(bench)}, KernelBench's sizes, fp32", "font": {"size": 13}},
    )
    plot.update_layout(
        width=_WIDTH,
        height=_ROW_PIXELS * len(results) + _AROUND_PIXELS,
        barmode="group",
        template="none",
        paper_bgcolor="white",
        plot_bgcolor="white",
        font={"size": 14, "family": "DejaVu Sans, sans-serif", "color": "#1d2329"},
        margin={"l": 230, "r": 20, "t": 40, "b": 60},
        legend={"orientation": "h", "y": 1.01, "yanchor": "bottom", "x": 0, "traceorder": "reversed"},
    )
    plot.add_vline(x=1, line={"color": "#59636e", "width": 1.5})
    return plot


def _over(result: Mapping[str, Any], baseline: Baseline) -> Mapping[str, float]:
    """Return the ratio over a baseline; of torch.compile over whichever of its modes is faster."""
    found = result["speedups"]
    names = [baseline, COMPILED_DEFAULT] if baseline is Baseline.COMPILED else [baseline]
    return min((found[name] for name in names), key=lambda ratio: ratio["value"])


def _name(result: Mapping[str, Any]) -> str:
    mode = result["problem"]["options"].get("mode")
    return result["kernel"] + (f", {mode} " if mode else " ")


def _text(ratio: Mapping[str, float]) -> str:
    value, low, high = (f"{ratio[key]:#.3g}".rstrip(".") for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _device(bench: Mapping[str, Any]) -> str:
    environment = bench["environment"]
    return f"one {bench['device']}, torch {environment['torch']}"


def draw(plot: go.Figure, file: Path) -> None:
    """Write the plot as a PNG, by Chromium."""
    with tempfile.TemporaryDirectory() as folder, running_chromium(Path(folder, "profile")) as chromium:
        page_file = Path(folder, "page.html")
        plot.write_html(page_file, include_plotlyjs=True, config={"staticPlot": True})
        page = chromium.open(page_file)
        page.resize(int(plot.layout.width), int(plot.layout.height))
        page.screenshot(file)
