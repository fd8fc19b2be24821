"""`python -m tunebench` and the `tunebench` command.

Whatever takes time is imported late, so that a signal is answered from the start.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

_ENDINGS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "the terminal is gone"}

_received = signal.SIGINT


def main() -> NoReturn:
    """Run the command line; see `tunebench.studies.faces.cli.run`.

    Ctrl-C, SIGTERM and SIGHUP end it in one line, with the exit codes 130, 143 and 129.
    """
    for number in _ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as it is under nohup
            signal.signal(number, _answer)
    try:
        from tunebench.studies.faces.cli.run import INTERRUPTED, run

        code = run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    for number in _ENDINGS:
        signal.signal(number, signal.SIG_IGN)  # nothing is left to end
    if code == INTERRUPTED:
        code = _tell(_received)
    sys.exit(code)


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
