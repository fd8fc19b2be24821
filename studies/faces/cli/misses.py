"""`misses`."""

from __future__ import annotations

from tunebench.studies.faces.cli import options
from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.output import print_rows, require_one_form


@options_of("request.results:MissesRequest")
def misses(
    kernel: options.KernelArgument = None,
    given: options.Given = options.NOTHING,
    db: options.DatabaseOption = None,
    verbose: options.VerboseOption = False,
    as_json: options.JsonOption = False,
    as_csv: options.CsvOption = False,
) -> None:
    """List the problems that were served without evidence, the most used first. Exit code 1 where there is none.

    They are counted where a program asked for it: by TUNEBENCH_MISSES=1, or tunebench.record_misses().
    """
    from tunebench.db.connection.database import open_database
    from tunebench.db.queries.misses import misses as miss_rows
    from tunebench.kernels.runtime.registry import of_current_kernels
    from tunebench.studies.display.tables import MISSES

    require_one_form(as_json=as_json, as_csv=as_csv)
    with open_database(db, read_only=True) as database:
        rows = miss_rows(database, kernel=kernel, **given)
        if not rows:
            options.known_kernel(kernel, database)
    nothing = "nothing was served without evidence, as far as programs were asked to count (TUNEBENCH_MISSES=1)"
    print_rows(
        rows if given.get("tuned") else of_current_kernels(rows),
        MISSES,
        nothing,
        as_json=as_json,
        as_csv=as_csv,
        verbose=verbose,
    )
