"""A process that nobody vouches for, and the supervisor that stands between it and the judge.

The supervisor runs nothing of a file's, outlives whatever the file starts, and ends all of it when the file's process
ends or the judge is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import select
import signal
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from tunebench.tuner.isolation import how_it_ended, start_process

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FIRST = 3  # descriptor after the standard streams
_REAP_SECONDS = 5.0
_STOPPED_SECONDS = 0.5

Run = Callable[[Connection], NoReturn]
"""The function that the process runs; it gets its end of the connection."""


class Supervised:
    """The judge's side of such a process.

    Args:
        run: travels to the process by pickle.

    Attributes:
        connection: to the process.
    """

    def __init__(self, run: Run) -> None:
        self._process, self.connection = start_process(_supervise, run)

    def wait(self, seconds: float) -> int | None:
        """Its exit code, negative for a signal; None where it is still running after so many seconds."""
        self._process.join(seconds)
        return self._process.exitcode

    def how_it_ended(self) -> str:
        """Its end, in one line."""
        return how_it_ended(self._process)

    def close(self) -> None:
        """End the process and everything that it has started: its supervisor sees that nobody listens."""
        self.connection.close()
        deadline = time.monotonic() + _REAP_SECONDS
        while self._process.is_alive() and time.monotonic() < deadline:
            self._go_on()
            self._process.join(_STOPPED_SECONDS)
        if self._process.is_alive():
            self._process.kill()  # its child goes along
            self._process.join()
        self._process.close()

    def _go_on(self) -> None:
        """A file may have stopped its supervisor."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid or 0, signal.SIGCONT)


def _supervise(connection: Connection, run: Run) -> NoReturn:
    """Do it in a child, and end with it or with the judge, whoever goes first, and everything below with both."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what the file starts and leaves behind comes here
    # A file may stop its supervisor. The fork server ends with the judge, if nobody else keeps it, and wakes this one.
    os.close(vars(forkserver._forkserver)["_forkserver_alive_fd"])
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    judge = multiprocessing.parent_process()
    assert judge is not None
    own = os.getpid()
    child = os.fork()
    if child == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != own:
            os._exit(1)
        os.setsid()
        _close_all_but(connection.fileno())
        _forget_server()
        run(connection)
    ends = select.poll()
    ends.register(os.pidfd_open(child), select.POLLIN)
    ends.register(judge.sentinel, select.POLLIN)
    ends.register(connection.fileno(), 0)  # the judge hangs up
    ends.poll()
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    _end_everything()
    _end_as(os.waitstatus_to_exitcode(status))


def _close_all_but(kept: int) -> None:
    """Close what belongs to the processes that this one was forked from; not the standard streams."""
    os.closerange(_FIRST, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _forget_server() -> None:
    """A file that asks for processes gets a server of its own, which ends with it."""
    vars(forkserver._forkserver).update(vars(forkserver.ForkServer()))


def _end_as(code: int) -> NoReturn:
    """End as the child did, so that the judge can tell."""
    if code < 0:
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)  # not of SIGKILL
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def _end_everything() -> None:
    """Kill whatever came here from below until nothing is left."""
    while True:
        tasks = Path("/proc/self/task").glob("*/children")
        children = [int(number) for file in tasks for number in file.read_text(encoding="ascii").split()]
        for number in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
