"""`tunebench.sweep`: many studies as one queue, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tunebench.db.connection.database import Database
from tunebench.studies.api import opened
from tunebench.studies.sweep.display import SweepDisplay
from tunebench.studies.sweep.run import SweepReport, run_sweep
from tunebench.tuner.empty import refusing_empty


@refusing_empty
def sweep(
    files: str | Path | Sequence[str | Path],
    *,
    ship: bool = False,
    trials: int | None = None,
    seconds: float | None = None,
    settings: Mapping[str, str] | None = None,
    device: str | None = None,
    devices: Sequence[str] | None = None,
    workers: int | None = None,
    executor: str | None = None,
    address: str | None = None,
    progress: bool = False,
    db: Database | str | Path | None = None,
) -> SweepReport:
    """Tune many problems as one queue over all devices, or go on with that; everything is recorded.

    A study that has its final comparison is not run again. One that fails is passed over: its result says why.

    Args:
        files: study files (.toml), of one study or many; the other arguments override their keys.
        ship: at the end write the winners beside their kernels, with the range of sizes of each.
        trials: of each study, in all; 100 unless given.
        seconds: limit of each study.
        settings: as in `tune`.
        device, devices, workers, executor, address: as in `tune`; each study has one of the devices, or several where
            there are more of them than studies.
        progress: show what is done on standard error.
        db: an open database, or where it is; see `connect`. It is created where there is none.

    Raises:
        UserError: something is unknown, not legal or not on this machine; nothing has run then.
        DatabaseError: the database cannot be read or written.
    """
    from rich.console import Console

    options = {
        "trials": trials,
        "seconds": seconds,
        "settings": settings,
        "device": device,
        "devices": devices,
        "workers": workers,
        "executor": executor,
        "address": address,
    }
    given = {key: value for key, value in options.items() if value is not None}
    paths = [Path(one) for one in ([files] if isinstance(files, str | Path) else files)]
    with opened(db, read_only=False) as database:
        if not progress:
            return run_sweep(paths, given, database, ships=ship)
        with SweepDisplay(Console(stderr=True)) as display:
            return run_sweep(paths, given, database, display, ships=ship)
