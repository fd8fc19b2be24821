"""Temporary files that do not outlive their process by long, however it ends.

A process has one folder for all of them, holds a lock on it, and removes it when it ends. The system releases the lock
of a process that was killed, so that the next one sees which folders are nobody's, and removes them.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from tunebench.tuner.disk import full_disk_named

_PREFIX = "tunebench-scratch-"
_UNLOCKED = f".{_PREFIX}"  # the folder's name until its process holds the lock
_LOCK = ".lock"
_YOUNG_SECONDS = 60.0  # a folder this young may still be locked by the process that makes it

_shared: Path | None = None
_own: dict[Path, int] = {}
"""The folders that were made here, with the process that made them."""


def scratch_folder() -> Path:
    """Return the folder of this process, or the one that `share_scratch` named.

    Raises:
        DiskFullError: there is no room for it.
    """
    return _shared or _claimed(tempfile.gettempdir(), os.getpid())


def share_scratch(folder: Path) -> None:
    """Use the folder of another process, which removes it when it ends itself."""
    global _shared  # noqa: PLW0603 - a process has one scratch folder
    _shared = folder


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a new folder for as long as the block runs.

    Raises:
        DiskFullError: the block ran out of room.
    """
    with full_disk_named(Path(tempfile.gettempdir())), tempfile.TemporaryDirectory(dir=scratch_folder()) as name:
        yield Path(name)


@cache
def _claimed(parent: str, process: int) -> Path:
    _remove_abandoned(Path(parent))
    with full_disk_named(Path(parent)):
        made = Path(tempfile.mkdtemp(prefix=_UNLOCKED, dir=parent))
        _own[made] = process
        # The descriptor, and the lock with it, is this process's for as long as it lives.
        fcntl.flock(os.open(made / _LOCK, os.O_CREAT | os.O_RDWR, 0o600), fcntl.LOCK_EX)
        folder = made.rename(made.with_name(made.name.removeprefix(".")))
    _own[folder] = process
    return folder


def remove_own() -> None:
    """Remove this process's folder, which is done when it ends; who ends it without Python's own end calls this."""
    for folder, process in _own.items():
        if process == os.getpid():  # a fork of it has the same duties at exit
            shutil.rmtree(folder, ignore_errors=True)


atexit.register(remove_own)


def _remove_abandoned(parent: Path) -> None:
    """Remove this user's folders whose lock nobody holds."""
    for folder in (*parent.glob(f"{_PREFIX}*"), *parent.glob(f"{_UNLOCKED}*")):
        with suppress(OSError):
            status = folder.lstat()
            is_young = time.time() - status.st_mtime < _YOUNG_SECONDS
            if status.st_uid != os.getuid() or (folder.name.startswith(_UNLOCKED) and is_young):
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
