"""`trials`."""

from __future__ import annotations

from contextlib import closing
from itertools import islice

from tunebench.studies.faces.cli import options
from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.output import print_rows, require_one_form

_ROWS = 50
"""Rows of a table for people, where nothing else is said."""


@options_of("request.results:TrialsRequest")
def trials(
    kernel: options.KernelArgument = None,
    given: options.Given = options.NOTHING,
    db: options.DatabaseOption = None,
    verbose: options.VerboseOption = False,
    as_json: options.JsonOption = False,
    as_csv: options.CsvOption = False,
) -> None:
    """List the trials that meet every condition given. Exit code 1 where there is none."""
    from tunebench.db.connection.database import open_database
    from tunebench.db.queries.trials import each_trial
    from tunebench.studies.display.tables import TRIALS
    from tunebench.studies.display.terminal import print_line
    from tunebench.studies.request.results import conditions_of

    require_one_form(as_json=as_json, as_csv=as_csv)
    with open_database(db, read_only=True) as database:
        name = options.known_kernel(kernel, database)
        rows = each_trial(database, kernel=name, **conditions_of(given))
        whole = as_json or as_csv or "limit" in given
        with closing(rows):
            shown = rows if whole else islice(rows, _ROWS)
            print_rows(
                shown, TRIALS, "no trial meets these conditions", as_json=as_json, as_csv=as_csv, verbose=verbose
            )
            if not whole and next(rows, None) is not None:
                print_line(f"only the first {_ROWS}: name conditions, or ask for more with --limit", error=True)
