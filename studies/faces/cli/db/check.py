"""`db check`."""

from __future__ import annotations

import typer

from tunebench.studies.faces.cli.options import DatabaseOption, JsonOption
from tunebench.studies.faces.cli.output import print_json


def check(db: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Look at every row for damage and for what tunebench does not write. Exit code 1 where something is wrong."""
    from tunebench.db.connection.database import open_database
    from tunebench.db.upkeep.check import inspect_database
    from tunebench.studies.display.terminal import print_table

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
        print_table(("sound", "what", "looked at", "problems"), rows)
    if not all(one.sound for one in findings):
        raise typer.Exit(1)
