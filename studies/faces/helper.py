"""A helper that stays warm: it has imported what commands need, and forks for each command that the user starts.

`TUNEBENCH_KEEP_WARM=SECONDS` asks for one: a command that finds none starts it as it ends. It is one user's, of one
version and one environment: its socket is named by a digest of them and lies in a folder that nobody else can enter,
and both sides ask the system whose the other is. The process that the user has started passes its arguments, folder,
environment and standard streams on, then signals, and ends as the command does. The helper ends when nobody has asked
it anything for so many seconds, or by `tunebench stop`.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import hashlib
import io
import json
import locale
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NoReturn

import tunebench
from tunebench.tuner.errors import UserError

VARIABLE = "TUNEBENCH_KEEP_WARM"
RunHere = Callable[[Callable[[], None]], int]
"""Runs a command line in a process as its own, once it has done something else."""

_OF_A_TERMINAL = frozenset({VARIABLE, "PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES", "WINDOWID"})
"""Variables that may differ between commands of one helper, which get those of their own."""

_LOADED = (
    "tunebench.studies.faces.cli.run",
    "tunebench.studies.faces.cli",
    "tunebench.studies.checking.check",
    "tunebench.studies.tuning.summary",
    "tunebench.studies.tuning.targets",
)
"""The modules that the helper imports."""

_MOST_BYTES = 1 << 20
_START_SECONDS = 20.0
_REQUEST_SECONDS = 5.0
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_LONGEST_SECONDS = 86_400
_LOST = 3
"""The exit code where nobody knows how the command has ended."""
_HEAD = struct.Struct("!I")
"""The number of bytes of a request, which comes with the standard streams."""
_STOP = b"stop"
_ERRORS = 2


@dataclass(frozen=True)
class _Request:
    """A command as it was started."""

    arguments: Sequence[str]
    folder: str
    environment: Mapping[str, str]
    path: Sequence[str]


def run_warm() -> None:
    """Have the helper run this process's command, and end as that does.

    Returns where this process has to run it itself: there is no helper yet.

    Raises:
        SystemExit: the command has ended, or cannot be asked so.
    """
    if sys.argv[1:2] == ["stop"]:
        return
    try:
        connection = _connection(os.environ.get(VARIABLE, ""))
    except UserError as error:
        print(f"tunebench: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    if connection is None:
        return
    with connection:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # until there is somebody to pass them on to
        try:
            command = _asked(connection)
        except (OSError, ValueError):
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return  # it is about to end
        with _passing_signals_to(command):
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            status = _line(connection)
    if not status:
        print("tunebench: the helper was ended before the command was", file=sys.stderr)
    raise SystemExit(_end_as(int(status or _LOST)))


def _connection(wanted: str) -> socket.socket | None:
    if not wanted.isdecimal() or not 1 <= int(wanted) <= _LONGEST_SECONDS:
        raise UserError(f"{VARIABLE} is '{wanted:.40}': give the seconds that a helper stays, 1 to {_LONGEST_SECONDS}")
    place = _folder() / f"{_digest()}.sock"
    if (connection := _connected(place)) is None:
        atexit.register(_start, place, int(wanted))
    return connection


def _asked(connection: socket.socket) -> int:
    """Ask for this process's command; return the number of the process that runs it."""
    request = _Request(sys.argv, str(Path.cwd()), dict(os.environ), sys.path)
    text = json.dumps(asdict(request)).encode()
    streams = [number if _is_open(number) else os.open(os.devnull, os.O_RDWR) for number in (0, 1, 2)]
    connection.settimeout(_START_SECONDS)
    socket.send_fds(connection, [_HEAD.pack(len(text))], streams)
    connection.sendall(text)
    command = int(_line(connection))
    connection.settimeout(None)
    return command


