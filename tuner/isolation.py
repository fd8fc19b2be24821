"""The one way to run a function in a process of its own, which the function may crash or hang.

It is forked from the server (fork_server.py), asked one thing at a time, and waited for with a deadline.
"""

from __future__ import annotations

import enum
import faulthandler
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tunebench.tuner.errors import TunebenchError, WorkerError
from tunebench.tuner.first_lines import limit_output
from tunebench.tuner.fork_server import context, known_server, share_server, start_forkserver, wake_server, without_main
from tunebench.tuner.scratch import scratch_folder, share_scratch
from tunebench.tuner.users_code import described

Answer = TypeVar("Answer")
Listen = Callable[[Any], None]
"""Called with each message that the function sends by `report` before it answers."""

_ERRORS = 2
"""The descriptor of standard error."""
_REAP_SECONDS = 5.0
_STOPPED_SECONDS = 0.5
_TRACE_SECONDS = 0.5
_SERVER_GONE = 255  # the exit code that multiprocessing gives where the server died, and cannot tell
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, _SERVER_GONE)
"""Exit codes that what ran does not cause itself: an operator does, or the system when memory runs out."""


class IsolationError(TunebenchError):
    """The process gave no answer; the message says why."""


class DeathError(IsolationError):
    """The process is gone.

    Attributes:
        trace: where its threads were in Python, as `faulthandler` tells; empty where it ended without a signal.
    """

    trace = ""


class HungError(DeathError):
    """It was killed at its deadline."""


class DiedError(DeathError):
    """It died by itself, or was killed from outside.

    Attributes:
        from_outside: by a signal that what it ran did not cause, as far as one can tell.
    """

    def __init__(self, message: str, *, from_outside: bool = False) -> None:
        super().__init__(message)
        self.from_outside = from_outside


class LostError(DiedError, WorkerError):
    """It was lost with the machine that it was on."""


class RaisedError(IsolationError):
    """A function's exception that is none of tunebench's own errors, which come as they are."""


class _Kind(enum.Enum):
    """The kinds of what a process sends; each comes with its content."""

    ANSWER = enum.auto()
    ERROR = enum.auto()
    MESSAGE = enum.auto()
    PROGRESS = enum.auto()
    LAST_WORDS = enum.auto()


def start_process(
    target: Callable[..., NoReturn], *arguments: object, daemon: bool = False
) -> tuple[ForkServerProcess, Connection]:
    """Start a process that runs a function with its end of a connection and these arguments; return it and our end.

    Raises:
        DiedError: no process could be started.
        DiskFullError: there is no room for its temporary files.
    """
    start_forkserver()
    ours, theirs = context().Pipe()
    errors = Connection(os.dup(_ERRORS))
    process = context().Process(target=_with_errors, args=(errors, target, theirs, *arguments), daemon=daemon)
    with closing(theirs), closing(errors):
        try:
            with without_main():
                process.start()
        except (OSError, EOFError) as error:
            ours.close()
            raise DiedError(f"no process could be started: {error}", from_outside=True) from error
    return process, ours


def _with_errors(errors: Connection, target: Callable[..., NoReturn], *arguments: object) -> NoReturn:
    """Run a function whose standard error is that of who asks: the server's may be another one's."""
    with closing(errors):
        os.dup2(errors.fileno(), _ERRORS)
    target(*arguments)


