"""`db export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunebench.studies.display.terminal import print_line
from tunebench.studies.faces.cli.db.transfer import FormatOption, progress_of
from tunebench.studies.faces.cli.options import DatabaseOption, JsonOption, KernelArgument
from tunebench.studies.faces.cli.output import print_json
from tunebench.studies.request.text import MOST

if TYPE_CHECKING:
    from tunebench.db.exchange.formats import Format


def export(
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="Where to; compressed if it ends in .gz; - is the output."),
    ],
    kernel: KernelArgument = None,
    form: FormatOption = None,
    study: Annotated[int | None, typer.Option(min=1, max=MOST, help="Only this study.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write results to a file: everything (jsonl, csv, parquet), or one study for other tuners (t4, kernel-tuner)."""
    from tunebench.db.connection.database import open_database
    from tunebench.db.entries.reader import StudyFilter, count_trials, matching_studies
    from tunebench.db.exchange.files import export_file, export_stream
    from tunebench.tuner.errors import UserError

    if str(output) == "-" and as_json:
        raise UserError("with -o - the results are on standard output: leave out --json")
    which = StudyFilter(kernel, study)
    chosen = _format(form, output)
    with open_database(db, read_only=True) as database:
        meant = matching_studies(database, which)
        total = count_trials(database, None if which == StudyFilter() else meant)
        with progress_of("exporting", total=total) as (progress,):
            if str(output) == "-":
                export_stream(database, sys.stdout.buffer, chosen, which=which, progress=progress)
                return
            done = export_file(database, output, chosen, which=which, replace=force, progress=progress)
    files = [str(file) for file in done.files]
    if as_json:
        print_json({"files": files, "format": chosen.name, "studies": done.studies, "trials": done.trials})
    else:
        print_line(f"{done.trials} trials of {done.studies} studies written to {' and '.join(files)}")


def _format(name: str | None, file: Path) -> Format:
    """The format that was asked for, or the one that a file's name says.

    Raises:
        UserError: neither says one.
    """
    from tunebench.db.exchange.formats import FormatName, format_by_name, format_named
    from tunebench.tuner.errors import UserError

    found = format_by_name(file) if name is None else format_named(name)
    if found is None:
        raise UserError(f"the name {file.name} does not say what format it is: add --format ({', '.join(FormatName)})")
    return found
