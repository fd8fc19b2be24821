"""`db stats`."""

from __future__ import annotations

from tunebench.studies.faces.cli.options import DatabaseOption, JsonOption
from tunebench.studies.faces.cli.output import print_json


def stats(db: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """How much is in the database: rows of each table, trials by kernel, device and status, bytes."""
    from dataclasses import asdict

    from tunebench.db.connection.database import open_database
    from tunebench.db.upkeep.check import statistics
    from tunebench.studies.display.terminal import print_table

    with open_database(db, read_only=True) as database:
        found, name = statistics(database), database.name
    if as_json:
        print_json({"database": name, **asdict(found)})
        return
    size = f"{found.bytes / 1e6:,.1f} MB"
    rows = [(table, f"{count:,}") for table, count in found.rows.items()]
    print_table(("table", "rows"), rows, f"{name}, revision {found.revision}, {size}")
    by_status = [(one.kernel, one.device, one.status, f"{one.trials:,}") for one in found.trials]
    print_table(("kernel", "device", "status", "trials"), by_status)
