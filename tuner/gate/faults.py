"""Exceptions of models: the contender's is a refusal, the reference's means that there is nothing to compare with."""

from __future__ import annotations

import traceback
from pathlib import Path

from tunebench.tuner.errors import CompileError, InternalError, LaunchError, UserError
from tunebench.tuner.isolation import IsolationError
from tunebench.tuner.users_code import ReportedError, described

FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    CompileError,
    LaunchError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions of a model that cannot do what it is asked; anything else is a fault of the gate."""


_GATE = Path(__file__).resolve().parent
_RUN_MODELS = frozenset(
    f"{name}.py"
    for name in (
        "changes",
        "contender",
        "dispatch",
        "effort",
        "float64",
        "gradients",
        "indices",
        "launches",
        "memory",
        "model",
        "on_streams",
        "options",
        "questions",
        "sources",
        "truth",
    )
)
"""Files of the gate in which what a model is, or has returned, may raise."""


def require_models_own(error: BaseException) -> None:
    """Return where an exception came out of a model or its file, in this process or another.

    Raises:
        InternalError: it came out of the gate's own code.
    """
    if isinstance(error, ReportedError | IsolationError) or error.__traceback__ is None:
        return
    place = traceback.extract_tb(error.__traceback__)[-1]
    file = Path(place.filename).resolve()
    if _GATE in file.parents and file.name not in _RUN_MODELS:
        raise InternalError(f"{described(error)} ({file.name}:{place.lineno})") from error


class ReferenceRaisedError(ReportedError):
    """An exception that a reference's code raised in its own process: whatever is on trial has no part in it."""


class ReferenceRefusal(UserError):
    """The reference does not take these inputs, so that there is nothing to compare with."""
