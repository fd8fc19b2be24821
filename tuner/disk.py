"""Test whether a disk is full, which is nobody's mistake, unlike other failures of a file."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunebench.tuner.errors import DiskFullError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_LEAST_BYTES = 1 << 20


def require_room(folder: Path) -> None:
    """Refuse to go on where a disk is full: a compiler that ran out of room says so only in its log.

    Raises:
        DiskFullError: less than a megabyte is left.
    """
    if not has_room(folder):
        raise _full(folder)


def has_room(folder: Path) -> bool:
    """Return whether a megabyte is left on the disk of a folder; true where that is unknown."""
    try:
        return shutil.disk_usage(folder).free >= _LEAST_BYTES
    except OSError:
        return True


@contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Turn an OSError of a full disk into a `DiskFullError`.

    Args:
        folder: what is written to, for the message.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _full(folder) from error
        raise


def _full(folder: Path) -> DiskFullError:
    return DiskFullError(f"the disk that {folder} is on is full: make room, and run the same command again")
