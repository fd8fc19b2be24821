"""`db export`, `db import` and `db merge`: results to and from files and other databases."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunebench.studies.cli.database import database_app
from tunebench.studies.cli.options import DatabaseOption, JsonOption, parse_sizes, print_json

if TYPE_CHECKING:
    from tunebench.db.entries.bulk import Added
    from tunebench.db.exchange.formats import Format, Said

_LINE_EVERY = 100_000

FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="jsonl, t4, kernel-tuner, csv or parquet. Default: by the file's name."),
]


@database_app.command("export")
def export(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where to; compressed if it ends in .gz.")
    ],
    form: FormatOption = None,
    kernel: Annotated[str | None, typer.Option(help="Only this kernel's studies.")] = None,
    study: Annotated[int | None, typer.Option(help="Only this study.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write results to a file: everything (jsonl, csv, parquet), or one study for other tuners (t4, kernel-tuner)."""
    from tunebench.db.connection.database import open_database
    from tunebench.db.entries.reader import Wanted, count_trials, wanted_studies
    from tunebench.db.exchange.files import export_file

    wanted = Wanted(kernel, study)
    chosen = _format(form, output)
    with open_database(db, read_only=True) as database:
        meant = wanted_studies(database, wanted)
        total = count_trials(database, None if wanted == Wanted() else meant)
        with _progress("exporting", total) as progress:
            done = export_file(database, output, chosen, wanted=wanted, replace=force, progress=progress)
    files = [str(file) for file in done.files]
    if as_json:
        print_json({"files": files, "format": chosen.name, "studies": done.studies, "trials": done.trials})
    else:
        print(f"{done.trials} trials of {done.studies} studies written to {' and '.join(files)}")


@database_app.command("import")
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
    from tunebench.db.exchange.formats import Said

    said = Said(kernel, device, architecture, dtype, _axes(size or []))
    chosen = [_format(form, file) for file in files]
    for file, one in zip(files, chosen, strict=True):
        _require_readable(file, one, said)
    results = []
    with open_database(db) as database:
        for file, one in zip(files, chosen, strict=True):
            with _progress(f"importing {file.name}") as progress:
                results.append((str(file), import_file(database, file, one, said=said, progress=progress)))
    _print_added(results, as_json)


@database_app.command("merge")
def merge(
    into: Annotated[str, typer.Argument(metavar="INTO", help="The database to add to; made if it is not there.")],
    sources: Annotated[list[str], typer.Argument(metavar="FROM...", help="Databases to add; they are only read.")],
    as_json: JsonOption = False,
) -> None:
    """Add everything in some databases to another one, each result once. If one of them cannot be read, nothing is."""
    from tunebench.db.exchange.merge import merge_databases

    with _progress("merging") as progress:
        results = merge_databases(into, sources, progress)
    _print_added(results, as_json)


def _format(name: str | None, file: Path) -> Format:
    """The format that was asked for, or the one that a file's name says.

    Raises:
        UserError: neither says one.
    """
    from tunebench.db.exchange.formats import FORMATS, FormatName, format_named
    from tunebench.tuner.errors import UserError

    if name is not None:
        return format_named(name)
    plain = file.name.lower().removesuffix(".gz")
    for ending, found in (
        (".jsonl", FormatName.JSON_LINES),
        (".csv", FormatName.CSV),
        (".parquet", FormatName.PARQUET),
        ("t4.json", FormatName.T4),
    ):
        if plain.endswith(ending):
            return FORMATS[found]
    raise UserError(f"the name {file.name} does not say what format it is: add --format ({', '.join(FormatName)})")


def _require_readable(file: Path, form: Format, said: Said) -> None:
    """What can be known before a database is opened, and perhaps made, for nothing."""
    from tunebench.tuner.errors import UserError

    form.require()
    if not file.is_file():
        raise UserError(f"there is no file {file}")
    if not form.foreign and not said.nothing:
        raise UserError(f"a {form.name} file says itself what was tuned: leave out options such as --kernel")


def _axes(options: list[str]) -> dict[str, int]:
    from tunebench.tuner.errors import UserError

    axes = {}
    for name, value in parse_sizes(options).items():
        if not isinstance(value, int) or value < 0:
            raise UserError(f"--size {name}={value}: a size is a whole number, 0 or more")
        axes[name] = value
    return axes


def _print_added(results: list[tuple[str, Added]], as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        print_json([{"source": source, **asdict(added)} for source, added in results])
        return
    for source, added in results:
        also = f", {added.conflicts} of them beside other results of the same study" if added.conflicts else ""
        refused = f", {added.late_refusals} trials refused late" if added.late_refusals else ""
        print(
            f"{source}: {added.trials} trials added{also}, {added.present} already there; "
            f"{added.studies} studies and {added.comparisons} comparisons added{refused}"
        )


def _lines(deed: str) -> Callable[[int], None]:
    """Prints a line whenever another hundred thousand trials are done."""
    printed = 0

    def tell(done: int) -> None:
        nonlocal printed
        if done // _LINE_EVERY > printed:
            printed = done // _LINE_EVERY
            print(f"{deed}: {done:,} trials", file=sys.stderr)

    return tell


@contextmanager
def _progress(deed: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error where that is a terminal; elsewhere a line now and then, if it takes long."""
    if not sys.stderr.isatty():
        yield _lines(deed)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(deed, total=total)
        yield lambda done: display.update(task, completed=done)
