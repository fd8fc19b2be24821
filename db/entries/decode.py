"""Makes the engine's values from stored text. A database may come from anyone, so everything in it is checked.

What tunebench does not write is a `DatabaseError`.
"""

from __future__ import annotations

import json
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import DatabaseError
from tunebench.tuner.problem import Problem

_Kind = TypeVar("_Kind", bound=StrEnum)


def problem_of(key: str, dtype: str, axes: object, options: object) -> Problem:
    """The problem of that key, its axes in the order in which the kernel names them."""
    if not (isinstance(axes, dict) and isinstance(options, dict)):
        raise _mismatch(key, "a problem")
    sizes_legal = all(type(size) is int and size >= 0 for size in axes.values())
    if not sizes_legal or not all(isinstance(option, str) for option in options.values()):
        raise _mismatch(key, "a problem")
    problem = Problem(axes, dtype, options)
    if problem.key != key:
        raise _mismatch(key, "a problem")
    return problem


def json_of(text: str, kind: str) -> object:
    """The value that JSON text says, which belongs to something of a kind."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError, TypeError):
        raise _mismatch(text, kind) from None


@lru_cache(maxsize=4096)
def configuration_of(key: str) -> Configuration:
    """The configuration of that key. Whether a kernel declares such values is for the kernel's space to say."""
    values = json_of(key, "a configuration")
    if not isinstance(values, dict) or not all(isinstance(v, bool | int | float | str) for v in values.values()):
        raise _mismatch(key, "a configuration")
    return Configuration(values)


def member_of(kind: type[_Kind], name: str) -> _Kind:
    """The member of an enumeration that a name says."""
    try:
        return kind(name)
    except ValueError:
        raise _mismatch(name, f"a {kind.__name__}") from None


def speed_up_of(*figures: object) -> tuple[float, float, float] | None:
    """A speed-up and its interval, where there is one."""
    match figures:
        case (None, None, None):
            return None
        case (float(value), float(low), float(high)):
            return value, low, high
    raise _mismatch(str(figures), "a speed-up")


def text_of(value: object) -> str | None:
    """Text, where there is any."""
    if value is None or isinstance(value, str):
        return value
    raise _mismatch(str(value), "text")


def _mismatch(key: str, kind: str) -> DatabaseError:
    return DatabaseError(f"the database holds {key!r:.80} as {kind}: it was not written by tunebench")
