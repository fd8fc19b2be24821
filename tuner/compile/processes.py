"""Compilers that are processes: each has a deadline, and none outlives this process."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from tunebench.tuner.compile.base import KILLED
from tunebench.tuner.disk import require_room
from tunebench.tuner.errors import CompileError, CompilerKilledError, CompilerMissingError, CompileTimeoutError

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
"""Signals that a compiler does not cause itself."""

_running: set[subprocess.Popen[bytes]] = set()
_changing = threading.Lock()
_ends = False


def run_compiler(command: Sequence[str], folder: Path, seconds: float, compiler: str, file: str) -> tuple[bool, str]:
    """Return whether a compiler has compiled, and its log.

    Args:
        folder: where it runs, and keeps its temporary files.
        seconds: when it is killed, with all that it started.
        compiler, file: what compiles what, for people.

    Raises:
        CompileTimeoutError: it was still compiling.
        CompilerKilledError: it, or what it started, was killed from outside.
        CompileError: it crashed.
        CompilerMissingError: it cannot be started.
        DiskFullError: it failed where there is no room for its files.
    """
    try:
        status, log = _run(command, folder, seconds)
    except OSError as error:
        raise CompilerMissingError(f"no process to compile in can be started: {error}") from error
    if status is None:
        raise CompileTimeoutError(f"{compiler} was still compiling {file} after {seconds:.0f} s: killed", log)
    if status:
        require_room(folder)
        if -status in _FROM_OUTSIDE or KILLED.search(log):
            raise CompilerKilledError(f"{compiler} was killed while it compiled {file}: is there enough memory?", log)
        if status < 0:
            raise CompileError(f"{compiler} crashed on {file}: {signal.Signals(-status).name}", log)
    return status == 0, log


def _run(command: Sequence[str], folder: Path, seconds: float) -> tuple[int | None, str]:
    """Return the exit code, or minus the ending signal, or None where it was killed for its time; and the output."""
    with (folder / "log").open("w+b") as log:
        with _changing:
            if _ends:
                return -signal.SIGKILL, ""
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
            _running.add(process)
        status: int | None
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with _changing:
                _running.discard(process)
                _kill(process)
            process.wait()
        log.seek(0)
        return status, log.read().decode(errors="replace")


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
    """Forget the running processes after a fork: they are the parent's."""
    global _changing  # noqa: PLW0603 - a thread of the parent may hold it
    _changing = threading.Lock()
    _running.clear()


atexit.register(_end)
os.register_at_fork(after_in_child=_begin_in_fork)
