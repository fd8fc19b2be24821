"""Inputs that `get_inputs` does not draw: other distributions, and values that are not finite."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tunebench.tuner.gate.values import mapped, own_part

InputChange = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def changed(value: Any, change: InputChange, seed: int) -> Any:
    """A floating-point tensor with other values, in its own shape and layout; so are those within a list or the like.

    Anything else, such as indices, labels and masks, is what it was.
    """
    if not isinstance(value, torch.Tensor):
        numbers = itertools.count(seed)
        return mapped(value, lambda tensor: changed(tensor, change, next(numbers)))
    if not value.is_floating_point() or not value.numel():
        return value
    generator = torch.Generator(value.device).manual_seed(seed)
    part = own_part(value.detach())
    return torch.empty_like(part).copy_(change(part, generator)).expand(value.shape)


def all_changed(inputs: Sequence[Any], change: InputChange, seed: int = 0) -> tuple[Any, ...]:
    """Every input changed, see `changed`; each draws from a seed of its own, this one and those behind it."""
    return tuple(changed(value, change, seed + number) for number, value in enumerate(inputs))


Places = tuple[torch.Tensor | None, ...]
"""Where each of some inputs has zeros that belong to the problem; None where it has none."""


def common_zeros(one: Sequence[Any], other: Sequence[Any]) -> Places:
    """Where two draws of inputs both have zeros, among other numbers: below the diagonal of a triangular matrix. Inputs
    that are zeros alone, such as a first state, may hold anything."""

    def places(value: Any, twin: Any) -> torch.Tensor | None:
        if not (isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout is torch.strided):
            return None
        if value.shape != twin.shape or own_part(value) is not value:
            return None
        zeros = (value == 0) & (twin == 0)
        return zeros if bool(zeros.any()) and not bool(zeros.all()) else None

    return tuple(places(value, twin) for value, twin in zip(one, other, strict=True))


def with_zeros(inputs: Sequence[Any], places: Places) -> tuple[Any, ...]:
    """The inputs with zeros in these places."""
    return tuple(
        value if zeros is None else value.masked_fill(zeros, 0.0) for value, zeros in zip(inputs, places, strict=True)
    )


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


OFFSET = "an offset of 1000"

DISTRIBUTIONS: Mapping[str, InputChange] = {
    "normal": _normal,
    "wide range": _wide_range,
    "one-hot": _one_hot,
    "eighths": _eighths,
    OFFSET: _offset,
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
