"""Constraints that most kernels have, by name: each says what it looks at, so that none is written twice."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection

from tunebench.tuner.configuration import Value
from tunebench.tuner.device import MOST_BLOCKS, Device
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import Constraint, Predicate, parameters_of

_VECTOR_BYTES = 16


def vector_fits(vector_width: str = "vector_width", most_bytes: int = _VECTOR_BYTES) -> Constraint:
    """Require that a vector access of so many elements moves 16 bytes at most."""

    def holds(width: int, problem: Problem) -> bool:
        return width * problem.item_bytes <= most_bytes

    return Constraint(f"{vector_width}_is_at_most_{most_bytes}_bytes", _looking_at((vector_width, "problem"), holds))


def divides(tunable: str, axis: str) -> Constraint:
    """Require that the tunable's value divides the size of an axis."""

    def holds(value: int, problem: Problem) -> bool:
        return problem.axes[axis] % value == 0

    return Constraint(f"{tunable}_divides_{axis}", _looking_at((tunable, "problem"), holds))


def block_fits(*threads: str) -> Constraint:
    """Require that a block of so many threads (the product of several tunables) is within the device's limit."""

    def holds(*values: int | Device) -> bool:
        *sizes, device = values
        assert isinstance(device, Device)
        return math.prod(size for size in sizes if isinstance(size, int)) <= device.max_threads_per_block

    return Constraint(f"{'_times_'.join(threads)}_within_limit", _looking_at((*threads, "device"), holds))


def fills_warps(*threads: str) -> Constraint:
    """Require that a block of so many threads (the product of several tunables) is of whole warps of 32."""

    def holds(*sizes: int) -> bool:
        return math.prod(sizes) % 32 == 0

    return Constraint(f"{'_times_'.join(threads)}_fills_warps", _looking_at(threads, holds))


def grid_fits(axis: str, *per_block: str) -> Constraint:
    """Require that CUDA's limit allows the blocks for an axis of which one does the product of these tunables."""

    def holds(*values: int | Problem) -> bool:
        *sizes, problem = values
        assert isinstance(problem, Problem)
        return problem.axes[axis] <= MOST_BLOCKS * math.prod(size for size in sizes if isinstance(size, int))

    return Constraint("grid_within_limit", _looking_at((*per_block, "problem"), holds))


def shared_memory_fits(bytes_of: Callable[..., int]) -> Constraint:
    """Require that a block's shared memory is within the device's limit.

    Args:
        bytes_of: the bytes, from what its parameters name: tunables, `problem`.
    """
    names = parameters_of(bytes_of)

    def holds(*values: object) -> bool:
        *looked_at, device = values
        assert isinstance(device, Device)
        return bytes_of(*looked_at) <= device.max_shared_bytes

    return Constraint("shared_memory_within_limit", _looking_at((*names, "device"), holds))


def needs(
    tunable: str, value: Value, *, dtypes: Collection[str] | None = None, architectures: Collection[str] | None = None
) -> Constraint:
    """Allow a value for problems of these dtypes only, and for devices of these architectures; None for all."""

    def holds(chosen: Value, problem: Problem, device: Device) -> bool:
        right_type = dtypes is None or problem.dtype in dtypes
        return chosen != value or (right_type and (architectures is None or device.architecture in architectures))

    legal = "_or_".join([*(dtypes or ()), *(architectures or ())])
    return Constraint(f"{tunable}_{value}_needs_{legal}", _looking_at((tunable, "problem", "device"), holds))


def _looking_at(names: tuple[str, ...], predicate: Predicate) -> Predicate:
    """Return the predicate, as one whose parameters have these names."""
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
    vars(predicate)["__signature__"] = inspect.Signature(parameters)
    return predicate
