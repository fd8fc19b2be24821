"""`frontier`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunebench.studies.faces.cli import options
from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.output import print_json

if TYPE_CHECKING:
    from tunebench.studies.checking.frontier import Frontier
    from tunebench.studies.display.report.figures import Figure


@options_of("request.measure:FrontierRequest")
def frontier(
    size: Annotated[str, typer.Argument(metavar="ROWSxINxOUT", help="The product's size, such as 1024x8192x8192.")],
    given: options.Given = options.NOTHING,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw time against RMS error into this HTML file.")
    ] = None,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> None:
    """Try every product of one size, x · weightᵀ, and tell what each takes and how wrong it is.

    They are torch's own, under each of its settings, and ours: of each class of configurations that round alike the
    fastest that was tried. Errors are the largest of an element and the RMS of all, against float64, relative to the
    output's size. Nothing is recorded.
    """
    from tunebench.studies.checking.frontier import frontier as run
    from tunebench.studies.display.terminal import print_line
    from tunebench.studies.request.measure import FrontierRequest
    from tunebench.studies.request.options import make
    from tunebench.tuner.errors import UserError
    from tunebench.tuner.files import require_writable

    if picture is not None:
        if picture.suffix != ".html":
            raise UserError(f"the picture is a page: name a file that ends in .html, not '{picture.name:.40}'")
        require_writable(picture)
    found = run(size, make(FrontierRequest, dict(given), "frontier"), partial(print_line, error=True))
    if picture is not None:
        from tunebench.studies.display.report.page import render_figure, write

        write(render_figure(f"The frontier of {size}", _figure(found)), picture)
    if as_json:
        print_json(_values(found))
    else:
        _print(found, verbose)


def _values(found: Frontier) -> object:
    from tunebench.studies.display.tables import values_of

    points = [values_of(one, *vars(one), on_frontier=one in found.best) for one in found.points]
    return values_of(found, "problem", "environment", device=found.device.name, points=points)


def _print(found: Frontier, verbose: bool) -> None:
    """Print a table of what was timed, then why others are no contenders."""
    from tunebench.studies.display.terminal import print_line, print_table

    columns = ["frontier", "product", "ms", "95 % interval", "largest error", "RMS error", "configuration"]
    rows = [
        [
            "*" if one in found.best else "-" if one.message else "",
            one.product,
            f"{time.median_ms:.4g}",
            f"{time.low_ms:.4g} to {time.high_ms:.4g}",
            f"{wrong.largest:.2e}",
            f"{wrong.rms:.2e}",
            str(one.configuration or ""),
        ]
        for one, time, wrong in found.timed
    ]
    title = f"{found.problem} on {found.device}; errors against float64, of the output's size; -: no contender"
    print_table(columns, rows, title, core=6, verbose=verbose)
    for one in found.points:
        if one.message:
            print_line(f"{one.product}: {one.message}")


def _figure(found: Frontier) -> Figure:
    """Plot every product that was timed, and the frontier as a line."""
    from tunebench.studies.display.report.figures import Figure
    from tunebench.studies.display.report.style import (
        COLOURS,
        OTHER_COLOUR,
        REFUSED_COLOUR,
        Scale,
        new_plot,
        plain,
        scatter,
    )

    drawn = [(one, time.median_ms, wrong.rms) for one, time, wrong in found.timed if wrong.rms > 0]
    traces = []
    for name, colour, symbol, chosen in (
        ("torch", COLOURS["reference"], "square", [one for one in found.points if one.configuration is None]),
        ("tunebench", COLOURS["best"], "circle", [one for one in found.points if one.configuration is not None]),
        ("no contender", REFUSED_COLOUR, "x", [one for one in found.points if one.message]),
        ("frontier", OTHER_COLOUR, "circle-open", found.best),
    ):
        shown = [point for point in drawn if point[0] in chosen]
        mode, size = ("lines+markers", 16) if name == "frontier" else ("markers", 9)
        trace = scatter([rms for *_, rms in shown], [ms for _, ms, _ in shown], name, mode, line={"shape": "vh"})
        trace |= {"marker": {"color": colour, "symbol": symbol, "size": size}}
        trace |= {"text": [plain(f"{one.product} {one.message}") for one, *_ in shown]}
        traces.append(trace | {"hovertemplate": "%{text}<br>%{y:.4g} ms, RMS error %{x:.2e}<extra></extra>"})
    errors, times = Scale.over([rms for *_, rms in drawn] or [1.0]), Scale.over([ms for _, ms, _ in drawn] or [1.0])
    x = {"title": "RMS error, of the output's size", **errors.axis()}
    plot = new_plot(560, traces, x, {"title": "time, ms", **times.axis()})
    words = "; ".join(f"{one.product} {ms:.4g} ms, RMS error {rms:.2e}" for one, ms, rms in drawn if one in found.best)
    caption = f"{found.problem} on {found.device}. Of whatever else contends, the frontier has an equal or a better."
    return Figure("frontier", plot, f"The frontier: {words}.", caption, zoomable=True)
