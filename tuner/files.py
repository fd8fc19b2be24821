"""Files: whether one that a user names is there, who can have written it, and how one is written whole or not."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tunebench.tuner.errors import KernelFolderError, UserError

_DATABASE = b"SQLite format 3\0"
_BESIDE_DATABASE = ("-wal", "-shm", "-journal", "-claims")
"""The first bytes of a SQLite database, and the endings of files that belong to it: SQLite's, and of claims."""

_ABANDONED_SECONDS = 60.0
"""Seconds without a write after which a missing process's file is abandoned: it may run on another machine."""

_MOST_BYTES = 16 << 20
"""Upper limit of a Python file's size in bytes."""


def path_named(text: str | Path) -> Path | None:
    """Return the file or folder that a user's text names; None where there is none, nor can be under such a name."""
    try:
        path = Path(text)
        return path if path.exists() else None
    except OSError:  # such as a name that is too long
        return None


def require_regular(path: Path) -> None:
    """Refuse what reading would wait for, or never end: a pipe, a device, a socket.

    Raises:
        KernelFolderError: it is one.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise KernelFolderError(f"{path}: a pipe, a device or a socket is no regular file: put one there")


def read_text(path: Path) -> str:
    """Return the text of a Python file.

    Raises:
        KernelFolderError: it cannot be read, is no regular file, or is larger than any Python file is.
    """
    require_regular(path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise KernelFolderError(f"{path}: cannot read it: it is larger than {_MOST_BYTES >> 20} MB")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise KernelFolderError(f"{path}: cannot read it: {error}") from error


def require_writable(file: Path, *, replace: bool = True) -> Path:
    """Refuse a file that cannot be written, before anything is made that goes into it.

    Returns:
        The file itself, where a symbolic link is named.

    Raises:
        UserError: the file is there and not to be replaced, is no regular file, belongs to a database, or cannot be
            written.
    """
    try:
        target = file.resolve()
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
            raise UserError(f"cannot write {file}: it is {kind}; name a regular file")
        if _belongs_to_database(target):
            raise UserError(f"cannot write {file}: it belongs to a database; name another file")
        if mode is not None and not replace:
            raise UserError(f"{file} exists: name another file, or replace it with --force")
        if not target.parent.is_dir():
            raise UserError(f"cannot write {file}: folder {target.parent} does not exist")
        if not os.access(target.parent, os.W_OK):
            raise UserError(f"cannot write {file}: folder {target.parent} cannot be written")
    except (OSError, RuntimeError, ValueError) as error:  # such as a name that is too long, or links in a circle
        raise UserError(f"cannot write {file}: {getattr(error, 'strerror', None) or error}") from error
    return target


def _belongs_to_database(file: Path) -> bool:
    """Return whether a file is a SQLite database, or one that is kept beside such a database."""
    beside = [file.name.removesuffix(end) for end in _BESIDE_DATABASE if file.name.endswith(end)]
    return any(is_database(one) for one in (file, *(file.with_name(name) for name in beside if name)))


def is_database(file: Path) -> bool:
    """Return whether a file is a SQLite database that can be read."""
    if not file.is_file():
        return False
    if is_open_database(file):
        return True
    with contextlib.suppress(OSError), file.open("rb") as stream:
        return stream.read(len(_DATABASE)) == _DATABASE
    return False


def is_open_database(file: Path) -> bool:
    """Return whether this process has a file open that is a SQLite database, which is found out without opening it.

    Closing any descriptor of a file drops every POSIX lock that the process holds on it, SQLite's among them, and
    committed results are lost (https://www.sqlite.org/howtocorrupt.html, 2.2). A file is known by what is open already,
    since looking into it would be the mistake itself.
    """
    if not file.exists():
        return False
    own = file.stat()
    for entry in Path("/dev/fd").iterdir():
        descriptor = int(entry.name)
        try:
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
                return os.pread(descriptor, len(_DATABASE), 0) == _DATABASE
        except OSError:
            # The descriptor is gone again (that of the listing itself), or is of something that has no positions.
            continue
    return False


@contextmanager
def whole_file(file: Path, *, replace: bool = True) -> Iterator[BinaryIO]:
    """Open a stream whose content becomes a file's when the block ends; where the block fails, nothing changes.

    It goes to `NAME.PID.partial` beside the file, which is renamed at the end. Of a symbolic link the target is
    written, and the link stays. What processes left that were killed on the way to the same name is removed.

    Raises:
        UserError: see `require_writable`.
    """
    target = require_writable(file, replace=replace)
    try:
        mode = target.stat().st_mode if target.exists() else None
        remove_abandoned(target.parent, f"{glob.escape(target.name)}.")
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        with partial.open("xb") as stream:
            try:
                yield stream
                stream.flush()
                if mode is not None:
                    shutil.copymode(target, partial)
                partial.replace(target)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}") from error


def open_itself(path: Path) -> BinaryIO:
    """Open a file that is no symbolic link for reading.

    Raises:
        OSError: it is one, or cannot be read.
    """
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")  # noqa: PTH123 - pathlib follows links


def is_written_by(status: os.stat_result, owners: Collection[int]) -> bool:
    """Return whether a file or folder is one of these users', and nobody else can write it."""
    return status.st_uid in owners and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def made_private(folder: Path) -> bool:
    """Return whether nobody but this user can write into a folder, which is made where there is none.

    Raises:
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return is_written_by(folder.stat(), [os.getuid()])


def remove_abandoned(folder: Path, beginning: str = "*.") -> None:
    """Remove a folder's files of names such as `BEGINNING.PID.partial` whose processes were killed.

    Args:
        beginning: a pattern.
    """
    for path in folder.glob(f"{beginning}*.partial"):
        number = path.name.removesuffix(".partial").rpartition(".")[2]
        with contextlib.suppress(OSError):
            quiet = time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
            if number.isdecimal() and quiet and not _is_running(int(number)):
                path.unlink()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
