"""Compilers that are programs, and the errors by which they end."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tunebench.tuner.command import run_command
from tunebench.tuner.compile.base import KILLED
from tunebench.tuner.disk import require_room
from tunebench.tuner.errors import CompileError, CompilerKilledError, CompilerMissingError, CompileTimeoutError
from tunebench.tuner.scratch import scratch

_REQUEST = "request.json"

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
"""Signals that a compiler does not cause itself."""


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
    environment = {"LC_ALL": "C", "TMPDIR": str(folder)}
    try:
        ended = run_command(command, seconds, folder=folder, environment=environment, together=True)
    except OSError as error:
        raise CompilerMissingError(f"no process to compile in can be started: {error}") from error
    status, log = ended.code, ended.log
    if status is None:
        raise CompileTimeoutError(f"{compiler} was still compiling {file} after {seconds:.0f} s: killed", log)
    if status:
        require_room(folder)
        if -status in _FROM_OUTSIDE or KILLED.search(log):
            raise CompilerKilledError(f"{compiler} was killed while it compiled {file}: is there enough memory?", log)
        if status < 0:
            raise CompileError(f"{compiler} crashed on {file}: {signal.Signals(-status).name}", log)
    return status == 0, log


def run_main(
    module: ModuleType, request: Mapping[str, Any], seconds: float, compiler: str, file: str
) -> tuple[bytes | None, str]:
    """Have a module's `main` compile, in a process that finds modules where this one does, and imports no others.

    Args:
        module: its `OUTPUT` names the file that `main` writes in its folder.
        request: the arguments of `main`, as JSON.
        seconds, compiler, file: see `run_compiler`, also for what it raises.

    Returns:
        The content of the output, None where the compiler has refused; and its log.
    """
    command = (
        f"import json, sys; request = json.load(open({_REQUEST!r}, encoding='utf-8')); "
        f"sys.path[:] = request.pop('path'); from {module.__name__} import main; main(**request)"
    )
    with scratch() as folder:
        (folder / _REQUEST).write_text(json.dumps({"path": sys.path, **request}), encoding="utf-8")
        compiled, log = run_compiler([sys.executable, "-c", command], folder, seconds, compiler, file)
        return (folder / module.OUTPUT).read_bytes() if compiled else None, log
