"""Look of numbers and plots: units, digits, ticks, colours. Text from a database becomes harmless here."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tunebench.tuner.result import Decision, Ratio

# Okabe and Ito's colours, which the colour-blind tell apart; they also differ in dash and symbol wherever they meet.
# Lightened or darkened where needed to keep 3:1 against the page in light and in dark.
ORDER = ("best", "reference", "default", "compiled", "copy")
"""The contenders that a comparison may have, as they are listed everywhere."""

COLOURS = {"best": "#1a7fc1", "default": "#d55e00", "reference": "#828a93", "compiled": "#b0679a", "copy": "#00916a"}
DASHES = {"default": "dash", "reference": "dashdot", "copy": "dot"}
SYMBOLS = {"best": "diamond", "default": "circle", "reference": "square", "compiled": "x", "copy": "triangle-up"}
OTHER_COLOUR = "#b0679a"
REFUSED_COLOUR = "#d55e00"
PALETTE = (*COLOURS.values(), "#a8850c", "#4a6fd4")
"""Colours of lines that are neither contenders nor anything else that has a colour of its own."""

FAST_TO_SLOW = [[0.0, "#fde737"], [0.25, "#b9a769"], [0.5, "#7c7b78"], [0.75, "#434e6c"], [1.0, "#00224e"]]
"""Cividis, made for colour-blind readers, turned around: bright is fast."""

Plot: TypeAlias = dict[str, Any]
"""A figure in the words of plotly.js, or a part of one."""

TRIAL_AXIS: Plot = {"title": "trial", "rangemode": "tozero", "tickformat": ",d"}
"""The axis of trials by their number, from 0 on."""

_GRID = "rgba(128,128,128,0.22)"
_LINE = "rgba(128,128,128,0.6)"

LOG_FROM_RATIO = 3.0
"""A value axis whose largest value is so many times its smallest is logarithmic."""


@dataclass(frozen=True)
class Unit:
    """A unit to show a quantity in: what a stored value is multiplied by, and its symbol."""

    symbol: str
    factor: float

    def text(self, value: float) -> str:
        """Return the value with four significant digits and the unit."""
        return f"{number(value * self.factor)} {self.symbol}"


@dataclass(frozen=True)
class Scale:
    """A value axis: its range and ticks, linear or logarithmic by how far the values lie apart."""

    logarithmic: bool
    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float], *, room: float = 0.06) -> Scale:
        """Return the scale that shows all of these positive values with some room around them."""
        low, high = min(values), max(values)
        if high / low > LOG_FROM_RATIO:
            factor = (high / low) ** room
            return cls(True, low / factor, high * factor)
        margin = (high - low) * room or high * room
        return cls(False, max(0.0, low - margin), high + margin)

    def share(self, value: float) -> float:
        """Return how far up the axis a value lies, from 0 to 1."""
        low, high, at = (
            map(math.log, (self.low, self.high, value)) if self.logarithmic else (self.low, self.high, value)
        )
        return min(1.0, max(0.0, (at - low) / ((high - low) or 1.0)))

    def axis(self) -> dict[str, Any]:
        """Return the keys of a plotly axis."""
        if not self.logarithmic:
            return {"range": [self.low, self.high], "nticks": 7}
        ticks = log_ticks(self.low, self.high)
        limits = [math.log10(self.low), math.log10(self.high)]
        return {"type": "log", "range": limits, "tickvals": ticks, "ticktext": [number(tick) for tick in ticks]}


def number(value: float, digits: int = 4) -> str:
    """Return a number with that many significant digits and no exponent where people would not write one."""
    text = fixed(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def telling_digits(values: Sequence[float]) -> int:
    """Return how many significant digits tell such values apart: three where they differ widely, six at most."""
    low, high = min(values), max(values)
    return 3 if high == low else max(3, min(6, 2 + math.ceil(-math.log10((high - low) / high))))


def fixed(value: float, digits: int) -> str:
    """Return the same with its zeros, for numbers that stand next to each other."""
    if value != 0 and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}"
    places = digits - 1 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, places):,.{max(0, places)}f}"


def time_unit(milliseconds: float) -> Unit:
    """Return the unit in which such a time is a number that people can read."""
    if milliseconds < 0.5:
        return Unit("µs", 1e3)
    return Unit("ms", 1.0) if milliseconds < 5000 else Unit("s", 1e-3)


def decimal_unit(quantity: float, symbol: str) -> Unit:
    """Return the decimal prefix with which such a quantity is a number that people can read."""
    for prefix, factor in (("T", 1e-12), ("G", 1e-9), ("M", 1e-6), ("k", 1e-3)):
        if quantity * factor >= 0.5:
            return Unit(f"{prefix}{symbol}", factor)
    return Unit(symbol, 1.0)


def bytes_text(count: int) -> str:
    """Return a size in bytes as text in binary units."""
    for symbol, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{number(count / size)} {symbol}"
    return f"{count} B"


def ratio_text(ratio: Ratio) -> str:
    """Return a speed-up with its interval, as text."""
    value, low, high = (fixed(part, 4) for part in (ratio.value, ratio.low, ratio.high))
    return f"{value}× [{low}, {high}]"


def share_text(ratio: Ratio) -> str:
    """Return a ratio as a percentage with its interval, as text."""
    value, low, high = (fixed(100 * part, 3) for part in (ratio.value, ratio.low, ratio.high))
    return f"{value} % [{low}, {high}]"


def percent(share: float) -> str:
    """Return a share of a whole as a percentage."""
    return f"{100 * share:.1f} %" if share >= 0.001 or share == 0 else "< 0.1 %"


def verdict_text(decision: Decision) -> str:
    """Return a speed-up's decision in words, its interval considered."""
    return "a tie" if decision is Decision.TIE else decision.value


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two positive ones, some three to eight of them."""
    decades = math.log10(high / low)
    mantissas = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0) if decades < 1 else (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
    step = max(1, math.ceil(decades / 8))
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks = (mantissa * 10.0**power for power in range(first, last + 1, step) for mantissa in mantissas)
    return [float(f"{tick:.6g}") for tick in ticks if low <= tick <= high]


def plain(text: str, longest: int = 200) -> str:
    """Return text for a plot: plotly reads some HTML in it, which text from a database must not reach."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return html.escape(cut, quote=False)


