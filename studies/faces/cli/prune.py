"""`prune`."""

from __future__ import annotations

from typing import Annotated

import typer

from tunebench.studies.display.terminal import print_line
from tunebench.studies.faces.cli.options import DatabaseOption, JsonOption, KernelArgument, known_kernel
from tunebench.studies.faces.cli.output import print_json


def prune(
    kernel: KernelArgument = None,
    source: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="Only trials of the source whose digest begins so.")
    ] = None,
    before: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only trials recorded before then: ISO 8601, or UTC.")
    ] = None,
    winners: Annotated[
        bool, typer.Option("--winners", help="Also the best trials and those that won a comparison; else they stay.")
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Only say how many would go.")] = True,
    backup: Annotated[bool, typer.Option(help="First copy a SQLite file beside itself.")] = True,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove trials for good, with their builds, verdicts and samples; without --no-dry-run only say how many.

    Everything else is only ever added to a database. Trials that are the best, or have won a comparison, stay.
    """
    from dataclasses import asdict

    from tunebench.db.connection.database import open_database
    from tunebench.db.upkeep.prune import Pruning
    from tunebench.db.upkeep.prune import prune as remove
    from tunebench.studies.request.text import read_moment

    pruning = Pruning(kernel, source, None if before is None else read_moment("--before", before), winners)
    with open_database(db, read_only=True) as database:
        known_kernel(kernel, database)
    with open_database(db, read_only=dry_run) as database:
        done, name = remove(database, pruning, dry_run=dry_run, backup=backup), database.name
    if as_json:
        print_json({**asdict(done), "backup": done.backup and str(done.backup), "dry_run": dry_run})
        return
    deed = "would remove" if dry_run else "removed"
    kept = f"; {done.winners_kept:,} winners stay" if done.winners_kept else ""
    hint = "; --no-dry-run does it" if dry_run and done.trials else ""
    print_line(f"{name}: {deed} {done.trials:,} trials, and {done.studies:,} studies with nothing left{kept}{hint}")
    if done.backup is not None:
        print_line(f"as it was: {done.backup}")
