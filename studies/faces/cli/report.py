"""`report`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tunebench.studies.display.terminal import print_line
from tunebench.studies.faces.cli.options import DatabaseOption, JsonOption
from tunebench.studies.faces.cli.output import counted, print_json
from tunebench.studies.request.text import MOST


def report(
    kernels: Annotated[
        list[str] | None, typer.Argument(metavar="[KERNEL]...", help="Only these: kernels' names or folders.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = Path(
        "report.html"
    ),
    study: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=MOST,
            help="This study, by number; repeatable. Default: the newest of each kernel, problem and device.",
        ),
    ] = None,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write one HTML file with pictures of studies; it opens offline. Exit code 1 where there is nothing to show."""
    from tunebench.db.connection.database import open_database
    from tunebench.studies.display.report.gather import gather
    from tunebench.tuner.files import require_writable

    require_writable(output)
    with open_database(db, read_only=True) as database:
        data = gather(database, kernels or (), study or ())
    if not data.studies:
        print("no trials of that are recorded, so there is nothing to show", file=sys.stderr)
        if as_json:
            print_json({"file": None, "bytes": 0, "studies": [], "sections": []})
        raise typer.Exit(1)

    from tunebench.studies.display.report.page import render, write

    html = render(data)
    write(html, output)
    size = len(html.encode())
    numbers = [summary.row.study_id for summary in data.overview]
    sections = [study.row.study_id for study in data.studies]
    if as_json:
        print_json({"file": str(output), "bytes": size, "studies": numbers, "sections": sections})
    else:
        some = f" ({len(sections)} of them in full)" if len(sections) < len(numbers) else ""
        print_line(
            f"{output}: {counted(len(numbers))}{some}, {size / 1e6:.1f} MB, opens in any browser without a network"
        )
