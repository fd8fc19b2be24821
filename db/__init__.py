"""The results database from Python: `connect`, then `best`, `trials`, `trial_details` and `ask`.

    from tunebench import db

    with db.connect("tunebench.db") as database:
        for row in db.best(database, kernel="scalar_mul"):
            print(row.problem, row.device_name, row.configuration, row.over_reference)
        frame = db.to_dataframe(db.trials(database, status=db.TrialStatus.CORRECT, limit=None))

What this module names is stable: a release that changes it says so in the changelog. Everything is imported when it is
first used, so that the modules below can be imported alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunebench.db.connection.connecting import connect
    from tunebench.db.connection.database import Database
    from tunebench.db.queries.data_frames import FLAT_COLUMNS, flat_values, to_dataframe
    from tunebench.db.queries.one_trial import TrialDetails, trial_details
    from tunebench.db.queries.sql import Answer, ask
    from tunebench.db.queries.trials import BestRow, Order, TrialRow, best, trials
    from tunebench.tuner.errors import DatabaseError, DatabaseMissingError, UserError
    from tunebench.tuner.result import CacheRegime, Ratio, TrialStatus

_HOMES = {
    "tunebench.db.connection.connecting": ("connect",),
    "tunebench.db.queries.one_trial": ("TrialDetails", "trial_details"),
    "tunebench.db.queries.data_frames": ("FLAT_COLUMNS", "flat_values", "to_dataframe"),
    "tunebench.db.queries.sql": ("Answer", "ask"),
    "tunebench.db.queries.trials": ("BestRow", "Order", "TrialRow", "best", "trials"),
    "tunebench.db.connection.database": ("Database",),
    "tunebench.tuner.errors": ("DatabaseError", "DatabaseMissingError", "UserError"),
    "tunebench.tuner.result": ("CacheRegime", "Ratio", "TrialStatus"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "FLAT_COLUMNS",
    "Answer",
    "BestRow",
    "CacheRegime",
    "Database",
    "DatabaseError",
    "DatabaseMissingError",
    "Order",
    "Ratio",
    "TrialDetails",
    "TrialRow",
    "TrialStatus",
    "UserError",
    "ask",
    "best",
    "connect",
    "flat_values",
    "to_dataframe",
    "trial_details",
    "trials",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
