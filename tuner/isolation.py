"""The one way to run a function in a process of its own, which the function may crash or hang.

Processes are forked from a server that has imported what they need and never touched a device, so that a new one costs
no import. A process is asked one thing at a time, and waited for with a deadline.
"""

from __future__ import annotations

import codecs
import ctypes
import enum
import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tunebench.tuner import server_start
from tunebench.tuner.errors import TunebenchError, WorkerError
from tunebench.tuner.scratch import scratch_folder, share_scratch
from tunebench.tuner.users_code import described

Answer = TypeVar("Answer")
Listen = Callable[[Any], None]
"""Called with each message that the function sends by `report` before it answers."""

TRACER = "torch._dynamo"
"""A module that torch imports at its first trace, in seconds. A server that has it spares forks that."""

_FIRST, _LAST = server_start.__name__, "tunebench.tuner.forked"
"""The modules that a server imports before and after those that it was started for."""

_preload: Sequence[str] = ()

_LONGEST_SOCKET = 107 - len("/listener-12345678")
"""Bytes of a folder's path in which multiprocessing can make a server's socket."""

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


MOST_LINES = 20
"""Limit of the lines that are shown of what one process prints."""

PIPE_BYTES = 1 << 16
_MOST_LETTERS = 20_000
_ERRORS = 2
"""The descriptor of standard error."""
_BY_LINE = 1
"""C's _IOLBF."""


class RaisedError(IsolationError):
    """A function's exception that is none of tunebench's own errors, which come as they are."""


class _Kind(enum.Enum):
    """The kinds of what a process sends; each comes with its content."""

    ANSWER = enum.auto()
    ERROR = enum.auto()
    MESSAGE = enum.auto()
    PROGRESS = enum.auto()
    LAST_WORDS = enum.auto()


def start_forkserver(preload: Sequence[str] = ()) -> None:
    """Start the server, importing these modules; where it runs already, nothing happens.

    The sooner, the better: it imports torch while this process does.
    """
    if _parent is not None or _shares_server:
        return
    global _preload  # noqa: PLW0603 - there is one server, which may have to be started again
    _preload = preload or _preload
    multiprocessing.set_forkserver_preload(in_order(_preload))
    _use_scratch()
    resource_tracker.ensure_running()  # it unblocks what is blocked here, so that it goes first
    # Ctrl-C goes to every process of the terminal, and is this one's to answer. What is blocked stays so in the server
    # and its forks, from their first instruction on.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with without_main(), server_start.own_server():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_shares_server = False


def share_server() -> None:
    """Use the server of the process that this one was forked from, from now on."""
    global _shares_server  # noqa: PLW0603 - there is one server
    _shares_server = True
    vars(forkserver._forkserver).update(ensure_running=lambda: None)


def in_order(preload: Sequence[str]) -> list[str]:
    """Return what a server imports: these modules, after the one that begins it and before the one that ends it."""
    return [_FIRST, *preload, _LAST]


def _wake_server() -> None:
    """Have the server go on, which tells how processes end: a file without a box may have stopped it."""
    if (server := vars(forkserver._forkserver).get("_forkserver_pid")) is not None:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGCONT)


def _use_scratch() -> None:
    """Have multiprocessing keep its socket in this process's scratch folder: its own would outlive a kill.

    Raises:
        DiskFullError: there is no room for the folder.
    """
    known = vars(multiprocessing.current_process())["_config"]
    if known.get("tempdir") is None and len(os.fsencode(folder := scratch_folder())) <= _LONGEST_SOCKET:
        known["tempdir"] = str(folder)


_without_main = threading.RLock()
"""Serialises the temporary change of `__main__`, so that concurrent starts restore the right value."""


@contextmanager
def without_main() -> Iterator[None]:
    """Keep multiprocessing from running the user's script again in every process: all that runs there is a module's."""
    with _without_main:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _begin_in_fork() -> None:
    """Make a new lock in a forked process, where no thread is left to release the old one."""
    global _without_main  # noqa: PLW0603 - a thread of the parent may hold it
    _without_main = threading.RLock()


os.register_at_fork(after_in_child=_begin_in_fork)


def context() -> ForkServerContext:
    """The multiprocessing context of such processes."""
    return multiprocessing.get_context("forkserver")


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
                _wake_server()
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


_OF_THE_SERVER = ("_forkserver_address", "_forkserver_authkey")


def settings() -> Mapping[str, str]:
    """Return the environment's `TUNEBENCH_` variables; processes elsewhere may have been started under other ones."""
    return {name: value for name, value in os.environ.items() if name.startswith("TUNEBENCH_")}


@dataclass(frozen=True)
class _Home:
    """The context that a process needs of the one that asks it.

    Attributes:
        settings: the server may have been started under others.
        scratch: the folder for temporary files.
        server: what multiprocessing knows of the server, whose address and key are not part of its interface.
    """

    settings: Mapping[str, str]
    scratch: Path
    server: Mapping[str, object]

    @classmethod
    def here(cls) -> _Home:
        """Return the context of this process."""
        known = vars(forkserver._forkserver)
        server: dict[str, object] = {name: known[name] for name in _OF_THE_SERVER if name in known}
        return cls(settings(), scratch_folder(), server)

    def move_in(self) -> None:
        """Run as the process that asks does; what this one starts is forked from the same server."""
        for name in [name for name in os.environ if name.startswith("TUNEBENCH_")]:
            del os.environ[name]
        os.environ.update(self.settings)
        share_scratch(self.scratch)
        vars(forkserver._forkserver).update(self.server, ensure_running=lambda: None)


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


def limit_output() -> None:
    """Let the first lines through that are printed here, to standard error: a kernel's printf comes with every call."""
    print_by_line()
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading,), daemon=True).start()


def print_by_line() -> None:
    """Have C's standard output hold no more than a line: a process may end without a word."""
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _BY_LINE, 0)


class FirstLines:
    """Passes the first lines of what is printed on to standard error, without what controls a terminal."""

    def __init__(self) -> None:
        self._lines = self._letters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, printed: bytes) -> None:
        """Pass on as much of this as may still be shown."""
        if self._is_full:
            return
        shown = ""
        for letter in self._decoder.decode(printed):
            self._lines += letter == "\n"
            self._letters += 1
            shown += letter if letter.isprintable() or letter in "\t\n" else "?"
            if self._is_full:
                shown = shown.removesuffix("\n") + "\n(no more of what is printed here is shown)\n"
                break
        os.write(2, shown.encode())

    @property
    def _is_full(self) -> bool:
        return self._lines >= MOST_LINES or self._letters >= _MOST_LETTERS


def _pass_on(reading: int) -> None:
    lines = FirstLines()
    while printed := os.read(reading, PIPE_BYTES):
        lines.take(printed)


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
