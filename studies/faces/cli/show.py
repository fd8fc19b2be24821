"""`show`."""

from __future__ import annotations

from typing import Annotated

import typer

from tunebench.studies.faces.cli.options import DatabaseOption, JsonOption
from tunebench.studies.faces.cli.output import print_json
from tunebench.studies.request.text import MOST


def show(
    trial: Annotated[
        int,
        typer.Argument(min=1, max=MOST, metavar="TRIAL", help="The trial's number, as `trials` and `--json` have it."),
    ],
    source: Annotated[
        bool, typer.Option("--source", help="The source too, where this tunebench ships the one that ran.")
    ] = False,
    log: Annotated[bool, typer.Option("--log", help="The compiler's full output too; --json always has it.")] = False,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Everything about one trial: what ran where, its build, verdict, samples, and the comparisons it won."""
    from tunebench.db.connection.database import open_database
    from tunebench.db.queries.one_trial import trial_details
    from tunebench.studies.display.trial_page import current_source, detail_values, print_details

    with open_database(db, read_only=True) as database:
        details = trial_details(database, trial)
    text = current_source(details) if source else None
    if as_json:
        print_json(detail_values(details, source=text))
    else:
        print_details(details, log=log, source=text)