class IsolatedProcess:
    """A process that is asked one question at a time and keeps what its modules hold; it begins with `start`.

    Args:
        has_children: it starts processes of its own.
    """

    def __init__(self, *, has_children: bool = False) -> None:
        self._has_children = has_children
        self._process: ForkServerProcess | None = None
        self._connection: Connection | None = None
        self._trace: Connection | None = None
        self._starting = threading.Lock()
        self._ends = False

    @property
    def alive(self) -> bool:
        """Whether it is there to be asked."""
        return self._process is not None and self._process.is_alive()

    def start(self) -> None:
        """Begin anew, with a process that remembers nothing.

        Raises:
            DiedError: no process could be started.
            DiskFullError: there is no room for its temporary files.
            WorkerError: it has been killed by `kill`.
        """
        self.close()
        with self._starting:
            if self._ends:
                raise WorkerError("it has been ended")
            self._trace = Connection(os.memfd_create("trace"))
            start_forkserver()  # its address is part of `_Home`
            daemon = not self._has_children
            self._process, self._connection = start_process(_serve, _Home.here(), self._trace, daemon=daemon)

    def ask(
        self,
        seconds: float,
        function: Callable[..., Answer],
        *arguments: object,
        listen: Listen = lambda _: None,
        first: float | None = None,
    ) -> Answer:
        """Run the function there and return its answer; it, its arguments and its answer travel by pickle.

        Args:
            first: seconds until the function has to call `progress`; None where it need not.

        Raises:
            TunebenchError: the function raised it.
            RaisedError: the function raised another exception.
            HungError: there was no answer within the seconds, or no progress.
            DiedError: the process died, now or earlier.
        """
        process, connection = self._running()
        limit = seconds if first is None else first
        deadline = time.monotonic() + limit
        with self._closed_on_failure():
            _send(process, connection, (function, arguments))
            while True:
                kind, content = _receive(process, connection, deadline, limit)
                if kind is _Kind.MESSAGE:
                    listen(content)
                elif kind is _Kind.PROGRESS:
                    deadline, limit = deadline + seconds - limit, seconds
                elif kind is _Kind.LAST_WORDS:
                    raise DiedError(content)
                else:
                    break
        if kind is _Kind.ERROR:
            raise content
        answer: Answer = content
        return answer

    def _running(self) -> tuple[ForkServerProcess, Connection]:
        assert self._process is not None and self._connection is not None, "it was never started, or has died"
        return self._process, self._connection

    @contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except DeathError as death:
            death.trace = self._where(death)
            self.close()
            raise
        except BaseException:
            self.close()  # nobody waits for its answer any more
            raise

    def _where(self, death: DeathError) -> str:
        """Where in Python it is that hangs, or was that has died."""
        process, _ = self._running()
        assert self._trace is not None
        file = self._trace.fileno()
        if isinstance(death, HungError):
            os.kill(process.pid or 0, signal.SIGUSR1)
            deadline = time.monotonic() + _TRACE_SECONDS
            while not os.fstat(file).st_size and process.is_alive() and time.monotonic() < deadline:
                time.sleep(_TRACE_SECONDS / 50)
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def kill(self) -> None:
        """Kill it for good while another thread starts it, or waits for its answer, which is then that it died."""
        with self._starting:
            self._ends = True
            if (process := self._process) is not None:
                process.kill()

    def close(self) -> None:
        """Kill it, whatever it does."""
        if self._process is not None and self._connection is not None:
            self._process.kill()
            self._process.join(_STOPPED_SECONDS)
            while self._process.exitcode is None:
                wake_server()
                self._process.join(_STOPPED_SECONDS)
            self._connection.close()
        if self._trace is not None:
            self._trace.close()
        self._process = self._connection = self._trace = None


def run_isolated(
    seconds: float,
    function: Callable[..., Answer],
    *arguments: object,
    listen: Listen = lambda _: None,
    has_children: bool = False,
) -> Answer:
    """Run a function once, in a process that ends with it; see `IsolatedProcess.ask`."""
    with closing(IsolatedProcess(has_children=has_children)) as process:
        process.start()
        return process.ask(seconds, function, *arguments, listen=listen)


def is_watched() -> bool:
    """Whether this process was started by another one, which waits for it and can kill it."""
    return multiprocessing.parent_process() is not None


def asked_again_if_killed(question: Callable[[], Answer]) -> Answer:
    """Return the answer to a question, which is asked once more where its process was killed from outside.

    Such a death says nothing of what the process ran. A second one is taken for its doing all the same.
    """
    try:
        return question()
    except DiedError as death:
        if not is_from_outside(death):
            raise
    return question()


def is_from_outside(error: BaseException | None) -> bool:
    """Whether this is the death of a process which what ran there did not cause, as far as one can tell."""
    return isinstance(error, DiedError) and error.from_outside


def settings() -> Mapping[str, str]:
    """Return the environment's `TUNEBENCH_` variables; processes elsewhere may have been started under other ones."""
    return {name: value for name, value in os.environ.items() if name.startswith("TUNEBENCH_")}


