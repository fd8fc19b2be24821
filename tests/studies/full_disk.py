"""A study on a disk that fills up, in a process that has a small file system of its own: `full_disk.py DISK KERNEL`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from tunebench.db.connection.database import open_database
from tunebench.db.queries.trials import trials
from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import request_of
from tunebench.studies.tuning.tune import tune
from tunebench.tuner.errors import TunebenchError


def attempt(folder: str, database_file: Path, count: int) -> str:
    """The error that a run ended with; empty where there was none."""
    request = request_of(folder, {"device": "cpu", "sampler": "exhaustive", "trials": count})
    try:
        with open_database(database_file) as database:
            tune(resolve(request), database)
    except TunebenchError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def recorded(database_file: Path) -> list[str]:
    """Each trial's status, by number."""
    with open_database(database_file, read_only=True) as database:
        rows = sorted(trials(database, limit=None), key=lambda row: row.number)
    return [row.status.value for row in rows]


def fill_up(disk: Path) -> Path:
    """Take all the room that is left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 512)
        except OSError:
            return filler


def main() -> None:
    """Record, fill the disk up, try to record, make room, go on; then the same with the compiler's disk."""
    disk, folder = Path(sys.argv[1]), sys.argv[2]
    found: dict[str, object] = {"at first": attempt(folder, disk / "a.db", 2)}
    filler = fill_up(disk)
    found["on a full disk"] = attempt(folder, disk / "a.db", 33)
    filler.unlink()
    found["kept"] = recorded(disk / "a.db")
    found["with room again"] = attempt(folder, disk / "a.db", 6)
    found["in the end"] = recorded(disk / "a.db")

    elsewhere = Path(sys.argv[3])
    filler = fill_up(disk)
    tempfile.tempdir = str(disk)
    os.environ["TUNEBENCH_CACHE"] = f"{elsewhere}.builds"  # nothing has been compiled yet
    found["compiling on a full disk"] = attempt(folder, elsewhere, 3)
    found["compiled"] = recorded(elsewhere)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
