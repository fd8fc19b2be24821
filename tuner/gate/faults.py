"""Exceptions of models: the contender's is a refusal, the reference's means that there is nothing to compare with."""

from __future__ import annotations

from tunebench.tuner.errors import CompileError, LaunchError, UserError

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


class ReferenceRefusal(UserError):
    """The reference does not take these inputs, so that there is nothing to compare with."""
