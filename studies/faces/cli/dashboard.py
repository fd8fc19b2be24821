"""`dashboard`."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Annotated

import typer

from tunebench.studies.display.terminal import print_line
from tunebench.studies.faces.cli.options import DatabaseOption, JsonOption
from tunebench.studies.faces.cli.output import counted, print_json


def dashboard(
    port: Annotated[int, typer.Option(metavar="N", min=1, max=65535, help="The port on this machine.")] = 8080,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Open Optuna's own dashboard on the same database, until Ctrl-C. It needs the package optuna-dashboard."""
    from tunebench.studies.display.dashboard import load_dashboard, serving

    # Ctrl-C is the ordinary end, as soon as it serves.
    with serving(load_dashboard(), db, port) as served, contextlib.suppress(KeyboardInterrupt):
        if served.not_kept:
            print_line(f"{served.not_kept}: what you change in the dashboard is not kept", error=True)
        if as_json:
            print_json({"address": served.address, "studies": served.studies, "kept": not served.not_kept})
        else:
            print_line(f"{counted(served.studies)} at {served.address}, until Ctrl-C")
        sys.stdout.flush()
        threading.Event().wait()
