"""`db import`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunebench.studies.faces.cli.db.transfer import FormatOption, print_added, progress_of
from tunebench.studies.faces.cli.options import DatabaseOption, JsonOption

if TYPE_CHECKING:
    from tunebench.db.exchange.formats import Format, ImportOptions


def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files that 'db export' or another tuner wrote.")
    ],
    form: FormatOption = None,
    kernel: Annotated[str | None, typer.Option(help="Kernel of a t4 or kernel-tuner file.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Device of a t4 or kernel-tuner file, such as 'NVIDIA A100'.")
    ] = None,
    architecture: Annotated[str | None, typer.Option(help="Its architecture, such as sm_80.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Data type of a t4 or kernel-tuner file, such as float32.")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="A size of its problem; repeatable."),
    ] = None,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add the results in files to the database, each of them once; a file with anything wrong in it adds nothing.

    Results of other tuners are kept for queries and replay; no model ever runs under them.
    """
    from tunebench.db.connection.database import open_database
    from tunebench.db.exchange.files import import_file
    from tunebench.db.exchange.formats import ImportOptions, format_named
    from tunebench.db.exchange.reading import format_of

    options = ImportOptions(kernel, device, architecture, dtype, _axes(size or []))
    chosen = [format_of(file) if form is None else format_named(form) for file in files]
    for file, one in zip(files, chosen, strict=True):
        _require_readable(file, one, options)
    results = []
    with open_database(db) as database:
        for file, one in zip(files, chosen, strict=True):
            with progress_of(f"checking {file.name}", f"importing {file.name}") as (checking, progress):
                added = import_file(database, file, one, options=options, checking=checking, progress=progress)
            results.append((str(file), added))
    print_added(results, as_json)


def _require_readable(file: Path, form: Format, options: ImportOptions) -> None:
    """Check what can be known before a database is opened, and perhaps made, for nothing."""
    from tunebench.tuner.errors import UserError

    form.require()
    if not file.is_file():
        raise UserError(f"there is no file {file}")
    if not form.foreign and not options.empty:
        raise UserError(f"a {form.name} file says itself what was tuned: leave out options such as --kernel")


def _axes(options: list[str]) -> dict[str, int]:
    from tunebench.studies.request.text import read_sizes
    from tunebench.tuner.errors import UserError

    axes = {}
    for name, value in read_sizes("--size", options).items():
        if not isinstance(value, int) or value < 0:
            raise UserError(f"--size {name}={value}: a size is a whole number, 0 or more")
        axes[name] = value
    return axes
