"""`db upgrade`."""

from __future__ import annotations

from tunebench.studies.display.terminal import print_line
from tunebench.studies.faces.cli.options import DatabaseOption, JsonOption
from tunebench.studies.faces.cli.output import print_json


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
        print_line(f"{where} has revision {done.after} already")
    elif done.before is None:
        print_line(f"{where} created with revision {done.after}")
    else:
        copy = f", a copy of it as it was is {done.backup}" if done.backup else ""
        print_line(f"{where} upgraded from revision {done.before} to {done.after}{copy}")
