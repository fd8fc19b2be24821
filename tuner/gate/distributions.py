"""Inputs that `get_inputs` does not draw: other distributions, and values that are not finite."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tunebench.tuner.gate.comparison import real
from tunebench.tuner.gate.values import mapped, own_part

InputChange = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def changed(value: Any, change: InputChange, seed: int) -> Any:
    """A tensor of floating-point or complex numbers with other values, in its own shape and layout; so are those within
    a list or the like.

    Anything else, such as indices, labels and masks, is what it was.
    """
    if not isinstance(value, torch.Tensor):
        numbers = itertools.count(seed)
        return mapped(value, lambda tensor: changed(tensor, change, next(numbers)))
    if not (value.is_floating_point() or value.is_complex()) or not value.numel():
        return value
    generator = torch.Generator(value.device).manual_seed(seed)
    part = own_part(value.detach())
    new = change(real(part), generator)
    if value.is_complex():
        new = torch.view_as_complex(new.to(part.real.dtype).contiguous())
    return torch.empty_like(part).copy_(new).expand(value.shape)


def all_changed(inputs: Sequence[Any], change: InputChange, seed: int = 0) -> tuple[Any, ...]:
    """Every input changed, see `changed`; each draws from a seed of its own, this one and those behind it."""
    return tuple(changed(value, change, seed + number) for number, value in enumerate(inputs))


def mixed_signs(value: Any, seed: int) -> Any:
    """The same magnitudes, half of them negative: sums cancel at their own length, where low precision shows.

    Which ones is drawn: signs in a pattern are gone from a product of two inputs that have the same.
    """
    return changed(value, _random_signs, seed)


def _random_signs(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    negative = torch.randint(2, value.shape, generator=generator, device=value.device, dtype=torch.bool)
    return torch.where(negative, -value, value)


def graded(value: Any, number: int) -> Any:
    """The same values, each times a factor from 1/4 to 1 that grows along the tensor, or falls.

    Whatever a model takes the mean of changes, and what was positive or a probability is so still.

    Args:
        number: of the input; neighbours are graded in opposite directions.
    """
    return changed(value, _falling if number % 2 else _growing, 0)


def _growing(value: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    factors = torch.linspace(0.25, 1.0, value.numel(), device=value.device)
    return (value.flatten() * factors).reshape(value.shape)


def _falling(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return _growing(value.flatten().flip(0), generator).flip(0).reshape(value.shape)


def _uniform(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(value.shape, generator=generator, device=value.device)


def _normal(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(value.shape, generator=generator, device=value.device)


def _wide_range(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Both signs, magnitudes from 1e-3 to 1e3: half types hold them, and sums lose the small ones."""
    return _normal(value, generator).sign() * 10.0 ** (6.0 * _uniform(value, generator) - 3.0)


