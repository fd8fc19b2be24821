"""Python in processes that are forked from one which has imported torch and tunebench: their imports cost nothing.

A shell's script calls `python` or `tunebench` of a folder that `commands_in` fills. Each is a process of its own with
the caller's folder, environment, input and output, and ends with the exit code that it would have had. None of its
imports can fail or be slow: `test_make.py`, `test_cli.py` and `test_imports.py` start Python itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

IMPORTED = (
    *("torch", "torch._dynamo", "optuna", "scipy.stats", "sqlalchemy.orm", "jinja2"),
    *(
        "tunebench.studies.faces.cli",
        "tunebench.studies.faces.api",
        "tunebench.studies.tuning.tune",
        "tunebench.studies.checking.check",
    ),
    *(
        "tunebench.studies.checking.compare",
        "tunebench.studies.checking.bench",
        "tunebench.studies.display.report.page",
        "short_studies",
        "quick_builds",
    ),
)


@contextmanager
def warm_server(place: Path) -> Iterator[Path]:
    """A process to fork from, at this socket; it ends with this one."""
    import subprocess

    command = [sys.executable, __file__, "--serve", str(place)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None and server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    yield place
    server.stdin.close()
    server.wait()


def warm_python(place: Path) -> list[str]:
    """What to start in place of `python`, before its arguments."""
    return [sys.executable, "-I", "-S", __file__, str(place)]


def commands_in(folder: Path, place: Path) -> None:
    """Write `python` and `tunebench` into a folder, for its place in PATH."""
    folder.mkdir(exist_ok=True)
    for name, module in (("python", ""), ("tunebench", " -m tunebench")):
        text = f'#!/bin/sh\nexec {" ".join(warm_python(place))}{module} "$@"\n'
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)


def ask(place: str, arguments: Sequence[str]) -> int:
    """The exit code of a Python with these arguments, which is forked from the server."""
    request = json.dumps({"folder": str(Path.cwd()), "environment": dict(os.environ), "arguments": arguments}).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(place)
        socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(request)
        code = server.recv(1)
    return code[0] if code else 1


def serve(place: str) -> list[str]:
    """Wait for requests until standard input ends; returns in the forked process, with its arguments."""
    import gc
    import importlib

    gc.disable()
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # so that no fork writes to what it shares with the others
    gc.enable()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                os._exit(0)
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
            _reap()
    with connection:
        length, files, _, _ = socket.recv_fds(connection, 4, 3)
        request = json.loads(_received(connection, int.from_bytes(length, "big")))
        if child := os.fork():
            _watch(child, connection)
    return _become(request, files)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _received(connection: socket.socket, length: int) -> bytes:
    text = b""
    while len(text) < length:
        text += connection.recv(length - len(text))
    return text


def _watch(child: int, connection: socket.socket) -> None:
    """Tell how it ended; who asked and is gone wants it to end."""
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, connection], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        connection.send(bytes([code if code >= 0 else 128 - code]))
    finally:
        os._exit(0)


def _become(request: dict[str, Any], files: Sequence[int]) -> list[str]:
    """Be the process that was asked for, as far as it begins with anything of the caller's."""
    import multiprocessing.util

    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        errors = "backslashreplace" if name == "stderr" else "strict"
        stream = open(number, "w" if number else "r", encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0] = ""
    multiprocessing.util.spawnv_passfds = _forked(multiprocessing.util.spawnv_passfds)  # type: ignore[attr-defined]
    return list(request["arguments"])


def _forked(spawn: Any) -> Any:
    """How multiprocessing starts a process; its server, which would import torch again, is a fork of this one."""

    def start(path: bytes, arguments: Sequence[str], files: Sequence[int]) -> int:
        if "multiprocessing.forkserver" not in arguments[-1]:
            return int(spawn(path, arguments, files))
        if child := os.fork():
            return child
        for file in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if file > 2 and file not in files:
                with suppress(OSError):
                    os.close(file)
        try:
            exec(arguments[-1], {})
        finally:
            os._exit(0)

    return start


def run(arguments: Sequence[str]) -> None:
    """What Python does with these arguments."""
    import runpy
    import types

    kind, *rest = arguments
    if kind == "-m":
        sys.argv = list(rest)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = list(arguments)
        sys.path[0] = str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


def run_to_the_end(arguments: Sequence[str]) -> NoReturn:
    """Run and exit as Python would, but without a clean-up of modules, which writes to all that is shared."""
    import atexit
    import threading
    import traceback

    code = 0
    try:
        run(arguments)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:  # noqa: BLE001 - the end of the process: Python would print it, too
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        run_to_the_end(serve(sys.argv[2]))
    sys.exit(ask(sys.argv[1], sys.argv[2:]))