def stop() -> int:
    """End all helpers of this user, each after the commands that it runs; return how many there were.

    Raises:
        UserError: the folder of sockets is not this user's alone.
    """
    found = 0
    for place in _folder().glob("*.sock"):
        if (connection := _connected(place)) is not None:
            with connection, contextlib.suppress(OSError):
                connection.sendall(_HEAD.pack(len(_STOP)) + _STOP)
                found += bool(_line(connection))
    return found


def _folder() -> Path:
    """Return the folder of this user's sockets."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"tunebench-warm-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != 0o700:
        raise UserError(f"{folder}: not a folder of mode 0700 that is yours; remove it, or unset {VARIABLE}")
    return folder


def _digest() -> str:
    """Return what tells this version and environment from others: code, Python, packages and variables."""
    packages = Path(tunebench.__file__).parent
    code = [
        (name, entry.stat().st_mtime_ns)
        for name in ("tuner", "db", "kernels", "studies")
        for folder, _, _ in os.walk(packages / name, followlinks=True)
        for entry in os.scandir(folder)
        if entry.name.endswith(".py")
    ]
    installed = [(one, Path(one).stat().st_mtime_ns) for one in sys.path if one.endswith("-packages")]
    variables = sorted((name, value) for name, value in os.environ.items() if name not in _OF_A_TERMINAL)
    told = (tunebench.__version__, sys.executable, sys.version, str(packages), sorted(code), installed, variables)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:24]


def _connected(place: Path) -> socket.socket | None:
    """Return a connection to the helper of that place; None where there is none."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(place))
    except OSError:
        connection.close()
        return None
    if _user_of(connection) != os.getuid():
        connection.close()
        return None
    return connection


def _user_of(connection: socket.socket) -> int:
    _, user, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    return int(user)


def _start(place: Path, seconds: int) -> None:
    """Start a helper, for which nobody waits."""
    code = f"""
import sys
sys.path[:] = {sys.path!r}
from tunebench.__main__ import run_here
from {__name__} import main
main({str(place)!r}, {seconds}, run_here)
"""
    null = subprocess.DEVNULL
    subprocess.Popen(
        [sys.executable, "-P", "-c", code], cwd="/", stdin=null, stdout=null, stderr=null, start_new_session=True
    )


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _line(connection: socket.socket) -> bytes:
    """Read one short line; empty where the other side is gone."""
    with contextlib.suppress(ConnectionError):
        found = b""
        while not found.endswith(b"\n") and (part := connection.recv(64)):
            found += part
        return found.strip()
    return b""


@contextlib.contextmanager
def _passing_signals_to(command: int) -> Iterator[None]:
    """Pass on what a terminal or a user sends this process, as far as it does not ignore it."""

    def passed(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(command, number)

    before = {number: signal.getsignal(number) for number in _FORWARDED}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, passed)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_as(code: int) -> int:
    """Return the exit code; end by the signal that the command has ended by."""
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


# What follows runs in the helper.


