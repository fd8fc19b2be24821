"""`tunebench.sweep`: many studies as one queue, from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from tunebench.db.connection.database import Database
from tunebench.studies.api import opened
from tunebench.studies.request.keywords import SweepOptions
from tunebench.studies.request.options import given, taking
from tunebench.studies.study_file import SweepRequest
from tunebench.studies.sweep.display import SweepDisplay
from tunebench.studies.sweep.run import SweepReport, run_sweep


@taking(SweepRequest)
def sweep(
    files: str | Path | Sequence[str | Path],
    *,
    ship: bool = False,
    progress: bool = False,
    db: Database | str | Path | None = None,
    **options: Unpack[SweepOptions],
) -> SweepReport:
    """Tune many problems as one queue over all devices, or go on with that; everything is recorded.

    A study that has its final comparison is not run again. One that fails is passed over: its result says why.

    Args:
        files: study files (.toml), of one study or many; the other arguments override their keys.
        ship: at the end write the winners beside their kernels, with the range of sizes of each.
        progress: show what is done on standard error.
        db: an open database, or where it is; see `connect`. It is created where there is none.

    Raises:
        UserError: something is unknown, not legal or not on this machine; nothing has run then.
        DatabaseError: the database cannot be read or written.
    """
    from rich.console import Console

    said = given(SweepRequest, options)
    paths = [Path(one) for one in ([files] if isinstance(files, str | Path) else files)]
    with opened(db, read_only=False) as database:
        if not progress:
            return run_sweep(paths, said, database, ships=ship)
        with SweepDisplay(Console(stderr=True)) as display:
            return run_sweep(paths, said, database, display, ships=ship)