@dataclass(frozen=True)
class _Home:
    """The context that a process needs of the one that asks it.

    Attributes:
        settings: the server may have been started under others.
        scratch: the folder for temporary files.
        server: see `known_server`.
    """

    settings: Mapping[str, str]
    scratch: Path
    server: Mapping[str, object]

    @classmethod
    def here(cls) -> _Home:
        """Return the context of this process."""
        return cls(settings(), scratch_folder(), known_server())

    def move_in(self) -> None:
        """Run as the process that asks does; what this one starts is forked from the same server."""
        for name in [name for name in os.environ if name.startswith("TUNEBENCH_")]:
            del os.environ[name]
        os.environ.update(self.settings)
        share_scratch(self.scratch)
        share_server(self.server)


def _send(process: ForkServerProcess, connection: Connection, question: object) -> None:
    try:
        connection.send(question)
    except OSError:
        raise _death(process) from None


def _receive(process: ForkServerProcess, connection: Connection, deadline: float, seconds: float) -> Any:
    """The next message.

    Raises:
        HungError: there was none until the deadline.
        DiedError: the process died.
    """
    if not wait([connection, process.sentinel], max(0.0, deadline - time.monotonic())):
        raise HungError(f"still running after {seconds:.0f} s: killed")
    try:
        if connection.poll():
            return connection.recv()
    except (EOFError, OSError):
        pass
    raise _death(process)


def _death(process: ForkServerProcess) -> DiedError:
    return DiedError(how_it_ended(process), from_outside=process.exitcode in _FROM_OUTSIDE)


def how_it_ended(process: ForkServerProcess) -> str:
    """The end of a process that answers no more, in one line."""
    process.join(_REAP_SECONDS)
    code = process.exitcode
    if code is None:
        return "the process answers no more"
    if code >= 0:
        return f"the process ended with exit code {code}"
    hint = " (as the system does when memory runs out)" if code == -signal.SIGKILL else ""
    return f"the process was killed by {signal.Signals(-code).name}{hint}"


# What follows runs in the process.

_parent: Connection | None = None


def report(content: object) -> None:
    """Send a message to the process that asked, before the answer."""
    assert _parent is not None
    _parent.send((_Kind.MESSAGE, content))


def mention(content: object) -> None:
    """Send a message to the process that asked, where there is one that does."""
    if _parent is not None:
        report(content)


def progress() -> None:
    """Tell the process that asked, where there is one, that what is run here answers; see `IsolatedProcess.ask`."""
    if _parent is not None:
        _parent.send((_Kind.PROGRESS, None))


def leave(reason: str) -> NoReturn:
    """End the process, which is then known to have died for this reason."""
    assert _parent is not None
    _parent.send((_Kind.LAST_WORDS, reason))
    os._exit(1)


def _serve(connection: Connection, home: _Home, trace: Connection) -> NoReturn:
    global _parent  # noqa: PLW0603 - a process has one parent
    _parent = connection
    faulthandler.enable(trace.fileno())
    faulthandler.register(signal.SIGUSR1, trace.fileno())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    home.move_in()
    limit_output()
    try:
        while True:
            _answer(connection)
    except (EOFError, OSError):
        os._exit(1)  # the parent is gone, or wants no more answers


def _answer(connection: Connection) -> None:
    question = connection.recv_bytes()
    try:
        function, arguments = pickle.loads(question)
        packed = pickle.dumps((_Kind.ANSWER, function(*arguments)))
    except Exception as error:  # noqa: BLE001 - a process boundary: whatever it is, it is for whoever asked
        packed = _packed(error)
    connection.send_bytes(packed)


def _packed(error: Exception) -> bytes:
    """tunebench's own errors as they are; of others the name, text and place: the parent may not have their classes."""
    if isinstance(error, TunebenchError):
        return pickle.dumps((_Kind.ERROR, error))
    place = traceback.extract_tb(error.__traceback__)[-1]
    raised = RaisedError(f"{described(error)} ({Path(place.filename).name}:{place.lineno})")
    return pickle.dumps((_Kind.ERROR, raised))


def _end_with_parent() -> None:
    """A process whose parent was killed must not keep the device."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
