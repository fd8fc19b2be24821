"""`best`."""

from __future__ import annotations

from tunebench.studies.faces.cli import options
from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.output import print_rows, require_one_form


@options_of("request.results:BestRequest")
def best(
    kernel: options.KernelArgument = None,
    given: options.Given = options.NOTHING,
    db: options.DatabaseOption = None,
    verbose: options.VerboseOption = False,
    as_json: options.JsonOption = False,
    as_csv: options.CsvOption = False,
) -> None:
    """List the best configuration of each kernel, problem and device.

    Times and speed-ups are those of the final comparison, where there was one. Where that was inconclusive, the fastest
    of the search is listed, as unconfirmed. Exit code 1 where nothing is found.
    """
    from tunebench.db.connection.database import open_database
    from tunebench.db.queries.trials import best as best_rows
    from tunebench.kernels.runtime.registry import of_current_kernels
    from tunebench.studies.display.tables import BEST

    require_one_form(as_json=as_json, as_csv=as_csv)
    with open_database(db, read_only=True) as database:
        found = best_rows(
            database,
            kernel=options.known_kernel(kernel, database),
            **{name: value for name, value in given.items() if name != "any_source"},
        )
    rows = found if given.get("any_source") else of_current_kernels(found)
    nothing = "no result meets these conditions"
    if found and not rows:
        nothing += ": there are results of earlier versions of the source, which --any-source shows"
    print_rows(rows, BEST, nothing, as_json=as_json, as_csv=as_csv, verbose=verbose)
