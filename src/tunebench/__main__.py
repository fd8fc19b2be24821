"""`python -m tunebench` and the `tunebench` command.

Whatever takes time is imported late, so that a signal is answered from the start.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import NoReturn

_ENDINGS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "the terminal is gone"}

_TUNING, _CHECKING = "tunebench.studies.tuning", "tunebench.studies.checking"
_WITH_WORKERS = {"tune": _TUNING, "sweep": _TUNING, "confirm": _TUNING, "optimize": _TUNING, "check": _CHECKING}
"""Commands whose workers' server begins before anything else does, since it takes longest to get ready; with the
packages that name what it imports."""

_GARBAGE_AFTER = 100_000
"""Number of new objects after which Python looks for garbage: imports make many and drop few."""

_INTERRUPTED = 128 + signal.SIGINT

_received = signal.SIGINT


def main() -> NoReturn:
    """Run the command line, or have the helper run it that stays warm; see `tunebench.studies.faces.helper`."""
    sys.exit(run_here(_have_helper))


def _have_helper() -> None:
    if os.environ.get("TUNEBENCH_KEEP_WARM"):
        from tunebench.studies.faces.helper import run_warm

        run_warm()


def run_here(first: Callable[[], None]) -> int:
    """Run the command line in this process, and return its exit code; see `tunebench.studies.faces.cli.run`.

    Ctrl-C, SIGTERM and SIGHUP end it in one line, with the exit codes 130, 143 and 129.

    Args:
        first: done once signals are answered.
    """
    for number in _ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as it is under nohup
            signal.signal(number, _answer)
    gc.set_threshold(_GARBAGE_AFTER)
    try:
        from tunebench.tuner.bytecode import keep_bytecode

        keep_bytecode()
        first()
        _begin(sys.argv[1:])
        from tunebench.studies.faces.cli.run import run

        code = run()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    for number in _ENDINGS:
        signal.signal(number, signal.SIG_IGN)  # nothing is left to end
    if code == _INTERRUPTED:
        code = _tell(_received)
    if "triton" not in sys.modules:  # which would report as leaked what is not looked through
        gc.freeze()  # what torch has made goes with the process: to look through it at the end takes most of a second
    return code


def _begin(arguments: Sequence[str]) -> None:
    """Start the server of a command's workers; where that fails, the command says so when it needs it.

    A stream that is closed is the command's to open before anything else takes its number.
    """
    is_closed = None in (sys.stdin, sys.stdout, sys.stderr)
    package = _WITH_WORKERS.get(arguments[0]) if arguments and "--help" not in arguments else None
    if package is not None and not is_closed:
        from tunebench.tuner.errors import TunebenchError
        from tunebench.tuner.fork_server import start_forkserver

        with suppress(TunebenchError, OSError):
            start_forkserver(import_module(package).PRELOAD)


def _answer(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, which lets commands put things in order.

    Inside an import the process ends at once: C extensions that are being imported turn the exception into others or
    lose it, and nothing is half done there that the next run would miss.
    """
    global _received  # noqa: PLW0603 - there is one process to end
    _received = signal.Signals(number)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            _remove_scratch()
            os._exit(_tell(_received))
        frame = frame.f_back
    raise KeyboardInterrupt


def _remove_scratch() -> None:
    """Remove the process's temporary files, where the module that makes them has been imported."""
    scratch = sys.modules.get("tunebench.tuner.scratch")
    if (remove := getattr(scratch, "remove_own", None)) is not None:
        remove()


def _tell(number: signal.Signals) -> int:
    """Print why the process ends, and return the exit code for it."""
    line = f"tunebench: {_ENDINGS[number]}\n"
    with suppress(OSError):  # nobody may be there to read it
        os.write(2, line.encode())
    return 128 + number


if __name__ == "__main__":
    main()
