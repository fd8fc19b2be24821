"""Rules for the choice of what runs, and for its accuracy: for a program, a module or a block.

What is asked for around a call goes before what its module asks for, and that before the program's.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Never

from tunebench.tuner.problem import Accuracy


class Policy(enum.StrEnum):
    """The rule for which configurations may serve a call."""

    BEST = "best"
    """The configuration that was measured for the problem on this kind of device, and conclusively compared with the
    reference; for any other problem the winner of a duel with the reference, on the call's own inputs."""
    RECORDED = "recorded"
    """The nearest result that there is, or the default, without a duel; the reference where there is none that was
    measured under the settings of PyTorch's that the program has."""
    EXACT = "exact"
    """The configuration that was measured for the problem on this kind of device, else the reference."""
    REFERENCE = "reference"
    """The reference's own operations."""
    TUNE = "tune"
    """As `best`, and a problem that was not measured on this kind of device is tuned when it is first met: the call
    waits for a study of so many seconds in a process of its own, whose results are recorded."""

    @classmethod
    def _missing_(cls, value: object) -> Never:
        raise ValueError(f"{value!r} is no policy: use one of {', '.join(cls)}")


@dataclass(frozen=True)
class Rules:
    """The settings that decide what serves a call; None leaves it to the next level.

    Equal rules are one object, so that a call need not compare them.
    """

    policy: Policy | None = None
    accuracy: Accuracy | None = None


_NOTHING = Rules()
_every = {_NOTHING: _NOTHING}


def _changed(rules: Rules, policy: Policy | str | None, accuracy: Accuracy | str | None) -> Rules:
    """Return the rules with those that are not None."""
    if policy is not None:
        rules = replace(rules, policy=Policy(policy))
    if accuracy is not None:
        rules = replace(rules, accuracy=Accuracy(accuracy))
    return _every.setdefault(rules, rules)


of_program = _changed(_NOTHING, Policy.BEST, Accuracy.TOLERANCE)
"""The program's own."""
_of_block: ContextVar[Rules] = ContextVar("tunebench_rules", default=_NOTHING)
of_block = _of_block.get
"""The rules of the blocks around a call."""
have_blocks = False
"""Whether any block had rules so far: until then no call needs to ask for its own."""
_program_waits = False
_program_seconds = 30.0
_block_waits: ContextVar[bool | None] = ContextVar("tunebench_wait", default=None)
_block_seconds: ContextVar[float | None] = ContextVar("tunebench_seconds", default=None)


def set_policy(policy: Policy | str | None = None, *, wait: bool | None = None, seconds: float | None = None) -> None:
    """Set the policy of every tuned model of this program that has none of its own.

    Args:
        policy: None leaves it as it is.
        wait: whether a call waits while its kernel is built; otherwise, as at first, the reference's operations serve
            meanwhile. None leaves it as it is.
        seconds: of the search, for each problem that the policy `tune` tunes; at first 30. None leaves it as it is.

    Raises:
        ValueError: there is no policy of that name, or no time to tune in.
    """
    # They are the program's, as torch's own flags are.
    global of_program, _program_waits, _program_seconds  # noqa: PLW0603
    of_program = _changed(of_program, policy, None)
    if wait is not None:
        _program_waits = wait
    if seconds is not None:
        _program_seconds = _positive(seconds)


def set_accuracy(accuracy: Accuracy | str) -> None:
    """Set how exact every tuned model of this program is that has no accuracy of its own; at first `tolerance`.

    Raises:
        ValueError: there is no accuracy of that name.
    """
    global of_program  # noqa: PLW0603
    of_program = _changed(of_program, None, accuracy)


@contextmanager
def use_policy(
    policy: Policy | str | None = None, *, wait: bool | None = None, seconds: float | None = None
) -> Iterator[None]:
    """Set the policy of every call in a block, whatever the module or the program have.

    Args:
        policy, wait, seconds: as of `set_policy`; what is None stays what it was outside the block.

    Raises:
        ValueError: there is no policy of that name, or no time to tune in.
    """
    seconds = _block_seconds.get() if seconds is None else _positive(seconds)
    with _in_block(policy, None):
        wait_token = _block_waits.set(_block_waits.get() if wait is None else wait)
        seconds_token = _block_seconds.set(seconds)
        try:
            yield
        finally:
            _block_waits.reset(wait_token)
            _block_seconds.reset(seconds_token)


@contextmanager
def use_accuracy(accuracy: Accuracy | str) -> Iterator[None]:
    """Set the accuracy of every call in a block, whatever the module or the program have.

    Raises:
        ValueError: there is no accuracy of that name.
    """
    with _in_block(None, accuracy):
        yield


@contextmanager
def _in_block(policy: Policy | str | None, accuracy: Accuracy | str | None) -> Iterator[None]:
    global have_blocks  # noqa: PLW0603 - for good: a context that a block's task has copied outlives the block
    have_blocks = have_blocks or policy is not None or accuracy is not None
    token = _of_block.set(_changed(_of_block.get(), policy, accuracy))
    try:
        yield
    finally:
        _of_block.reset(token)


def policy_for(own: Policy | str | None) -> Policy:
    """Return the policy of a call of a module with that policy of its own.

    Raises:
        ValueError: there is no policy of that name.
    """
    return Policy(of_block().policy or own or of_program.policy or Policy.BEST)


def accuracy_for(own: Accuracy | str | None) -> Accuracy:
    """Return the accuracy of a call of a module with that accuracy of its own.

    Raises:
        ValueError: there is no accuracy of that name.
    """
    return Accuracy(of_block().accuracy or own or of_program.accuracy or Accuracy.TOLERANCE)


def waits_for_builds(own: bool | None) -> bool:
    """Return whether a call of a module with that setting of its own waits while its kernel is built."""
    of_block = _block_waits.get()
    if of_block is not None:
        return of_block
    return _program_waits if own is None else own


def seconds_to_tune() -> float:
    """Return how long a study of a problem may search that a call tunes."""
    return _block_seconds.get() or _program_seconds


def _positive(seconds: float) -> float:
    if not 0 < seconds < math.inf:
        raise ValueError(f"{seconds} seconds to tune in: give a positive number")
    return seconds
