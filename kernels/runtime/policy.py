"""How far tuned models may go in choosing what runs: for a program, a module, or the calls of a block."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Policy(enum.StrEnum):
    """What may serve a call."""

    BEST = "best"
    """What was measured for the problem on this kind of device; for any other problem the winner of a duel with the
    reference, on the call's own inputs."""
    RECORDED = "recorded"
    """The nearest result that there is, or the default, without a duel."""
    EXACT = "exact"
    """What was measured for the problem on this kind of device, else the reference."""
    REFERENCE = "reference"
    """The reference's own operations."""


_of_program = Policy.BEST
_of_block: ContextVar[Policy | None] = ContextVar("tunebench_policy", default=None)


def set_policy(policy: Policy | str) -> None:
    """The policy of every tuned model of this program that has none of its own.

    Raises:
        ValueError: there is no policy of that name.
    """
    global _of_program  # noqa: PLW0603 - it is the program's, as torch's own flags are
    _of_program = Policy(policy)


@contextmanager
def use_policy(policy: Policy | str) -> Iterator[None]:
    """The policy of every call in a block, whatever the module or the program have.

    Raises:
        ValueError: there is no policy of that name.
    """
    token = _of_block.set(Policy(policy))
    try:
        yield
    finally:
        _of_block.reset(token)


def policy_for(own: Policy | None) -> Policy:
    """The policy of a call of a module with that policy of its own."""
    return _of_block.get() or own or _of_program