def _one_hot(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One 1 in each row of the last axis, zeros elsewhere: what goes where shows."""
    if not value.dim():
        return torch.ones_like(value)
    picks = torch.randint(value.shape[-1], value.shape[:-1], generator=generator, device=value.device)
    return torch.nn.functional.one_hot(picks, value.shape[-1])


def _eighths(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Whole numbers, halves, and what lies between: products and short sums are exact, and roundings meet ties."""
    return torch.randint(-64, 65, value.shape, generator=generator, device=value.device) / 8


def _offset(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Far from zero beside their spread: the mean of squares less the square of the mean is no variance of these."""
    return _normal(value, generator) + 1000.0


def _twentieths(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers near zero, where many a function is nearly a straight line."""
    return _normal(value, generator) / 20


def _zeros(value: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    return torch.zeros_like(value)


def _below(exponent: float) -> InputChange:
    """Numbers far below what a kernel may add or compare with, and not subnormal: about the smallest normal number to
    this power."""

    def change(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        size: float = torch.finfo(value.dtype).tiny ** exponent
        return _normal(value, generator).double() * size

    return change


def _large(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Beyond what fits into 32 bits, and small enough to be squared: 4e9 in float32."""
    size: float = torch.finfo(value.dtype).max ** 0.25
    return _normal(value, generator).double() * size


def other_masks(value: Any, seed: int) -> Any:
    """A tensor of truth values in another order; so are those within a list or the like. Anything else is what it
    was."""
    if not isinstance(value, torch.Tensor):
        return mapped(value, lambda tensor: other_masks(tensor, seed))
    if value.dtype is not torch.bool or not value.numel():
        return value
    generator = torch.Generator(value.device).manual_seed(seed)
    part = own_part(value)
    order = torch.randperm(part.numel(), generator=generator, device=value.device)
    return torch.empty_like(part).copy_(part.flatten()[order].reshape(part.shape)).expand(value.shape)


def at_ends(draws: Sequence[Sequence[Any]], *, largest: bool) -> tuple[Any, ...]:
    """The first draw with integers as large, or as small, as some draws have them in such places: sums are largest so.

    What is valid for a row, or a column, is so in all of it. Not integers that are sorted, or each there once.
    """
    return tuple(_at_end(values, largest=largest) for values in zip(*draws, strict=True))


def _at_end(values: Sequence[Any], *, largest: bool) -> Any:
    first = values[0]
    if not (is_integer(first) and first.numel() and first.dim()) or any(one.shape != first.shape for one in values):
        return first
    drawn = torch.stack([value.long() for value in values])
    if any(hold_together(drawn, axis) for axis in range(1, drawn.dim())):
        return first
    reduce, combine = (torch.amax, torch.minimum) if largest else (torch.amin, torch.maximum)
    axes = range(drawn.dim())
    ends = [reduce(drawn, [other for other in axes if other != axis], keepdim=True)[0] for axis in axes[1:]]
    end = ends[0]
    for other in ends[1:]:
        end = combine(end, other)
    return torch.empty_like(first).copy_(end.expand(first.shape))


def hold_together(value: torch.Tensor, axis: int) -> bool:
    """Whether integers are sorted along an axis, or each there once: one alone cannot be another."""
    ordered = value.sort(axis).values
    return value.shape[axis] > 2 and (torch.equal(ordered, value) or bool((ordered.diff(dim=axis) > 0).all()))


def otherwise(values: Sequence[Any], seed: int) -> Sequence[Any]:
    """Other values of an input that every draw has alike: of a flag, of a number that is no size, such as an axis, of a
    mask, or of numbers that are one, such as lengths. Nothing where it is no such input."""
    first = values[0]
    if isinstance(first, bool | int):
        alike = all(type(value) is type(first) and value == first for value in values)
        return [other for other in _OTHERS[type(first)] if other != first] if alike and first in (-1, 0, 1) else []
    if not isinstance(first, torch.Tensor) or not first.numel() or not (first.dtype is torch.bool or is_integer(first)):
        return []
    number = int(first.flatten()[0])
    if not all(bool((value == number).all()) for value in values) or (is_integer(first) and number < 2):
        return []
    generator = torch.Generator(first.device).manual_seed(seed)
    if first.dtype is torch.bool:
        other = torch.rand(first.shape, generator=generator, device=first.device) < 0.7
    else:
        other = torch.randint(1, number + 1, first.shape, generator=generator, device=first.device)
    return [torch.empty_like(first).copy_(other)]


_OTHERS: Mapping[type, Sequence[int]] = {bool: (False, True), int: (-1, 0, 1)}
"""The values that a flag, or a number that is no size, takes; larger ones may be places beyond a tensor's end."""


def large_integers(inputs: Sequence[Any], factor: int, seed: int) -> tuple[Any, ...]:
    """Integers of both signs, so many times as large as fits twice into their type, or as float32 knows apart."""

    def large(number: int, value: Any) -> Any:
        if not (is_integer(value) and value.numel()):
            return value
        generator = torch.Generator(value.device).manual_seed(seed + number)
        most = min(torch.iinfo(value.dtype).max // 4, 1 << 25)
        least = -most if value.dtype.is_signed else 0
        drawn = torch.randint(least, most, value.shape, generator=generator, device=value.device)
        return torch.empty_like(value).copy_(drawn * factor)

    return tuple(large(number, value) for number, value in enumerate(inputs))


def is_integer(value: Any) -> bool:
    """Whether a value is a tensor of integers."""
    if not isinstance(value, torch.Tensor):
        return False
    return not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)


OFFSET = "an offset of 1000"

DISTRIBUTIONS: Mapping[str, InputChange] = {
    "normal": _normal,
    "wide range": _wide_range,
    "one-hot": _one_hot,
    "eighths": _eighths,
    OFFSET: _offset,
    "twentieths": _twentieths,
    "zeros": _zeros,
    "small": _below(0.4),  # 5e-16 in float32, whose squares are normal numbers as well
    "tiny": _below(0.8),
    "large": _large,
}
"""Finite inputs, by name."""


def _sprinkled(*numbers: float) -> InputChange:
    """Numbers put in a few places, the first and the last among them, where vector and tail code differ."""

    def change(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        flat = _normal(value, generator).to(value.dtype).flatten()
        places = torch.randint(flat.numel(), (5,), generator=generator, device=value.device)
        places[0], places[1] = 0, flat.numel() - 1
        for position, place in enumerate(places):
            flat[place] = numbers[position % len(numbers)]
        return flat.reshape(value.shape)

    return change


def zeros_among(sign: float) -> InputChange:
    """Zeros of this sign among other numbers, in every third place."""

    def change(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        flat = _normal(value, generator).flatten()
        flat[::3] = math.copysign(0.0, sign)
        return flat.reshape(value.shape)

    return change


def _denormal(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers below the smallest normal one, which a kernel compiled to flush them loses."""
    return _normal(value, generator).clamp(-4, 4).double() * (torch.finfo(value.dtype).tiny / 8)


NON_FINITE: Mapping[str, InputChange] = {
    "NaN": _sprinkled(float("nan")),
    "+Inf": _sprinkled(float("inf")),
    "-Inf": _sprinkled(float("-inf")),
    "Inf of both signs": _sprinkled(float("inf"), float("-inf")),
    "denormals": _denormal,
}
"""Values at the edges of a floating-point type, by name."""
