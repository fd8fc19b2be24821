"""Questions to the results database: `best` and `trials`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tunebench.studies.cli.options import DatabaseOption, JsonOption, output_width, parse_tunables, print_json

KernelOption = Annotated[str | None, typer.Option("--kernel", help="Only this kernel.")]


def best(
    kernel: Annotated[str | None, typer.Argument(help="Only this kernel.")] = None,
    device: Annotated[str | None, typer.Option(help="Only the device of this name.")] = None,
    any_source: Annotated[
        bool, typer.Option("--any-source", help="Also results of other versions of the kernel's source.")
    ] = False,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """The best configuration of each kernel, problem and device. Exit code 1 where there is none."""
    from rich.console import Console

    from tunebench.db.query import best as best_rows
    from tunebench.db.store import open_database
    from tunebench.studies.tables import print_best, row_values

    with open_database(db, read_only=True) as database:
        digests = _current_digests()
        rows = [
            row
            for row in best_rows(database, kernel=_known_kernel(kernel, database), device=device)
            if any_source or digests.get(row.kernel, row.source_digest) == row.source_digest
        ]
    if as_json:
        print_json([row_values(row) for row in rows])
    elif rows:
        print_best(Console(width=output_width()), rows)
    else:
        print("no result that meets these conditions", file=sys.stderr)
    if not rows:
        raise typer.Exit(1)


def trials(
    kernel: KernelOption = None,
    status: Annotated[list[str] | None, typer.Option(help="Only trials that ended so; repeatable.")] = None,
    device: Annotated[str | None, typer.Option(help="Only the device of this name.")] = None,
    study: Annotated[int | None, typer.Option(help="Only this study's trials.")] = None,
    tunable: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only configurations with this value; repeatable.")
    ] = None,
    fastest: Annotated[
        bool, typer.Option("--fastest", help="Correct trials, fastest first; else newest first.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 50,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Trials that meet every condition given. Exit code 1 where there is none."""
    from rich.console import Console

    from tunebench.db.query import Order
    from tunebench.db.query import trials as trial_rows
    from tunebench.db.store import open_database
    from tunebench.studies.tables import print_trials, row_values
    from tunebench.tuner.errors import UnknownNameError
    from tunebench.tuner.result import TrialStatus

    for name in status or []:
        if name not in set(TrialStatus):
            raise UnknownNameError("status", name, list(TrialStatus))
    with open_database(db, read_only=True) as database:
        rows = trial_rows(
            database,
            kernel=_known_kernel(kernel, database),
            status=[TrialStatus(name) for name in status] if status else None,
            device=device,
            study_id=study,
            tunables={name: values[0] for name, values in parse_tunables(tunable or []).items()},
            order=Order.FASTEST if fastest else Order.NEWEST,
            limit=limit,
        )
    if as_json:
        print_json([row_values(row) for row in rows])
    elif rows:
        print_trials(Console(width=output_width()), rows)
    else:
        print("no trial meets these conditions", file=sys.stderr)
    if not rows:
        raise typer.Exit(1)


def _known_kernel(name: str | None, database: Any) -> str | None:
    """A kernel's name, if it ships or has results here.

    Raises:
        UnknownNameError: neither; the message has the nearest names.
    """
    from tunebench.db.query import kernels_with_results
    from tunebench.kernels.registry import kernel_names
    from tunebench.tuner.errors import UnknownNameError

    known = {*kernel_names(), *kernels_with_results(database)}
    if name is not None and name not in known:
        raise UnknownNameError("kernel", name, known)
    return name


def _current_digests() -> dict[str, str]:
    """The source digests of the shipped kernels as they are now."""
    from tunebench.kernels.registry import kernel_names, load_model

    return {name: load_model(name).kernel.digest for name in kernel_names()}