class _Helper:
    """Accepts commands one after the other, and forks for each.

    Args:
        seconds: without a command after which it ends.
        run_here: runs a command.
    """

    def __init__(self, listener: socket.socket, seconds: float, run_here: RunHere) -> None:
        self._run_here = run_here
        self._listener = listener
        self._seconds = seconds
        self._running: dict[int, socket.socket | None] = {}
        self._is_stopped = False

    def serve(self) -> None:
        """Serve until nobody asks any more."""
        ended, ending = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(ending, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while self._running or not self._is_stopped:
            waits: list[int | socket.socket] = [
                ended,
                *self._connections(),
                *([] if self._is_stopped else [self._listener]),
            ]
            ready, _, _ = select.select(waits, [], [], None if self._running else self._seconds)
            if not ready:
                return
            if ended in ready:
                os.read(ended, 1 << 10)
            if self._listener in ready:
                self._accept()
            self._reap()
            for command in [one for one, connection in self._running.items() if connection in ready]:
                self._hang_up(command)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(_REQUEST_SECONDS)
        try:
            if _user_of(connection) != os.getuid():
                raise PermissionError
            head, streams, _, _ = socket.recv_fds(connection, _HEAD.size, 3)
            text = _exactly(connection, _HEAD.unpack(head)[0])
            if text == _STOP:
                self._is_stopped = True
                Path(self._listener.getsockname()).unlink()
                connection.sendall(b"0\n")
                connection.close()
                return
            request = _Request(**json.loads(text))
        except (OSError, ValueError, TypeError, struct.error):
            connection.close()
            return
        from tunebench.tuner.fork_server import start_forkserver

        start_forkserver()  # where somebody has ended it
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # until the command answers them
        command = os.fork()
        if command == 0:
            _run(self._run_here, request, streams, [connection, self._listener, *self._connections()])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        for stream in streams:
            os.close(stream)
        self._running[command] = connection
        with contextlib.suppress(OSError):
            connection.sendall(f"{command}\n".encode())

    def _connections(self) -> list[socket.socket]:
        return [connection for connection in self._running.values() if connection is not None]

    def _reap(self) -> None:
        """Tell how commands have ended."""
        for command in list(self._running):
            ended, status = os.waitpid(command, os.WNOHANG)
            if ended and (connection := self._running.pop(command)) is not None:
                with contextlib.suppress(OSError), connection:
                    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())

    def _hang_up(self, command: int) -> None:
        """End a command as its terminal would: the process that the user has started is gone."""
        connection, self._running[command] = self._running[command], None
        if connection is not None:
            connection.close()
        os.kill(command, signal.SIGHUP)  # it is not reaped


def _exactly(connection: socket.socket, count: int) -> bytes:
    if count > _MOST_BYTES:
        raise ValueError("too long")
    text = b""
    while len(text) < count:
        if not (part := connection.recv(count - len(text))):
            raise ConnectionError
        text += part
    return text


def _run(run_here: RunHere, request: _Request, streams: Sequence[int], sockets: Sequence[socket.socket]) -> NoReturn:
    """Run a command in this fork of the helper, and end with it."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for one in (signal.SIGCHLD, *_FORWARDED):
            signal.signal(one, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for connection in sockets:
            connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin, sys.stdout, sys.stderr = (_stream(number) for number in (0, 1, 2))
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.folder)
        sys.argv[:], sys.path[:] = request.arguments, request.path
        from tunebench.tuner.fork_server import share_server

        share_server()
        code = run_here(_answer_signals)
    finally:
        _end(code)


def _answer_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)


def _stream(number: int) -> io.TextIOWrapper:
    """A standard stream of this process, as Python makes it."""
    binary = open(number, "rb" if number == 0 else "wb", closefd=False)  # noqa: SIM115 - a descriptor
    by_line = os.isatty(number) or number == _ERRORS
    return io.TextIOWrapper(binary, encoding=locale.getpreferredencoding(False), line_buffering=by_line)


def _end(code: int) -> NoReturn:
    """End as Python does, without the frames of the helper below."""
    with contextlib.suppress(BaseException):
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def main(place: str, seconds: float, run_here: RunHere) -> None:
    """Be the helper of that place, if there is no other."""
    os.umask(0o077)
    lock = os.open(Path(place).with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    for number in _FORWARDED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from tunebench.studies import checking, tuning
    from tunebench.tuner.fork_server import TRACER, start_forkserver
    from tunebench.tuner.isolation import run_isolated

    start_forkserver([*checking.PRELOAD, *tuning.PRELOAD, TRACER])
    for module in _LOADED:
        import_module(module)
    run_isolated(_START_SECONDS, os.getpid)  # as soon as the server is ready, too
    gc.freeze()  # commands have none of it to look through
    with socket.socket(socket.AF_UNIX) as listener, contextlib.suppress(FileNotFoundError):
        Path(place).unlink(missing_ok=True)
        listener.bind(place)
        listener.listen()
        helper = _Helper(listener, seconds, run_here)
        helper.serve()
        Path(place).unlink()
