"""The one way to run a program: it has a deadline, ends with all that it has started, and never outlives this process.

A function is run in a process of its own by `tuner/isolation.py`.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
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
    with _memory() as reads, _memory() as prints, _memory() as complains:
        reads.write(given)
        reads.seek(0)
        with _changing:
            if _ends:
                return Ended(-signal.SIGKILL, b"", b"")
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdin=reads,
                stdout=prints,
                stderr=prints if together else complains,
                process_group=0,
            )
            _running.add(process)
        code: int | None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with _changing:
                _running.discard(process)
                _kill(process)
            process.wait()
        prints.seek(0)
        complains.seek(0)
        return Ended(code, prints.read(), complains.read())


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


def _memory() -> FileIO:
    return FileIO(os.memfd_create("command"), "w+")


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
