"""Refusal of empty texts, wherever a user gives a name or a value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

from tunebench.tuner.errors import UserError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_OF_MODELS = ("inputs", "init_inputs")
"""Arguments that go into a user's model, which may be empty texts."""


def require_said(what: str, given: object) -> None:
    """Refuse a text that says nothing, also among the elements, names or values of what is given.

    An unset variable of a shell leaves such a text, and as a condition it would hold for everything.

    Args:
        what: what it is given for, as the user knows it.

    Raises:
        UserError: there is one.
    """
    if isinstance(given, Mapping):
        given = (*given, *given.values())
    for one in (given,) if isinstance(given, str) else given if isinstance(given, list | tuple | set) else ():
        if isinstance(one, str) and not one.strip():
            raise UserError(f"{what} is empty: say which, or leave it out")


def refusing_empty(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a function refuse empty texts among its arguments; see `require_said`."""
    signature = inspect.signature(function)

    @wraps(function)
    def checked(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        for name, given in signature.bind(*arguments, **named).arguments.items():
            if name not in _OF_MODELS:
                require_said(name, given)
        return function(*arguments, **named)

    return checked
