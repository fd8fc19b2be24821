"""The user's own files, run where they may crash or hang before a command runs them itself."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tunebench.tuner.errors import UserError
from tunebench.tuner.isolation import (
    DeathError,
    HungError,
    Listen,
    asked_again_if_killed,
    is_from_outside,
    is_watched,
    run_isolated,
)
from tunebench.tuner.users_code import UsersCodeError

VARIABLE = "TUNEBENCH_LOAD_SECONDS"
"""The environment variable that says how long a user's files may take to load, and to answer once."""

_LOAD_SECONDS = 120.0
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in ', re.MULTILINE)

Answer = TypeVar("Answer")


def load_seconds() -> float:
    """Return how many seconds a user's files may take to load, and to answer once.

    Raises:
        UserError: the environment says what is no number of seconds.
    """
    given = os.environ.get(VARIABLE, "")
    try:
        seconds = float(given or _LOAD_SECONDS)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UserError(f"{VARIABLE} is '{given}': give a number of seconds, or unset it")
    return seconds


def watched(
    place: Path,
    what: str,
    function: Callable[..., Answer],
    *arguments: object,
    listen: Listen = lambda _: None,
) -> Answer:
    """Return the result of a function that runs a user's files; it is called in a process that may crash or hang.

    Where this process is such a one itself, it is called here.

    Args:
        place: the user's folder or file.
        what: it does, for the message, such as `loading it`.
        listen: see `run_isolated`.

    Raises:
        UsersCodeError: the process has died, or was still running after `load_seconds()`.
        TunebenchError: the function raised it.
    """
    seconds = load_seconds()
    if is_watched():
        return function(*arguments)
    try:
        return asked_again_if_killed(lambda: run_isolated(seconds, function, *arguments, listen=listen))
    except DeathError as death:
        raise ended(death, what, place) from death


def ended(death: DeathError, what: str, place: Path) -> UsersCodeError:
    """Return the error of a process that ran a user's files, in one line: where it was, how it ended, what to do."""
    whole = place.resolve()
    frames = ((Path(file), line) for file, line in _FRAME.findall(death.trace))
    where = next(
        (f"{file}:{line}" for file, line in frames if whole in (file.resolve(), *file.resolve().parents)), place
    )
    if isinstance(death, HungError):
        advice = f"; mend it, or give it longer by {VARIABLE}=SECONDS"
    else:
        advice = "" if is_from_outside(death) else "; mend it: it would have ended tunebench itself"
    return UsersCodeError(f"{where}: {what}: {death}{advice}")
