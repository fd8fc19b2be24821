"""Where the results database is when nobody names one. Imports nothing heavy: every look-up of a kernel asks."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_dir

from tunebench.tuner.errors import DatabaseMissingError

LOCATION_VARIABLE = "TUNEBENCH_DB"


def default_location() -> str | Path:
    """The path or URL in the environment variable TUNEBENCH_DB, or else a file in the user's data folder."""
    return os.environ.get(LOCATION_VARIABLE) or default_file()


def default_file() -> Path:
    """The database in the user's data folder."""
    return Path(user_data_dir("tunebench"), "tunebench.db")


def require_default() -> None:
    """Find out whether there is a database at the default location, as far as that can be told without opening it.

    Raises:
        DatabaseMissingError: it is a file, and there is none.
    """
    location = default_location()
    if isinstance(location, Path) or "://" not in location:
        file = Path(location).expanduser().absolute()
        if not os.path.lexists(file):
            raise missing(str(file))


def missing(where: str) -> DatabaseMissingError:
    """The message about a place without a results database."""
    return DatabaseMissingError(f"there is no results database at {where}: run a study first, or say where with --db")
