"""Location of the results database when none is named. Imports nothing heavy: every look-up of a kernel comes here."""

from __future__ import annotations

import os
import re
from pathlib import Path

from platformdirs import user_data_dir

from tunebench.tuner.errors import DatabaseError, DatabaseMissingError, first_line

LOCATION_VARIABLE = "TUNEBENCH_DB"

_SECRETS = (
    re.compile(r"(://[^:/@\s]*:)[^@\s]*(?=@)"),
    re.compile(r"([?&][^=&?\s]*(?:%|pass(?!file)|secret|token|credential|scram)[^=&?\s]*=)[^&\s'\"]*", re.IGNORECASE),
)
"""The password in a URL's user information; the value of a parameter that is secret by its name, or has it escaped."""


def without_secrets(text: str) -> str:
    """Return a text for people to read, with `***` in place of each secret in its URLs."""
    for secret in _SECRETS:
        text = secret.sub(r"\1***", text)
    return text


def default_location() -> str | Path:
    """Return the path or URL in the environment variable TUNEBENCH_DB, or else a file in the user's data folder."""
    return os.environ.get(LOCATION_VARIABLE) or default_file()


def default_file() -> Path:
    """Return the database in the user's data folder."""
    return file_at(Path(user_data_dir("tunebench"), "tunebench.db"))


def file_at(path: str | Path) -> Path:
    """Return the file that a path means, without symbolic links: SQLite keeps its other files beside their target.

    Raises:
        DatabaseError: it means none, as `~nosuchuser/x.db` and links in a circle.
    """
    try:
        found = Path(path).expanduser().resolve()
        if found.is_symlink():  # what Python 3.13 makes of links in a circle, where older ones raise
            raise OSError("links in a circle")
    except (OSError, RuntimeError, ValueError) as error:
        raise DatabaseError(f"'{path}' is not the path of a file: {first_line(error)}") from error
    return found


def file_named(url_or_path: str | Path | None) -> Path | None:
    """Return the SQLite file that a path or the default location means; None for a URL.

    Raises:
        DatabaseError: what SQLite itself would read as something other than a file.
    """
    location = default_location() if url_or_path is None else url_or_path
    if not isinstance(location, Path):
        if "://" in location:
            return None
        if location == ":memory:" or location.startswith("file:"):
            # As a path it would make a file of that very name.
            raise DatabaseError(f"'{location}' is not the path of a file: give a path, such as results.db")
    return file_at(location)


def file_uri(file: Path, *, read_only: bool) -> str:
    """Return the URI under which SQLite opens a file."""
    mode = "mode=ro" if read_only else "mode=rwc"
    if read_only and not os.access(file.parent, os.W_OK) and not Path(f"{file}-wal").exists():
        # On a read-only medium SQLite cannot create the shared memory that reading in WAL mode needs.
        mode += "&immutable=1"
    return f"{file.as_uri()}?{mode}"


def missing(where: str) -> DatabaseMissingError:
    """Return the error about a place without a results database."""
    return DatabaseMissingError(f"there is no results database at {where}: run a study first, or say where with --db")
