"""The results database as a thing: upgrading, checking and measuring it."""

from __future__ import annotations

from typing import Annotated

import typer

from tunebench.studies.cli.options import (
    DatabaseOption,
    JsonOption,
    known_kernel,
    output_width,
    parse_moment,
    print_json,
)

database_app = typer.Typer(
    name="db",
    help="The results database itself: upgrade it, check it, count what is in it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@database_app.command()
def upgrade(db: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Bring the database to this tunebench's revision; a file is first copied beside itself.

    Opening it for writing, as `tune` does, does the same. Where there is no database, an empty one is made.
    """
    from tunebench.db.connection.database import upgrade_database
    from tunebench.db.connection.engine import locate, name_of

    done = upgrade_database(db)
    if as_json:
        backup = str(done.backup) if done.backup else None
        print_json({"before": done.before, "after": done.after, "backup": backup})
        return
    where = name_of(locate(db))
    if done.before == done.after:
        print(f"{where} has revision {done.after} already")
    elif done.before is None:
        print(f"{where} created with revision {done.after}")
    else:
        copy = f", a copy of it as it was is {done.backup}" if done.backup else ""
        print(f"{where} upgraded from revision {done.before} to {done.after}{copy}")


@database_app.command()
def check(db: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Look at every row for damage and for what tunebench does not write. Exit code 1 where something is wrong."""
    from rich.console import Console

    from tunebench.db.connection.database import open_database
    from tunebench.db.upkeep.check import inspect_database
    from tunebench.studies.tables import print_table

    with open_database(db, read_only=True) as database:
        findings = inspect_database(database)
    if as_json:
        print_json(
            [
                {"subject": one.subject, "sound": one.sound, "looked_at": one.looked_at, "problems": list(one.problems)}
                for one in findings
            ]
        )
    else:
        rows = [
            ("yes" if one.sound else "NO", one.subject, f"{one.looked_at:,}", "\n".join(one.problems))
            for one in findings
        ]
        print_table(Console(width=output_width()), ("sound", "what", "looked at", "problems"), rows)
    if not all(one.sound for one in findings):
        raise typer.Exit(1)


@database_app.command()
def stats(db: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """How much is in the database: rows of each table, trials by kernel, device and status, bytes."""
    from dataclasses import asdict

    from rich.console import Console

    from tunebench.db.connection.database import open_database
    from tunebench.db.upkeep.check import statistics
    from tunebench.studies.tables import print_table

    with open_database(db, read_only=True) as database:
        found, name = statistics(database), database.name
    if as_json:
        print_json({"database": name, **asdict(found)})
        return
    console = Console(width=output_width())
    size = f"{found.bytes / 1e6:,.1f} MB"
    rows = [(table, f"{count:,}") for table, count in found.rows.items()]
    print_table(console, ("table", "rows"), rows, f"{name}, revision {found.revision}, {size}")
    by_status = [(one.kernel, one.device, one.status, f"{one.trials:,}") for one in found.trials]
    print_table(console, ("kernel", "device", "status", "trials"), by_status)


def prune(
    kernel: Annotated[str | None, typer.Option("--kernel", help="Only trials of this kernel.")] = None,
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

    wanted = Pruning(kernel, source, parse_moment("--before", before), winners)
    with open_database(db, read_only=True) as database:
        known_kernel(kernel, database)
    with open_database(db, read_only=dry_run) as database:
        done, name = remove(database, wanted, dry_run=dry_run, backup=backup), database.name
    if as_json:
        print_json({**asdict(done), "backup": done.backup and str(done.backup), "dry_run": dry_run})
        return
    deed = "would remove" if dry_run else "removed"
    kept = f"; {done.winners_kept:,} winners stay" if done.winners_kept else ""
    hint = "; --no-dry-run does it" if dry_run and done.trials else ""
    print(f"{name}: {deed} {done.trials:,} trials, and {done.studies:,} studies with nothing left{kept}{hint}")
    if done.backup is not None:
        print(f"as it was: {done.backup}")
