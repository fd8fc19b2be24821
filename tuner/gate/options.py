"""Values for inputs that a module does without: found by calling it, since nothing else says what it takes."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.memory import same_bits
from tunebench.tuner.gate.truth import device_of_inputs
from tunebench.tuner.gate.values import Values, cloned, tensors_in
from tunebench.tuner.reference import seed_generators

_SECONDS = 1.0
_MOST_AXES = 3
_MOST_ELEMENTS = 1 << 16


def options_of(module: nn.Module, count: int) -> dict[str, Any]:
    """Return the inputs behind the first ones that have defaults, with these, up to the first that has none."""
    more = list(inspect.signature(module.forward).parameters.values())[count:]
    named = itertools.takewhile(lambda one: one.kind is one.POSITIONAL_OR_KEYWORD, more)
    return {one.name: one.default for one in named if one.default is not one.empty}


def values_for(module: nn.Module, inputs: Sequence[Any], option: str, number: float) -> list[Any]:
    """Return a value for an input that a module does without: one that it takes, and that shows in what it returns.

    Numbers come first, and where the module takes none, or says that it is a tensor, tensors of the sizes there are.

    Returns:
        Nothing where there is no such value, or none is found in a second.
    """
    parameter = inspect.signature(module.forward).parameters[option]
    without = _outcome(module, inputs, {})
    if without is None:
        return []
    is_tensor = "Tensor" in str(parameter.annotation)
    numbers = [] if is_tensor else _numbers(parameter.default, number)
    sized = isinstance(parameter.default, bool | int | float | str)
    tensors: Iterator[Any] = iter(()) if sized else _tensors(module, inputs, without)
    started = time.perf_counter()
    for value in itertools.chain(numbers, tensors):
        got = _outcome(module, inputs, {option: value})
        if got is not None and _differ(got, without):
            return [value]
        if time.perf_counter() - started > _SECONDS:
            break
    return []


def _numbers(default: Any, number: float) -> list[Any]:
    """Numbers in place of a default."""
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return [other for other in (default + 1, default - 1, 0, 1, 2) if other != default]
    if isinstance(default, float):
        return [number * default + 0.375, number]
    return [] if isinstance(default, str) else [number, 0, 1, -1]


def _tensors(module: nn.Module, inputs: Sequence[Any], without: Values) -> Iterator[Any]:
    """Yield tensors, and pairs of them, of the shapes of what is there and of other shapes of its sizes; then masks."""
    given, made = tensors_in(inputs), list(without.tensors.values())
    there = [tensor.shape for tensor in (*made, *given, *module.parameters())]
    sizes = sorted({1, *itertools.chain(*there)})
    product = (itertools.product(sizes, repeat=axes) for axes in range(1, _MOST_AXES + 1))
    shapes = list(dict.fromkeys([*map(tuple, there), *itertools.chain(*product)]))
    floating = [tensor for tensor in given if tensor.is_floating_point()]
    like = floating[0] if floating else torch.empty(0, device=device_of_inputs(inputs))
    generator = torch.Generator(like.device).manual_seed(0)
    for is_mask in (False, True):
        for shape in shapes:
            if math.prod(shape) > _MOST_ELEMENTS:
                continue
            value = torch.rand(shape, generator=generator, device=like.device)
            if is_mask:
                yield value < 0.7
                continue
            numbers = (value - 0.5).to(like.dtype)
            yield numbers
            yield (numbers, numbers + 0.25)


def _outcome(module: nn.Module, inputs: Sequence[Any], options: dict[str, Any]) -> Values | None:
    """What a copy of a module returns; None where it refuses such inputs."""
    with contextlib.suppress(*FAILURES):  # one that cannot be copied is asked itself
        module = copy.deepcopy(module)
    seed_generators(0, device_of_inputs(inputs))
    try:
        return Values.of(module(*cloned(inputs), **options))
    except FAILURES:
        return None


def _differ(one: Values, other: Values) -> bool:
    if list(one.tensors) != list(other.tensors):
        return True
    pairs = ((tensor, other.tensors[path]) for path, tensor in one.tensors.items())
    return any(a.shape != b.shape or a.dtype != b.dtype or not same_bits(a, b) for a, b in pairs)
