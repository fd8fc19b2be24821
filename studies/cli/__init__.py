"""The `tunebench` command. Heavy imports wait until a command needs them, so that `--help` answers at once."""

from __future__ import annotations

from typing import Annotated

import typer

from tunebench import __version__
from tunebench.studies.cli.bench import bench
from tunebench.studies.cli.best import best
from tunebench.studies.cli.bundle import bundle
from tunebench.studies.cli.check import check
from tunebench.studies.cli.command import Command
from tunebench.studies.cli.compare import compare
from tunebench.studies.cli.dashboard import dashboard
from tunebench.studies.cli.db import database_app
from tunebench.studies.cli.diff import diff
from tunebench.studies.cli.doctor import doctor
from tunebench.studies.cli.export import export
from tunebench.studies.cli.kernels import kernels
from tunebench.studies.cli.mcp import mcp
from tunebench.studies.cli.misses import misses
from tunebench.studies.cli.new import new
from tunebench.studies.cli.options import help_without_command
from tunebench.studies.cli.prune import prune
from tunebench.studies.cli.query import query
from tunebench.studies.cli.regress import regress
from tunebench.studies.cli.replay import replay
from tunebench.studies.cli.report import report
from tunebench.studies.cli.ship import ship
from tunebench.studies.cli.show import show
from tunebench.studies.cli.space import space
from tunebench.studies.cli.studies import studies
from tunebench.studies.cli.sweep import sweep
from tunebench.studies.cli.trials import trials
from tunebench.studies.cli.tune import tune
from tunebench.studies.cli.warm import warm

app = typer.Typer(
    name="tunebench",
    help="An autotuning workbench for CUDA kernels in PyTorch.",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"tunebench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version
    help_without_command(context)


for command in (
    *(new, tune, sweep, check, bench, compare, regress, replay, ship, warm, bundle, export),
    *(kernels, space, best, studies, trials, misses, show, query, diff, report, dashboard, mcp, prune, doctor),
):
    app.command(cls=Command)(command)
app.add_typer(database_app)
