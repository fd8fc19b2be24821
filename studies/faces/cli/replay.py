"""`replay`: search a recorded space without a device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunebench.studies.faces.cli.options import JsonOption
from tunebench.studies.request.text import MOST

if TYPE_CHECKING:
    from tunebench.tuner.search.replay import ReplayReport


_MOST = 1_000_000
"""Searches, or evaluations of one, that end within a lifetime."""


def replay(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="T4 results, Kernel Tuner cache files (.json), results databases (.db), their exports (.jsonl).",
        ),
    ],
    sampler: Annotated[list[str] | None, typer.Option(help="A strategy, as in tune; repeatable. Default: gp.")] = None,
    budget: Annotated[int, typer.Option(metavar="N", min=1, max=_MOST, help="Evaluations of each search.")] = 200,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, max=_MOST, help="Searches of each space by each.")] = 20,
    first_seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**62, help="Seed of the first search; the others follow it.")
    ] = 0,
    batch: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=_MOST,
            help="The number that is always pending, as in a study that builds ahead.",
        ),
    ] = 1,
    kernel: Annotated[str | None, typer.Option(help="Of a database or its export: this kernel's spaces only.")] = None,
    study: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=MOST, help="Of a database: the configurations of this study.")
    ] = None,
    stop_early: Annotated[
        bool, typer.Option("--stop-early", help="Say where a study that may stop early would have, and what it lost.")
    ] = False,
    earlier: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="The kernel elsewhere, searched first: what was met is the warm start. The space itself is left out.",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the convergence curves to this HTML file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Search exhaustively measured spaces again, without a device, and score the strategies.

    The score is 1 for a search that has the optimum from the first evaluation on and 0 for random search: the mean over
    evaluations of (E[random] - best so far) / (E[random] - optimum), with E[random] exact.
    """
    from tunebench.studies.display.terminal import printable
    from tunebench.studies.tuning.recordings import load_spaces
    from tunebench.tuner.extras import require_extra
    from tunebench.tuner.files import require_writable
    from tunebench.tuner.search.replay import describe
    from tunebench.tuner.search.replay import replay as search
    from tunebench.tuner.search.strategies import find_sampler

    if plot is not None:
        require_extra("report", "a plot", "plotly")
        require_writable(plot)
    strategies = sampler or ["gp"]
    for name in strategies:
        find_sampler(name)
    spaces = [space for file in files for space in load_spaces(file, kernel, study)]
    elsewhere = [space for file in earlier or [] for space in load_spaces(file, kernel)]
    reports = []
    for name in strategies:
        for space in spaces:
            known = [one for one in elsewhere if one.kernel == space.kernel and one.name != space.name]
            numbers = range(first_seed, first_seed + seeds)
            reports.append(search(space, name, budget, numbers, batch, known, stop_early=stop_early))
            if not as_json:
                print(printable(describe(reports[-1])))
    if plot is not None:
        _draw(reports, plot)
    if as_json:
        _print_values(reports)
    elif len(spaces) > 1:
        for place, name in enumerate(strategies):
            _print_average(name, reports[place * len(spaces) : (place + 1) * len(spaces)])


def _print_average(strategy: str, reports: list[ReplayReport]) -> None:
    from statistics import fmean, geometric_mean

    score = fmean(report.score for report in reports)
    after = min(100, max(report.budget for report in reports))
    ratio = geometric_mean(report.ratio_after(after) for report in reports)
    print(
        f"{strategy}: average score {score:.3f}, geometric mean of best/optimum after {after} evaluations {ratio:.3f}"
    )


def _print_values(reports: list[ReplayReport]) -> None:
    from dataclasses import asdict

    from tunebench.studies.faces.cli.output import print_json

    print_json([asdict(report) | {"score": report.score, "score_error": report.score_error} for report in reports])


def _draw(reports: list[ReplayReport], file: Path) -> None:
    """Best so far over the optimum by evaluation: the median over the seeds, with the quartiles as a band."""
    import plotly.colors
    import plotly.graph_objects as go

    from tunebench.tuner.files import whole_file

    figure = go.Figure()
    palette = plotly.colors.qualitative.Safe
    for number, report in enumerate(reports):
        evaluations = list(range(1, report.budget + 1))
        colour = palette[number % len(palette)]
        name = f"{report.space}, {report.strategy}: score {report.score:.3f}"
        low, middle, high = (report.quantile(q).tolist() for q in (0.25, 0.5, 0.75))
        band = {"x": evaluations + evaluations[::-1], "y": high + low[::-1], "fill": "toself", "opacity": 0.2}
        figure.add_scatter(**band, line={"width": 0}, fillcolor=colour, showlegend=False, hoverinfo="skip", name=name)
        figure.add_scatter(x=evaluations, y=middle, line={"color": colour, "width": 2}, name=name)
    figure.update_layout(
        template="simple_white",
        title="Best so far over the optimum: median over the seeds, quartiles as a band",
        xaxis_title="evaluations",
        yaxis_title="best so far / optimum",
        yaxis_type="log",
        legend={"x": 0.99, "y": 0.99, "xanchor": "right"},
    )
    with whole_file(file) as stream:
        stream.write(figure.to_html(include_plotlyjs=True).encode())
