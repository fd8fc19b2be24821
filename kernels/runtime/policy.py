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
_program_waits = False
_block_waits: ContextVar[bool | None] = ContextVar("tunebench_wait", default=None)


def set_policy(policy: Policy | str | None = None, *, wait: bool | None = None) -> None:
    """The policy of every tuned model of this program that has none of its own.

    Args:
        policy: None leaves it as it is.
        wait: whether a call waits while its kernel is built; otherwise, as at first, the reference's operations serve
            meanwhile. None leaves it as it is.

    Raises:
        ValueError: there is no policy of that name.
    """
    global _of_program, _program_waits  # noqa: PLW0603 - they are the program's, as torch's own flags are
    if policy is not None:
        _of_program = Policy(policy)
    if wait is not None:
        _program_waits = wait


@contextmanager
def use_policy(policy: Policy | str | None = None, *, wait: bool | None = None) -> Iterator[None]:
    """The policy of every call in a block, whatever the module or the program have.

    Args:
        policy, wait: as of `set_policy`; what is None stays what it was outside the block.

    Raises:
        ValueError: there is no policy of that name.
    """
    policy_token = _of_block.set(_of_block.get() if policy is None else Policy(policy))
    wait_token = _block_waits.set(_block_waits.get() if wait is None else wait)
    try:
        yield
    finally:
        _of_block.reset(policy_token)
        _block_waits.reset(wait_token)


def policy_for(own: Policy | None) -> Policy:
    """The policy of a call of a module with that policy of its own."""
    return _of_block.get() or own or _of_program


def waits_for_builds(own: bool | None) -> bool:
    """Whether a call of a module with that setting of its own waits while its kernel is built."""
    of_block = _block_waits.get()
    if of_block is not None:
        return of_block
    return _program_waits if own is None else own
