"""The options that the commands share, and what their text means."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunebench.studies.request.completion import complete_kernel

if TYPE_CHECKING:
    from tunebench.db.connection.database import Database

Given = Mapping[str, Any]
"""Options of a declaration that were given, by their names in it; see `options_of`."""

NOTHING: Given = {}

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="The results database: a file, or a SQLAlchemy URL. Default: $TUNEBENCH_DB, else your own file.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV on standard output, and nothing else there.")]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Show everything, also where it is long.")]
KernelArgument = Annotated[
    str | None,
    typer.Argument(metavar="[KERNEL]", help="Only this kernel. Default: every kernel.", autocompletion=complete_kernel),
]
TargetsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KERNEL]...",
        help="Kernels' names or folders. Default: all shipped kernels, or those of the file of problems.",
        autocompletion=complete_kernel,
    ),
]


def help_without_command(context: typer.Context) -> None:
    """Print the help of a group whose command is missing, on standard error: nothing was done.

    Raises:
        typer.Exit: with 2.
    """
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


def require_database(named: str | None) -> None:
    """Refuse a database that cannot be read, where one was named, before anything takes long.

    Raises:
        DatabaseError: it cannot.
    """
    if named is None:
        return
    from tunebench.db.connection.database import open_database

    open_database(named, read_only=True).close()


def known_kernel(name: str | None, database: Database) -> str | None:
    """A kernel's name, if it ships or has results here.

    Raises:
        UnknownNameError: neither; the message has the nearest names.
    """
    from tunebench.db.queries.trials import kernels_with_results
    from tunebench.kernels.runtime.registry import kernel_names
    from tunebench.tuner.errors import UnknownNameError

    known = {*kernel_names(), *kernels_with_results(database)}
    if name is not None and name not in known:
        raise UnknownNameError("kernel", name, known)
    return name
