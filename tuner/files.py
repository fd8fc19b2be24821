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

_ABANDONED_SECONDS = 60.0
"""How long nothing was written to a file of a process that is not there: it may be on another machine that is."""

_MOST_BYTES = 16 << 20
"""Of a Python file."""


def path_named(text: str | Path) -> Path | None:
    """The file or folder that a user's text names; None where there is none, nor can be under such a name."""
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
    """What is in a Python file.

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


@contextmanager
def whole_file(file: Path, *, replace: bool = True) -> Iterator[BinaryIO]:
    """A stream whose content becomes that of a file when the block ends; where the block fails, nothing has changed.

    It goes to `NAME.PID.partial` beside the file, which is renamed at the end. Of a symbolic link the target is
    written, and the link stays. What processes left that were killed on the way to the same name is removed.

    Raises:
        UserError: the file is there and not to be replaced, is no regular file, or cannot be written.
    """
    try:
        target = file.resolve()
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
            raise UserError(f"cannot write {file}: it is {kind}; name a regular file")
        if mode is not None and not replace:
            raise UserError(f"{file} exists: name another file, or replace it with --force")
        if not target.parent.is_dir():
            raise UserError(f"cannot write {file}: folder {target.parent} does not exist")
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
    """A file to be read that is no symbolic link.

    Raises:
        OSError: it is one, or cannot be read.
    """
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")  # noqa: PTH123 - pathlib follows links


def is_written_by(status: os.stat_result, owners: Collection[int]) -> bool:
    """Whether a file or folder is one of these users', and nobody else can write it."""
    return status.st_uid in owners and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


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
