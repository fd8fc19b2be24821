"""The `tunebench` command. Heavy imports wait until a command needs them, so that `--help` answers at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar

import typer

from tunebench import __version__
from tunebench.studies.faces.cli.bench import bench
from tunebench.studies.faces.cli.best import best
from tunebench.studies.faces.cli.bundle import bundle
from tunebench.studies.faces.cli.check import check
from tunebench.studies.faces.cli.command import Commands, ask
from tunebench.studies.faces.cli.compare import compare
from tunebench.studies.faces.cli.confirm import confirm
from tunebench.studies.faces.cli.dashboard import dashboard
from tunebench.studies.faces.cli.db import database_app
from tunebench.studies.faces.cli.demo import demo
from tunebench.studies.faces.cli.diff import diff
from tunebench.studies.faces.cli.doctor import doctor
from tunebench.studies.faces.cli.explain import explain
from tunebench.studies.faces.cli.export import export
from tunebench.studies.faces.cli.frontier import frontier
from tunebench.studies.faces.cli.kernels import kernels
from tunebench.studies.faces.cli.mcp import mcp
from tunebench.studies.faces.cli.misses import misses
from tunebench.studies.faces.cli.new import new
from tunebench.studies.faces.cli.optimize import optimize
from tunebench.studies.faces.cli.options import help_without_command
from tunebench.studies.faces.cli.prune import prune
from tunebench.studies.faces.cli.query import query
from tunebench.studies.faces.cli.regress import regress
from tunebench.studies.faces.cli.replay import replay
from tunebench.studies.faces.cli.report import report
from tunebench.studies.faces.cli.serve import serve
from tunebench.studies.faces.cli.ship import ship
from tunebench.studies.faces.cli.show import show
from tunebench.studies.faces.cli.space import space
from tunebench.studies.faces.cli.stop import stop
from tunebench.studies.faces.cli.studies import studies
from tunebench.studies.faces.cli.sweep import sweep
from tunebench.studies.faces.cli.trials import trials
from tunebench.studies.faces.cli.tune import tune
from tunebench.studies.faces.cli.warm import warm

_GROUPS: Mapping[str, Sequence[Callable[..., None]]] = {
    "Tune": (demo, new, tune, confirm, sweep, optimize, space, replay),
    "Check": (check, compare, bench, frontier, regress, doctor),
    "Use": (kernels, warm, bundle, misses, stop),
    "Ask": (best, studies, trials, show, explain, query, diff, report, dashboard),
    "Share": (ship, export, serve, mcp),
    "Database": (prune,),
}


class _Commands(Commands):
    groups: ClassVar = {title: [one.__name__ for one in functions] for title, functions in _GROUPS.items()}
    functions: ClassVar = {one.__name__: one for functions in _GROUPS.values() for one in functions}


app = typer.Typer(
    name="tunebench",
    cls=_Commands,
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


@app.command(hidden=True)
def answer() -> None:
    """Run the command of which standard input has the name and the arguments, as JSON: for programs."""
    name, arguments = json.load(sys.stdin)
    ask(_Commands.functions[name], arguments)


app.add_typer(database_app)
