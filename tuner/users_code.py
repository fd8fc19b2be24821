"""A user's own files can raise anything: it becomes one line that says what, and in which line of which file."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from tunebench.tuner.errors import CompileError, KernelFolderError, LaunchError, TunebenchError, UserError, first_line

MODEL_FILE = "model.py"
"""The file of a kernel's folder that declares the kernel."""

_EXTRAS = {"triton": "triton"}
"""tunebench's extras that bring a package which a kernel may import."""

_OWN_MODULES = re.compile(r"tunebench\.kernels\.runtime\.folders\.[0-9a-f]+\b\.?")
"""The prefix of the name of a module in a user's folder (see `kernels/runtime/folders.py`): nobody wrote it."""

_COMPILERS = re.compile(r"\berror: |: error\b|\bfatal error\b")
"""The beginning of what g++, nvcc and ptxas say of an error."""

_OWN_MESSAGES = (UserError, LaunchError, CompileError)
"""tunebench's errors that the code of a user causes: their text stands as it is, behind the place."""


class UsersCodeError(KernelFolderError):
    """Code of a user's own that raised; the message has the place."""


class ReportedError(RuntimeError):
    """An exception that a user's code raised in another process, as one line."""


@contextlib.contextmanager
def users_code(what: str, folder: Path) -> Iterator[None]:
    """Whatever a user's code raises in this block, as an error of one line.

    Args:
        what: is run here, for the message, such as `problem()`.
        folder: where the user's files are, or the one file.

    Raises:
        UsersCodeError: something was raised; the message names file and line.
        TunebenchError: an error that is not the code's.
    """
    try:
        yield
    except UsersCodeError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, TunebenchError) and not isinstance(error, _OWN_MESSAGES):
            raise
        raise UsersCodeError(told(error, what, folder)) from error


def told(error: BaseException, what: str, folder: Path) -> str:
    """An exception in one line: the last line of the user's own that it came through, and what it says."""
    text = described(error)
    place = place_of(error, folder)
    if isinstance(error, _OWN_MESSAGES):
        text = first_line(error)
        return text if text.startswith(str(folder)) else f"{place or folder}: {text}"
    return f"{place or folder}: {what}: {text}"


def placed(error: BaseException, folder: Path) -> str:
    """An exception in one line, behind the last line of the user's own that it came through."""
    place = place_of(error, folder)
    return described(error) if place is None else f"{place}: {described(error)}"


def place_of(error: BaseException, folder: Path) -> str | None:
    """The file and line, below a folder, that an exception came from last; None where it came through none."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"
    folder = folder.resolve()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename).resolve()
        if folder in (file, *file.parents):
            return f"{frame.filename}:{frame.lineno}"
    return None if error.__cause__ is None else place_of(error.__cause__, folder)


def described(error: BaseException) -> str:
    """An exception in one line, without its place; of another process's, with it."""
    if isinstance(error, ReportedError):
        return str(error)
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error).strip()
    except Exception:  # noqa: BLE001 - a class of the user's own may not even tell its text
        text = ""
    text = _OWN_MODULES.sub("", text)
    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
        text += f": pip install 'tunebench[{_EXTRAS[error.name]}]'"
    return f"{type(error).__name__}: {_first_line(text)}" if text else type(error).__name__


def _first_line(text: str) -> str:
    """The first line of a message, and of a build that failed the first that a compiler calls an error."""
    first, *more = text.splitlines()
    found = next((line.strip() for line in more if _COMPILERS.search(line)), None)
    return first if found is None else f"{first.partition(': [')[0][:200]}: {found[:300]}"
