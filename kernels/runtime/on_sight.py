"""Tuning a problem when it is first met. Kernels know no studies: the package installs whoever can run one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunebench.tuner.device import Device
    from tunebench.tuner.kernel import Kernel
    from tunebench.tuner.problem import Problem

TuneProblem = Callable[["Kernel", "Problem", "Device", float], None]
"""A function that records a study of a problem for so many seconds; TunebenchError where it cannot be tuned."""

_tune_problem: TuneProblem | None = None


def install(tune_problem: TuneProblem) -> None:
    """Have problems tuned by this from now on."""
    global _tune_problem  # noqa: PLW0603 - the package has one
    _tune_problem = tune_problem


def tune_on_sight(kernel: Kernel, problem: Problem, device: Device, seconds: float) -> None:
    """Tune a problem.

    Raises:
        TunebenchError: it cannot be tuned.
    """
    assert _tune_problem is not None, "the package installs it"
    _tune_problem(kernel, problem, device, seconds)
