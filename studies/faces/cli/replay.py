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
    from tunebench.tuner.files import require_writable
    from tunebench.tuner.search.replay import describe
    from tunebench.tuner.search.replay import replay as search
    from tunebench.tuner.search.strategies import find_sampler

    if plot is not None:
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
    from tunebench.studies.display.report.figures import Figure
    from tunebench.studies.display.report.page import render_figure, write
    from tunebench.studies.display.report.style import PALETTE, new_plot, plain, scatter

    traces = []
    for number, report in enumerate(reports):
        evaluations = list(range(1, report.budget + 1))
        colour = PALETTE[number % len(PALETTE)]
        name = plain(f"{report.space}, {report.strategy}: score {report.score:.3f}")
        low, middle, high = (report.quantile(q).tolist() for q in (0.25, 0.5, 0.75))
        band = scatter(evaluations + evaluations[::-1], high + low[::-1], name, "lines", fill="toself", opacity=0.2)
        traces.append(band | {"line": {"width": 0, "color": colour}, "showlegend": False, "hoverinfo": "skip"})
        traces.append(scatter(evaluations, middle, name, "lines", line={"color": colour, "width": 2}))
    x, y = {"title": "evaluations"}, {"title": "best so far / optimum", "type": "log"}
    words = "; ".join(f"{one.space}, {one.strategy}: score {one.score:.3f}" for one in reports)
    caption = "Lines are medians over the seeds, bands their quartiles."
    plot = new_plot(560, traces, x, y, legend={"x": 0.99, "y": 0.99, "xanchor": "right"})
    title = "Best so far over the optimum, by evaluation"
    write(render_figure(title, Figure("replay", plot, f"{words}.", caption, zoomable=True)), file)
