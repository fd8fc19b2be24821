"""`sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunebench.studies.faces.cli import options
from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.output import print_json


@options_of("tuning.study_file:SweepCommandRequest")
def sweep(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Study files (.toml), of one study or many.")],
    given: options.Given = options.NOTHING,
    db: options.DatabaseOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Tune many problems as one queue over all devices: kernels, sizes, dtypes and modes, as study files combine them.

    A study that has its final comparison is not run again, one that was interrupted goes on. Each begins with what won
    at the nearest problems. One that fails is passed over and told; the exit code is then 1.
    """
    from tunebench.studies.tuning import PRELOAD
    from tunebench.tuner.fork_server import start_forkserver

    start_forkserver(PRELOAD)  # it imports torch while this process does

    from rich.console import Console

    from tunebench.db.connection.database import open_database
    from tunebench.studies.sweep.report import print_sweep, sweep_values
    from tunebench.studies.sweep.run import run_sweep
    from tunebench.studies.tuning.progress import SweepDisplay

    with open_database(db) as database, SweepDisplay(Console(stderr=True)) as display:
        report = run_sweep(files, given, database, display)
    if as_json:
        print_json(sweep_values(report))
    else:
        print_sweep(report)
    if report.interrupted:
        raise typer.Exit(130)
    if not report.complete:
        raise typer.Exit(1)
