"""Runs a command: where every failure becomes one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TextIO, cast

import typer

from tunebench.db.connection.location import without_secrets
from tunebench.studies.display.terminal import one_line
from tunebench.tuner.errors import InternalError, TunebenchError, UserError
from tunebench.tuner.first_lines import quiet_torch

INTERRUPTED = 130
"""The exit code after Ctrl-C; the line about it is printed where the signal is handled."""
_BUG = 3
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run() -> int:
    """Run the command line and return its exit code.

    Exit codes: 0 done, 1 the answer is no, 2 the question was wrong, 3 tunebench itself is wrong, 130 Ctrl-C.
    """
    quiet_torch()
    try:
        closed = _fill_closed_streams()
        code = _run_command()
        sys.stdout.flush()
        if closed:
            code = _say("standard output is closed, so what there was to print is lost: send it to /dev/null", 2)
    except UserError as error:
        code = _say(str(error), 2)
    except InternalError as error:
        code = _bug(error)
    except TunebenchError as error:
        code = _say(str(error), 1)
    except SystemExit as ending:
        # Typer's own answer to a reader that has gone is the exit code 1, which here means "no".
        code = _input_or_output(ending.__context__) if isinstance(ending.__context__, OSError) else 2
    except typer.TyperException as error:
        code = _say(_usage(error), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except MemoryError:
        code = _say("there is not enough memory for this: ask for less, or free some", 2)
    except OSError as error:
        code = _input_or_output(error)
    except Exception as error:  # noqa: BLE001 (the process boundary)
        code = _bug(error)
    return code


def _run_command() -> int:
    from tunebench.studies.faces.cli import app

    ending = typer.main.get_command(app).main(prog_name="tunebench", standalone_mode=False)
    return ending if isinstance(ending, int) else 0


def _say(message: str, code: int) -> int:
    """Print one line on standard error, whatever has become of that; no secret of a database's URL is in it."""
    with contextlib.suppress(OSError):
        print(f"tunebench: {without_secrets(one_line(message))}", file=sys.stderr, flush=True)
    return code


def _usage(error: typer.TyperException) -> str:
    """Return what is wrong with the command line, and where to read what is right."""
    command = getattr(getattr(error, "ctx", None), "command_path", "tunebench")
    return f"{error.format_message().rstrip('.')} (see '{command} --help')"


def _input_or_output(error: OSError) -> int:
    """Say what went wrong with a file, a pipe or a disk, where no command has said more."""
    if isinstance(error, BrokenPipeError) and _nobody_reads():
        # As `head` does to every program: it has what it wanted.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    if error.filename is not None:
        return _say(f"{error.filename}: {error.strerror}", 2)
    if error.errno in _OUTPUT_ERRORS:
        _abandon_output()
        return _say(f"the output cannot be written: {error.strerror}", 2)
    return _bug(error)


def _nobody_reads() -> bool:
    """Whether the other end of standard output or standard error is closed."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _abandon_output() -> None:
    """Let Python's last flush succeed; what it could not write is lost, and has been reported."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _bug(error: Exception) -> int:
    """Keep the traceback in a file, and say which."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    try:
        file = _keep(error)
    except OSError:
        file = None
    where = f"its traceback is in {file}: please report it with that file" if file else "please report it"
    return _say(f"this is an error of tunebench, not yours: {what:.300}; {where}", _BUG)


def _keep(error: Exception) -> Path:
    import platformdirs

    name = f"traceback-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    text = without_secrets("".join((f"{sys.argv!r}\n", *traceback.format_exception(error))))
    file = Path(platformdirs.user_cache_dir("tunebench")) / "tracebacks" / name
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        file = Path(tempfile.mkdtemp(prefix="tunebench-")) / name
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
    return file


def _fill_closed_streams() -> bool:
    """Put `/dev/null` in the place of standard streams that are closed, or a database would get their numbers.

    A terminal that lacks a character is shown its escape.

    Returns:
        Whether standard output was closed.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    closed = sys.stdout is None
    sys.stdout, sys.stderr = sys.stdout or _null("w"), sys.stderr or _null("w")
    sys.stdin = sys.stdin or _null("r")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return closed


def _null(mode: str) -> TextIO:
    return cast(TextIO, Path(os.devnull).open(mode, encoding="utf-8"))
