"""A process that nobody vouches for, and the supervisor that stands between it and the judge.

The supervisor runs nothing of a file's, outlives whatever the file starts, and ends all of it when the file's process
ends or the judge is gone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import socket
import time
import types
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from tunebench.tuner.first_lines import PIPE_BYTES, FirstLines, print_by_line
from tunebench.tuner.gate.boundary.box import Room, Walls, close, enter_namespaces, furnish
from tunebench.tuner.gate.boundary.system_call import asked, libc
from tunebench.tuner.isolation import how_it_ended, start_process

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FIRST = 3  # descriptor after the standard streams
_REAP_SECONDS = 5.0
_STOPPED_SECONDS = 0.5
_MOST_DIGITS = 8
_STOP, _GO_ON = signal.SIGUSR1, signal.SIGUSR2
_EVERYBODY = -1
"""The PID that stands for every process of a namespace but PID 1."""

_Handler = Callable[[int, types.FrameType | None], object] | signal.Handlers

Run = Callable[[Connection], NoReturn]
"""The function that the process runs; it gets its end of the connection."""


class Supervised:
    """The judge's side of such a process.

    Args:
        run: travels to the process by pickle.
        room: the box that it runs in; None for none.

    Attributes:
        connection: to the process. The first message of one with a box says why it could not be made; it is empty
            where the box is closed.
    """

    def __init__(self, run: Run, room: Room | None = None) -> None:
        self._process, self.connection = start_process(_supervise, run, room)

    def wait(self, seconds: float) -> int | None:
        """Its exit code, negative for a signal; None where it is still running after so many seconds."""
        self._process.join(seconds)
        return self._process.exitcode

    def how_it_ended(self) -> str:
        """Its end, in one line."""
        return how_it_ended(self._process)

    def stop(self) -> None:
        """Have everything in its namespaces stand still, until `go_on`; without namespaces nothing happens."""
        os.kill(self._process.pid or 0, _STOP)

    def go_on(self) -> None:
        """Let everything in its namespaces run again."""
        os.kill(self._process.pid or 0, _GO_ON)

    def hang_up(self) -> None:
        """Have the process, and everything that it has started, end; a thread that waits for its answer gets none."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the process and everything that it has started: its supervisor sees that nobody listens."""
        self.connection.close()
        deadline = time.monotonic() + _REAP_SECONDS
        while self._process.is_alive() and time.monotonic() < deadline:
            self._wake()
            self._process.join(_STOPPED_SECONDS)
        if self._process.is_alive():
            self._process.kill()  # its child goes along
            self._process.join()
        # Its object is not closed: another thread may be waiting for its end.

    def _wake(self) -> None:
        """A file may have stopped its supervisor."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid or 0, signal.SIGCONT)


def _supervise(connection: Connection, run: Run, room: Room | None) -> NoReturn:
    """Do it in a child, and end with it or with the judge, whoever goes first, and everything below with both."""
    asked(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))  # what the file starts and leaves behind comes here
    # A file may stop its supervisor. The fork server ends with the judge, if nobody else keeps it, and wakes this one.
    os.close(vars(forkserver._forkserver)["_forkserver_alive_fd"])
    asked(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0))
    judge = multiprocessing.parent_process()
    assert judge is not None
    own = os.getpid()
    printed, printing = os.pipe()
    ended, ending = os.pipe()
    is_in_namespaces = room is not None and room.walls is Walls.NAMESPACES
    if is_in_namespaces:
        with _told_if_refused(connection):
            enter_namespaces()
    _answer(signal.SIG_IGN, signal.SIG_IGN)  # until there is somebody to stop
    child = os.fork()
    if child == 0:
        asked(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        if not is_in_namespaces and os.getppid() != own:  # in its namespace a parent outside has no number
            os._exit(1)
        _run(connection, run, room, printing, ending)
    if is_in_namespaces:
        _answer(_passing(child, _STOP), _passing(child, _GO_ON))  # to PID 1
    os.close(printing)
    os.close(ending)
    ends = select.poll()
    ends.register(os.pidfd_open(child), select.POLLIN)
    ends.register(judge.sentinel, select.POLLIN)
    ends.register(connection.fileno(), 0)  # the judge hangs up
    ends.register(printed, select.POLLIN)
    lines = FirstLines()
    while {number for number, _ in ends.poll()} == {printed}:
        if part := os.read(printed, PIPE_BYTES):
            lines.take(part)
        else:
            ends.unregister(printed)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    _end_everything()
    os.set_blocking(printed, False)
    with contextlib.suppress(BlockingIOError):
        lines.take(os.read(printed, PIPE_BYTES))
    told = os.read(ended, _MOST_DIGITS)
    _end_as(int(told) if told else os.waitstatus_to_exitcode(status))


def _passing(pid: int, number: signal.Signals) -> _Handler:
    return lambda *_: os.kill(pid, number)


def _run(connection: Connection, run: Run, room: Room | None, printing: int, ending: int) -> NoReturn:
    """Close the box behind this process, and run the function.

    Args:
        printing: where both of its standard outputs go.
        ending: where the exit code of a process in namespaces is told.
    """
    os.setsid()
    if room is not None and room.walls is Walls.NAMESPACES:
        with _told_if_refused(connection):
            furnish(room)
        _become_init(ending)
    _answer(signal.SIG_DFL, signal.SIG_DFL)
    print_by_line()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(printing, 1)
    os.dup2(printing, 2)
    _close_all_but(connection.fileno())
    _forget_server()
    if room is not None:
        with _told_if_refused(connection):
            close(room)
        connection.send_bytes(b"")
    run(connection)


def _answer(stop: _Handler, go_on: _Handler) -> None:
    """Answer the judge's two signals so."""
    signal.signal(_STOP, stop)
    signal.signal(_GO_ON, go_on)


@contextlib.contextmanager
def _told_if_refused(connection: Connection) -> Iterator[None]:
    """End this process where the kernel refuses what the block asks for, once the judge is told."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        connection.send_bytes(f"{error.strerror}{where}".encode())
        os._exit(1)


def _become_init(ending: int) -> None:
    """Return in a child of this process, which is PID 1 of its namespace; the namespace ends when the child does."""
    child = os.fork()
    if child == 0:
        asked(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        return
    _answer(_passing(_EVERYBODY, signal.SIGSTOP), _passing(_EVERYBODY, signal.SIGCONT))
    while (found := os.wait())[0] != child:
        pass
    # No signal of its own namespace ends PID 1, so that it cannot end as its child did.
    os.write(ending, str(os.waitstatus_to_exitcode(found[1])).encode())
    os._exit(0)


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
