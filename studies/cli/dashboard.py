"""`dashboard`."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Annotated

import typer

from tunebench.studies.cli.options import DatabaseOption, JsonOption
from tunebench.studies.cli.output import counted, print_json


def dashboard(
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on, on this machine only.")] = 8080,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Open Optuna's own dashboard on the same database, until Ctrl-C. It needs the package optuna-dashboard."""
    from tunebench.db.connection.database import open_database
    from tunebench.db.upkeep.optuna_mirror import publish_all
    from tunebench.studies.dashboard import load_dashboard, serving

    make_application = load_dashboard()
    # Only a database that is there: opening for writing would create one.
    with open_database(db, read_only=True):
        pass
    with open_database(db) as database:
        published = publish_all(database)
        with serving(make_application, database, port) as address:
            if as_json:
                print_json({"address": address, "studies": published})
            else:
                print(f"{counted(published)} at {address}, until Ctrl-C")
            sys.stdout.flush()
            # Ctrl-C is the ordinary end.
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
