"""Counting, where the user opted in, the calls of problems that are served without evidence.

A call adds one to a number in memory. A thread of its own writes the numbers to the results database once a minute,
and at the end of the process there are ten seconds for it. A database that is locked, read-only or of another revision
loses counts, and costs calls nothing.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module

from tunebench.kernels.runtime.latest import Latest
from tunebench.kernels.runtime.selection import Choice
from tunebench.tuner.device import Device
from tunebench.tuner.errors import DatabaseError, DatabaseMissingError
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem

VARIABLE = "TUNEBENCH_MISSES"

_WRITE_SECONDS = 60.0
_LAST_SECONDS = 10.0
_MOST_PROBLEMS = 16384


@dataclass(slots=True, eq=False)
class Miss:
    """A problem that is served without evidence in this process.

    Attributes:
        calls: so far.
        written: of these, those that are in the database.
        served: by what, and why: of a duel its scores.
    """

    kernel: Kernel
    problem: Problem
    device: Device
    calls: int = 0
    written: int = 0
    served: str = ""


_enabled = os.environ.get(VARIABLE, "") not in ("", "0")
_misses: Latest[tuple[str, Problem, str], Miss] = Latest(_MOST_PROBLEMS)
_changing = threading.Lock()
_writing = threading.Lock()
_ending = threading.Event()
_thread: threading.Thread | None = None


def record_misses(enabled: bool = True) -> None:
    """Count from now on the calls of problems that are served without evidence, in the results database.

    `tunebench misses` lists them, `tunebench tune --from-misses` tunes what is used most. The environment variable
    TUNEBENCH_MISSES=1 does the same from the start. Turn it on before the models' first calls: what they have met
    before is not counted.
    """
    global _enabled  # noqa: PLW0603 - it is the program's setting
    _enabled = enabled


def miss_of(kernel: Kernel, problem: Problem, device: Device, choice: Choice) -> Miss | None:
    """Return the counter of the calls that a choice serves; None where there is evidence for it, or counting is off."""
    if not _enabled or choice.measured or choice.trusted or choice.being_built:
        return None
    with _changing:
        _start()
        key = (kernel.digest, problem, device.name)
        if key not in _misses:
            _misses[key] = Miss(kernel, problem, device)
        miss = _misses[key]
        miss.served = f"{choice.tier}: {choice.reason}"
        return miss


def write_misses() -> bool:
    """Write what was counted since the last time to the results database; whether that went well."""
    with _writing:
        with _changing:
            counted = [(miss, miss.calls) for miss in _misses.values() if miss.calls > miss.written]
        if not counted:
            return True
        if not _write((miss, calls - miss.written) for miss, calls in counted):
            return False
        for miss, calls in counted:
            miss.written = calls
        return True


def _write(counted: Iterable[tuple[Miss, int]]) -> bool:
    from tunebench.db.connection.database import open_database
    from tunebench.db.queries.misses import add_misses
    from tunebench.db.queries.rows import Missed

    missed = [
        Missed(
            kernel=miss.kernel.name,
            source_digest=miss.kernel.digest,
            path=str(miss.kernel.place),
            problem=miss.problem,
            device_name=miss.device.name,
            architecture=miss.device.architecture,
            calls=calls,
            served=miss.served,
        )
        for miss, calls in counted
    ]
    try:
        # A program that counts is no occasion to upgrade a database; where there is none it makes one.
        with suppress(DatabaseMissingError):
            open_database(read_only=True).close()
        with open_database() as database:
            add_misses(database, missed)
    except DatabaseError:
        return False
    return True


def _start() -> None:
    """Have a thread write from time to time, and at the end; in a forked process as well, which counts from zero."""
    global _thread  # noqa: PLW0603 - there is one for the process
    if _thread is None:
        _thread = threading.Thread(target=_write_regularly, name="tunebench-misses", daemon=True)
        _thread.start()
        atexit.register(_write_at_exit)


def _write_regularly() -> None:
    import_module("tunebench.db.queries.misses")  # at the end of the process it may be too late for that
    while not _ending.wait(_WRITE_SECONDS):
        write_misses()
    write_misses()


def _write_at_exit() -> None:
    _ending.set()
    if _thread is not None:
        _thread.join(_LAST_SECONDS)


def _forget() -> None:
    """Forget all counts in a forked process, which has no such thread: the parent writes what is counted so far."""
    global _thread, _changing, _writing
    _thread, _changing, _writing = None, threading.Lock(), threading.Lock()
    for miss in _misses.values():
        miss.calls = miss.written = 0


os.register_at_fork(after_in_child=_forget)
