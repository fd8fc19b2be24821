"""`studies`."""

from __future__ import annotations

from tunebench.studies.faces.cli.options import (
    CsvOption,
    DatabaseOption,
    JsonOption,
    KernelArgument,
    VerboseOption,
    known_kernel,
)
from tunebench.studies.faces.cli.output import print_rows, require_one_form


def studies(
    kernel: KernelArgument = None,
    db: DatabaseOption = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """List the studies that have trials, each with its best. Exit code 1 where there is none."""
    from tunebench.db.connection.database import open_database
    from tunebench.db.queries.studies import studies as study_rows
    from tunebench.db.queries.trials import best_of_studies
    from tunebench.studies.display.tables import STUDIES, StudyWithBest

    require_one_form(as_json=as_json, as_csv=as_csv)
    with open_database(db, read_only=True) as database:
        name = known_kernel(kernel, database)
        found = study_rows(database, kernels=None if name is None else [name])
        best = best_of_studies(database, None if name is None else [row.study_id for row in found])
    rows = [StudyWithBest(row, best.get(row.study_id)) for row in found]
    print_rows(rows, STUDIES, "there is no study with trials", as_json=as_json, as_csv=as_csv, verbose=verbose)
