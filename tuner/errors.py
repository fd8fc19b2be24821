"""Every error tunebench raises on purpose.

`UserError` and its children are questions that were wrong: the command line prints their one line and exits with 2.
The stage errors (`CompileError`, `LaunchError`) are answers about a variant: they become a trial's status.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable
from typing import TypeVar, overload

Member = TypeVar("Member", bound=enum.StrEnum)

_LONGEST_NAME = 100
"""The longest name that a message shows whole."""


class TunebenchError(Exception):
    """Root of tunebench's own errors."""


class UserError(TunebenchError):
    """The request cannot be carried out as asked; the message is one line: what is wrong, what is legal, what to do."""


class InternalError(TunebenchError):
    """A fault of tunebench itself, which says nothing of what was asked about."""


def _shown(name: str) -> str:
    short = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    return short if short.isprintable() else repr(short)[1:-1]


class UnknownNameError(UserError):
    """A name that is not one of a known set; the message offers the nearest legal names."""

    def __init__(self, kind: str, name: str, legal: Iterable[str]) -> None:
        # Names may come from a database, which is anyone's: one line of moderate length, and nothing a terminal obeys.
        name, legal = _shown(name), sorted(map(_shown, legal))
        nearest = difflib.get_close_matches(name, legal, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
        super().__init__(f"unknown {kind} '{name}'{hint} (known: {', '.join(legal) or 'none'})")
        self.name = name
        self.nearest = tuple(nearest)
        self._arguments = (kind, name, tuple(legal))

    def __reduce__(self) -> tuple[type[UnknownNameError], tuple[str, str, tuple[str, ...]]]:
        """Pickle the error: it is also raised in worker processes."""
        return type(self), self._arguments


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; the name of its class where that is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@overload
def member_of(members: type[Member], kind: str, name: str) -> Member: ...


@overload
def member_of(members: type[Member], kind: str, name: str | None) -> Member | None: ...


def member_of(members: type[Member], kind: str, name: str | None) -> Member | None:
    """Return the member of an enumeration that has this value; None where none is named.

    Args:
        kind: what the enumeration is of, for the message.

    Raises:
        UnknownNameError: there is none.
    """
    if name is None:
        return None
    if name not in set(members):
        raise UnknownNameError(kind, name, members)
    return members(name)


class EmptySpaceError(UserError):
    """No configuration satisfies the constraints; the message names the constraint that emptied the space."""


class CompilerMissingError(UserError):
    """The compiler asked for is not on this machine; the message says how to get it."""


class DeviceMissingError(UserError):
    """The device asked for is not on this machine."""


class DatabaseError(UserError):
    """The database cannot be used: a newer revision, a foreign or corrupt file, an unreachable server."""


class DatabaseMissingError(DatabaseError):
    """There is no results database at the place named: nothing has been recorded yet."""


class StudyFileError(UserError):
    """A study file that cannot be read or says something that is not legal."""


class KernelFolderError(UserError):
    """A kernel folder that lacks a part or whose parts do not fit together."""


class CompileError(TunebenchError):
    """A variant that does not compile.

    Attributes:
        log: the compiler's full output.
    """

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, str]]:
        """Pickle the error: it is also raised in worker processes."""
        return type(self), (str(self), self.log)


class CompileTimeoutError(CompileError):
    """A compiler that was still running at its deadline."""


class CompilerKilledError(CompileError):
    """A compiler that was killed from outside, which says nothing of what it compiled."""


class DiskFullError(TunebenchError):
    """There is no room left to compile or to record; what was done is recorded, and the same command goes on."""


class LaunchError(TunebenchError):
    """A kernel that the device refused to launch or that failed while running."""


class ArgumentError(LaunchError):
    """A launch that is not what the source declares: of another entry point, or with other arguments."""


class CaptureError(LaunchError):
    """A forward that cannot be captured in a CUDA graph."""


class WorkerError(TunebenchError):
    """A study's worker process cannot go on; what was done is recorded, and the same command goes on."""


class OutOfTimeError(TunebenchError):
    """The study's time was over before a variant was: nothing is said of it, and a later run may try it again."""


class DeviceLostError(TunebenchError):
    """A variant left the device unusable for this process; a new process can go on."""
