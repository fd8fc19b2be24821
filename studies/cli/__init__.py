"""The `tunebench` command. Heavy imports wait until a command needs them, so that `--help` answers at once."""

from __future__ import annotations

from typing import Annotated

import typer

import tunebench.studies.cli.exchange  # noqa: F401 (adds its commands to `database_app`)
from tunebench import __version__
from tunebench.studies.cli.bench import bench
from tunebench.studies.cli.check import check
from tunebench.studies.cli.compare import compare
from tunebench.studies.cli.database import database_app, prune
from tunebench.studies.cli.diff import diff
from tunebench.studies.cli.pictures import dashboard, report
from tunebench.studies.cli.replay import replay
from tunebench.studies.cli.results import best, query, show, trials
from tunebench.studies.cli.ship import ship
from tunebench.studies.cli.tuning import doctor, tune

app = typer.Typer(
    name="tunebench",
    help="An autotuning workbench for CUDA kernels in PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tunebench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


for command in (tune, check, bench, compare, best, trials, show, query, diff, prune, report, dashboard, replay, ship):
    app.command()(command)
app.command()(doctor)
app.add_typer(database_app)