def thinned(values: Sequence[Any], most: int) -> list[Any]:
    """Return at most so many of the values, evenly spread, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(index * (len(values) - 1) / (most - 1))] for index in range(most)]


def scatter(x: Sequence[Any], y: Sequence[Any], name: str = "", mode: str = "markers", **more: Any) -> Plot:
    """Return a trace of points or lines."""
    return {"type": "scatter", "x": list(x), "y": list(y), "name": name, "mode": mode, **more}


def new_plot(height: int, traces: Sequence[Plot], x: Plot, y: Plot, **layout: Any) -> Plot:
    """Return a plot in the report's style; the page sets its text's colour by the reader's theme.

    Args:
        height: in pixels.
        x, y: keys of plotly's axes; a title is its text. More axes stand in the layout as `xaxis2` and so on.
    """
    axes = {name: value for name, value in layout.items() if name[1:5] == "axis"} | {"xaxis": x, "yaxis": y}
    common = {
        "height": height,
        "margin": {"l": 12, "r": 16, "t": 12, "b": 12, "pad": 2},
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "hovermode": "closest",
        "hoverlabel": {"namelength": -1},
        "dragmode": False,
    }
    return {
        "data": list(traces),
        "layout": common | layout | {name: _axis(value, line=name[0] == "x") for name, value in axes.items()},
    }


def interval(ratios: Sequence[Ratio]) -> Plot:
    """Return the error bars of ratios."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [ratio.high - ratio.value for ratio in ratios],
        "arrayminus": [ratio.value - ratio.low for ratio in ratios],
        "color": COLOURS["best"],
        "thickness": 2,
        "width": 6,
    }


def line_across(*, x: float | None = None, y: float | None = None) -> Plot:
    """Return a dotted line across a plot, at one of the two."""
    line = {"type": "line", "line": {"color": COLOURS["reference"], "width": 1.5, "dash": "dot"}}
    if y is None:
        return line | {"x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1}
    return line | {"y0": y, "y1": y, "xref": "paper", "x0": 0, "x1": 1}


def _axis(own: Plot, *, line: bool) -> Plot:
    """Return an axis with grid, line and room for labels."""
    title = {"text": own.get("title", ""), "standoff": 8, "font": {"size": 13}}
    common = {"gridcolor": _GRID, "linecolor": _LINE, "zeroline": False, "automargin": True, "ticks": ""}
    numbers = {"separatethousands": True, "exponentformat": "none"}
    return {**common, **numbers, "showline": line, **own, "title": title}
