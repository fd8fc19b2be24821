"""One process works on a device at a time, so that nobody's times are taken in company.

The lock is the operating system's, on a file: it ends with its holder, however that ends, and holds between containers
that share the file's folder.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.errors import UserError

_LONGEST_HOLDER = 200
"""Characters of what the holder says of itself, which anyone may have written."""


def locks_folder() -> Path:
    """Return `$TUNEBENCH_LOCKS` where it is set, else a folder that all users of this machine share."""
    chosen = os.environ.get("TUNEBENCH_LOCKS")
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / "tunebench-locks"


def say_on_stderr(text: str) -> None:
    """Say a line to whoever watches the program."""
    print(f"tunebench: {text}", file=sys.stderr, flush=True)


class DeviceLock:
    """The right to work on a device alone.

    Args:
        name: of the device, the same to all that share it, such as the UUID of a GPU.
        purpose: what it is taken for, for those who wait.
    """

    def __init__(self, name: str, purpose: str) -> None:
        self._name = name
        self._purpose = purpose
        self._file: int | None = None

    def take(self, say: Callable[[str], None], *, shared: bool = False) -> None:
        """Take it, as soon as whoever has it lets go.

        Args:
            say: called with a line on whom it waits for, where it has to wait.
            shared: nothing is timed under it, so that others may work there that time nothing either.

        Raises:
            UserError: there is no file to lock.
        """
        assert self._file is None, "it is taken already"
        path, kind = locks_folder() / f"{self._name}.lock", fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            self._file = _opened(path)
            try:
                fcntl.flock(self._file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for {self._name}: {_holder(self._file)} works on it")
                fcntl.flock(self._file, kind)
            os.truncate(self._file, 0)
            told = f"process {os.getpid()} on {socket.gethostname()}, {self._purpose}"
            os.pwrite(self._file, told.encode(), 0)
        except OSError as error:
            self.release()
            raise UserError(
                f"cannot lock the device in {path}: {error.strerror}; set TUNEBENCH_LOCKS to a folder that all who "
                "share it can write"
            ) from error

    def release(self) -> None:
        """Let go of it, where it is held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


@contextmanager
def alone_on(device: Device, purpose: str, *, shared: bool = False) -> Iterator[None]:
    """Work on a GPU alone for as long as the block runs; a CPU is shared.

    Args:
        shared: see `DeviceLock.take`.

    Raises:
        UserError: there is no file to lock.
    """
    if device.kind is not DeviceKind.CUDA:
        yield
        return
    lock = DeviceLock(device.uuid, purpose)
    lock.take(say_on_stderr, shared=shared)
    try:
        yield
    finally:
        lock.release()


def _opened(path: Path) -> int:
    """Open the file of a lock; its first user makes it for all."""
    folder = path.parent
    if not folder.exists():
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            folder.chmod(0o1777)  # whatever the user's mask says: others wait here too
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    # Not with O_CREAT where it is there: in such a folder Linux refuses that for another user's file.
    with suppress(FileNotFoundError):
        return os.open(path, flags)
    try:
        file = os.open(path, flags | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(file, 0o666)
    return file


def _holder(file: int) -> str:
    told = os.pread(file, _LONGEST_HOLDER, 0).decode(errors="replace")
    return "".join(one for one in told if one.isprintable()) or "another process"
