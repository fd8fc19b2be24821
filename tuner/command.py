"""The one way to run a program: it has a deadline, ends with all that it has started, and never outlives this process.

A function is run in a process of its own by `tuner/isolation.py`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from tunebench.tuner.errors import UserError

_running: set[subprocess.Popen[bytes]] = set()
_changing = threading.Lock()
_ends = False


@dataclass(frozen=True)
class Ended:
    """How a program has ended.

    Attributes:
        code: its exit code, or minus the signal that ended it; None where it was killed at its deadline.
        printed, errors: what it wrote to standard output and to standard error.
    """

    code: int | None
    printed: bytes
    errors: bytes

    @property
    def log(self) -> str:
        """All that it wrote."""
        return (self.printed + self.errors).decode(errors="replace")


class _EndingError(Exception):
    """This process ends, and begins nothing more."""


class GitError(UserError):
    """git refused; the message is the last line that it printed."""


def run_command(
    command: Sequence[str],
    seconds: float | None = None,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    given: bytes = b"",
    together: bool = False,
) -> Ended:
    """Run a program in a process group of its own, which Ctrl-C does not reach; killed at its deadline, if it has one.

    Args:
        folder: where it runs; None for the working folder.
        environment: variables beside those of this process.
        given: what it reads from standard input.
        together: what it writes is one text, in its order, as `printed`.

    Raises:
        OSError: it cannot be started.
    """
    # Files, not pipes: what the program leaves behind may hold those open.
    with memory_file(given) as reads, memory_file() as prints, memory_file() as complains:
        errors = prints if together else complains
        code: int | None
        try:
            with running(command, folder, environment, stdin=reads, stdout=prints, stderr=errors) as process:
                code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        except _EndingError:
            code = -signal.SIGKILL
        prints.seek(0)
        complains.seek(0)
        return Ended(code, prints.read(), complains.read())


@contextmanager
def running(
    command: Sequence[str], folder: Path | None, environment: Mapping[str, str] | None, **streams: FileIO | int
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program while the block runs; what of it still runs at the end is killed. See `run_command`.

    Args:
        streams: as of `subprocess.Popen`.
    """
    variables = {**os.environ, **(environment or {})}
    with _changing:
        if _ends:
            raise _EndingError
        process = subprocess.Popen(command, cwd=folder, env=variables, process_group=0, **streams)  # type: ignore[call-overload]
        _running.add(process)
    try:
        yield process
    finally:
        with _changing:
            _running.discard(process)
            _kill(process)
        process.wait()


def find_cuda_program(name: str) -> str | None:
    """Return a program on the path or beside the CUDA toolkit; None where there is none."""
    return shutil.which(name) or shutil.which(f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin/{name}")


def git(folder: Path, *arguments: str, seconds: float | None = None) -> str:
    """Run git in a folder and return what it prints, without the last line's end.

    Raises:
        GitError: git refused, or took longer.
        FileNotFoundError: git is not installed.
    """
    ended = run_command(["git", "--no-optional-locks", "-C", str(folder), *arguments], seconds)
    if ended.code:
        lines = ended.errors.decode(errors="surrogateescape").strip().splitlines()
        raise GitError((lines or ["git says no"])[-1])
    if ended.code is None:
        raise GitError(f"git took longer than {seconds} s")
    return ended.printed.decode(errors="surrogateescape").removesuffix("\n")


def memory_file(content: bytes = b"") -> FileIO:
    """Return a file without a name that has this content, at its beginning."""
    file = FileIO(os.memfd_create("command"), "w+")
    file.write(content)
    file.seek(0)
    return file


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _end() -> None:
    """Kill what still runs: its threads end with this process, which waits for none of them."""
    global _ends  # noqa: PLW0603 - a process ends once
    with _changing:
        _ends = True
        for process in _running:
            _kill(process)


def _begin_in_fork() -> None:
    """Forget the running programs after a fork: they are the parent's."""
    global _changing  # noqa: PLW0603 - a thread of the parent may hold it
    _changing = threading.Lock()
    _running.clear()


atexit.register(_end)
os.register_at_fork(after_in_child=_begin_in_fork)
