"""What models raise: the contender's becomes a refusal, the reference's means that there is nothing to compare with."""

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
"""What a model raises that cannot do what it is asked; anything else is a fault of the gate."""


class ReferenceRefusal(UserError):
    """The reference does not take these inputs, so that there is nothing to compare with."""
