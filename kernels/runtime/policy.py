"""Rules for the choice of what runs, and for its accuracy: for a program, a module or a block.

What is asked for around a call goes before what its module asks for, and that before the program's.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Never

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

    Attributes:
        wait: whether a call waits while its kernel is built.
        seconds: of the whole study of each problem that the policy `tune` tunes.
        steps: whether steps of training may run by kernels.
    """

    policy: Policy | None = None
    accuracy: Accuracy | None = None
    wait: bool | None = None
    seconds: float | None = None
    steps: bool | None = None

    def changed(self, **values: Any) -> Rules:
        """Return the rules with those values that are not None; ValueError where one is not legal."""
        given = {name: _LEGAL[name](value) for name, value in values.items() if value is not None}
        rules = replace(self, **given)
        return _every.setdefault(rules, rules)


def _positive(seconds: float) -> float:
    if not 0 < seconds < math.inf:
        raise ValueError(f"{seconds} seconds to tune in: give a positive number")
    return seconds


_LEGAL: dict[str, Callable[[Any], Any]] = {
    "policy": Policy,
    "accuracy": Accuracy,
    "wait": bool,
    "seconds": _positive,
    "steps": bool,
}
_NOTHING = Rules()
_every = {_NOTHING: _NOTHING}
of_program = _NOTHING.changed(policy=Policy.BEST, wait=False, seconds=30.0, steps=True)
"""The program's own: a value for everything but the accuracy, which follows torch's settings until one is set."""
_of_block: ContextVar[Rules] = ContextVar("tunebench_rules", default=_NOTHING)
of_block = _of_block.get
"""The rules of the blocks around a call."""
have_blocks = False
"""Whether any block had rules so far: until then no call needs to ask for its own."""


def set_policy(
    policy: Policy | str | None = None,
    *,
    wait: bool | None = None,
    seconds: float | None = None,
    steps: bool | None = None,
) -> None:
    """Set the policy of every tuned model of this program that has none of its own.

    Args:
        policy: None leaves it as it is.
        wait: whether a call waits while its kernel is built; otherwise, as at first, the reference's operations serve
            meanwhile. None leaves it as it is.
        seconds: of the whole study of each problem that the policy `tune` tunes; at first 30. None leaves it as it is.
        steps: whether steps of training may run by kernels, as at first they may. None leaves it as it is.

    Raises:
        ValueError: there is no policy of that name, or no time to tune in.
    """
    _set(policy=policy, wait=wait, seconds=seconds, steps=steps)


def set_accuracy(accuracy: Accuracy | str) -> None:
    """Set how exact every tuned model of this program is that has no accuracy of its own.

    Until it is called, `tf32` where torch's settings permit TF32 in matrix products, otherwise `tolerance`.

    Raises:
        ValueError: there is no accuracy of that name.
    """
    _set(accuracy=accuracy)


def _set(**values: Any) -> None:
    global of_program  # noqa: PLW0603 - they are the program's, as torch's own flags are
    of_program = of_program.changed(**values)


@contextmanager
def use_policy(
    policy: Policy | str | None = None,
    *,
    wait: bool | None = None,
    seconds: float | None = None,
    steps: bool | None = None,
) -> Iterator[None]:
    """Set the policy of every call in a block, whatever the module or the program have.

    Args:
        policy, wait, seconds, steps: as of `set_policy`; what is None stays what it was outside the block.

    Raises:
        ValueError: there is no policy of that name, or no time to tune in.
    """
    with _in_block(policy=policy, wait=wait, seconds=seconds, steps=steps):
        yield


@contextmanager
def use_accuracy(accuracy: Accuracy | str) -> Iterator[None]:
    """Set the accuracy of every call in a block, whatever the module or the program have.

    Raises:
        ValueError: there is no accuracy of that name.
    """
    with _in_block(accuracy=accuracy):
        yield


@contextmanager
def _in_block(**values: Any) -> Iterator[None]:
    global have_blocks  # noqa: PLW0603 - for good: a context that a block's task has copied outlives the block
    rules = of_block().changed(**values)
    have_blocks = have_blocks or rules is not _NOTHING
    token = _of_block.set(rules)
    try:
        yield
    finally:
        _of_block.reset(token)


def policy_for(own: Policy | str | None) -> Policy:
    """Return the policy of a call of a module with that policy of its own; ValueError where there is none."""
    rule = of_block().policy or own or of_program.policy or Policy.BEST
    return rule if type(rule) is Policy else Policy(rule)  # an enum's constructor takes longer than all else here


def accuracy_for(own: Accuracy | str | None) -> Accuracy | None:
    """Return the accuracy asked for in a call of a module with that accuracy of its own; see `Accuracy.under`.

    Raises:
        ValueError: there is none of that name.
    """
    rule = of_block().accuracy or own or of_program.accuracy
    return rule if rule is None or type(rule) is Accuracy else Accuracy(rule)


def waits_for_builds(own: bool | None) -> bool:
    """Return whether a call of a module with that setting of its own waits while its kernel is built."""
    return bool(next(wait for wait in (of_block().wait, own, of_program.wait) if wait is not None))


def has_steps() -> bool:
    """Return whether steps of training may run by kernels."""
    steps = of_block().steps
    return bool(of_program.steps if steps is None else steps)


def seconds_to_tune() -> float:
    """Return how many seconds a study of a problem may take that a call tunes."""
    return of_block().seconds or of_program.seconds or math.inf
