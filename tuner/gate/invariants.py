"""Inputs of a kind: what every draw of `get_inputs` shows, found in a few draws and kept by whatever it does not draw.

A matrix is symmetric, a row sums to one, borders are sorted: a file that is right for such inputs is right for its
problem, whatever it makes of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tunebench.tuner.gate.values import own_part

_LEAST = 8
"""Comparisons that have to hold in each draw: fewer may do so by chance."""
_FEW = 4
"""Rows, or places of any other axis, that are looked at first: of a tensor of no kind all else is spared."""
_ROUNDING: Mapping[torch.dtype, float] = {torch.float16: 1e-2, torch.bfloat16: 5e-2}
_MOST_ROWS_FACTORED = 512


@dataclass(frozen=True)
class Invariant:
    """A property of a tensor.

    Attributes:
        words: for people, behind "is" or "has".
        holds: whether a tensor has it, along an axis; a part of it that has all of that axis has it too.
        keep: another tensor with it, as near as may be.
        square: it is a property of the last two axes.
    """

    words: str
    holds: Callable[[torch.Tensor, int], bool]
    keep: Callable[[torch.Tensor, int], torch.Tensor]
    square: bool = False


def _is_close(one: torch.Tensor, other: torch.Tensor | float) -> bool:
    near = _ROUNDING.get(one.dtype, 1e-4)
    return bool(torch.all((one.double() - other).abs() <= near))


def _is_symmetric(value: torch.Tensor, _axis: int) -> bool:
    largest = value.abs().amax()
    return bool(((value - value.mT).abs() <= 1e-5 * largest).all())


def _symmetric(value: torch.Tensor, _axis: int) -> torch.Tensor:
    return value.triu() + value.triu(1).mT


def _is_definite(value: torch.Tensor, axis: int) -> bool:
    return (
        _is_symmetric(value, axis)
        and value.shape[-1] <= _MOST_ROWS_FACTORED
        and not bool(torch.linalg.cholesky_ex(value.double()).info.any())
    )


def _definite(value: torch.Tensor, axis: int) -> torch.Tensor:
    """Symmetric, with a diagonal that outweighs the rest of its row."""
    wide = _symmetric(value.double(), axis)
    diagonal = wide.diagonal(dim1=-2, dim2=-1).abs()
    rest = (wide - wide.diagonal(dim1=-2, dim2=-1).diag_embed()).abs().sum(-1)
    least = torch.maximum(1.25 * rest, rest.mean(-1, keepdim=True))
    found = torch.maximum(diagonal, least)
    return wide.diagonal_scatter(torch.where(found > 0, found, 1.0), dim1=-2, dim2=-1)


def _is_sorted(value: torch.Tensor, axis: int) -> bool:
    return bool((value.diff(dim=axis) >= 0).all())


def _is_descending(value: torch.Tensor, axis: int) -> bool:
    return _is_sorted(-value, axis)


def _has_zeros_and_ones(value: torch.Tensor, _axis: int) -> bool:
    return bool(((value == 0) | (value == 1)).all())


def _zeros_and_ones(value: torch.Tensor, _axis: int) -> torch.Tensor:
    """Ones where it is above its middle, so that both are there."""
    return value > value.double().nanmean()


def _is_one_hot(value: torch.Tensor, axis: int) -> bool:
    return _has_zeros_and_ones(value, axis) and bool((value.sum(axis) == 1).all())


def _one_hot(value: torch.Tensor, axis: int) -> torch.Tensor:
    places = value.argmax(axis, keepdim=True)
    return torch.zeros_like(value).scatter_(axis, places, 1.0)


def _are_probabilities(value: torch.Tensor, axis: int) -> bool:
    return bool((value >= 0).all()) and _is_close(value.double().sum(axis).to(value.dtype), 1.0)


def _probabilities(value: torch.Tensor, axis: int) -> torch.Tensor:
    wide = value.double().abs()
    total = wide.sum(axis, keepdim=True)
    return torch.where(total > 0, wide / total, 1.0 / value.shape[axis])


def _has_unit_length(value: torch.Tensor, axis: int) -> bool:
    return _is_close(torch.linalg.vector_norm(value.double(), dim=axis).to(value.dtype), 1.0)


def _of_unit_length(value: torch.Tensor, axis: int) -> torch.Tensor:
    wide = value.double()
    largest = wide.abs().amax(axis, keepdim=True)
    wide = torch.where(largest > 0, wide / largest, 1.0)  # no square is lost
    unit: torch.Tensor = wide / torch.linalg.vector_norm(wide, dim=axis, keepdim=True)
    return unit


INVARIANTS: Sequence[Invariant] = (
    Invariant("positive definite", _is_definite, _definite, square=True),
    Invariant("symmetric", _is_symmetric, _symmetric, square=True),
    Invariant("one-hot", _is_one_hot, _one_hot),
    Invariant("zeros and ones", _has_zeros_and_ones, _zeros_and_ones),
    Invariant("ascending", _is_sorted, lambda value, axis: value.sort(axis).values),
    Invariant("descending", _is_descending, lambda value, axis: value.sort(axis, descending=True).values),
    Invariant("probabilities that sum to one", _are_probabilities, _probabilities),
    Invariant("of length one", _has_unit_length, _of_unit_length),
)
"""The first that holds of a tensor is kept."""


@dataclass(frozen=True)
class Form:
    """The things that some draws of the inputs have in common.

    Attributes:
        zeros: where each input has zeros among other numbers, as below the diagonal of a triangular matrix; None where
            it has none. Inputs that are zeros alone, such as a first state, may hold anything.
        kinds: the invariant of each input, and along which axis; None where it has none.
    """

    zeros: tuple[torch.Tensor | None, ...]
    kinds: tuple[tuple[Invariant, int] | None, ...]

    @classmethod
    def of(cls, draws: Sequence[Sequence[Any]]) -> Form:
        """Look at some draws."""
        together = list(zip(*draws, strict=True))
        kinds = tuple(map(_kind_of, together))
        zeros = tuple(None if kind else _common_zeros(values) for values, kind in zip(together, kinds, strict=True))
        return cls(zeros, kinds)

    def keep(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return inputs with the same in common, in their own layouts."""
        return tuple(map(_kept, inputs, self.zeros, self.kinds))

    def words(self, names: Sequence[str]) -> Iterator[str]:
        """Yield what is kept, a line for each input of a kind."""
        for name, kind in zip(names, self.kinds, strict=True):
            if kind is not None:
                invariant, axis = kind
                along = "" if invariant.square else f" along axis {axis}"
                yield f"{name} is {invariant.words}{along} in every draw, and so in every question"


def _kept(value: Any, zeros: torch.Tensor | None, kind: tuple[Invariant, int] | None) -> Any:
    if zeros is not None and zeros.shape == value.shape:
        return torch.empty_like(value).copy_(value.masked_fill(zeros, 0.0))
    if kind is None or not value.numel():
        return value
    invariant, axis = kind
    if value.dim() < -axis or (invariant.square and not _is_square(value)):
        return value
    return torch.empty_like(value).copy_(invariant.keep(value.detach(), axis))


def _common_zeros(values: Sequence[Any]) -> torch.Tensor | None:
    first = values[0]
    if not _may_have_form(first) or any(value.shape != first.shape for value in values):
        return None
    zeros = torch.stack([value == 0 for value in values]).all(0)
    return zeros if bool(zeros.any()) and not bool(zeros.all()) else None


def _kind_of(values: Sequence[Any]) -> tuple[Invariant, int] | None:
    """The first invariant of all draws of an input."""
    if not all(_may_have_form(value) and bool(torch.isfinite(value).all()) for value in values):
        return None
    for invariant in INVARIANTS:
        for axis in (-1,) if invariant.square else range(-1, -values[0].dim() - 1, -1):
            if all(_holds(invariant, value, axis) for value in values):
                return invariant, axis
    return None


def _may_have_form(value: Any) -> bool:
    if not (isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout is torch.strided):
        return False
    return bool(value.dim()) and own_part(value) is value


def _holds(invariant: Invariant, value: torch.Tensor, axis: int) -> bool:
    """Whether a tensor has a property that not every tensor of its size has."""
    if value.numel() < _LEAST or (invariant.square and not _is_square(value)):
        return False
    if not (invariant.holds(_few_of(value, axis, invariant.square), axis) and invariant.holds(value, axis)):
        return False
    row = value[..., 0, 1:] if invariant.square else value
    return bool((row != row.narrow(axis, 0, 1)).any())


def _is_square(value: torch.Tensor) -> bool:
    return value.dim() > 1 and value.shape[-1] == value.shape[-2] > 2


def _few_of(value: torch.Tensor, axis: int, square: bool) -> torch.Tensor:
    """A part that has what the whole has: some places of all axes but the one, or of the last two alike."""
    for other in range(value.dim()):
        if square or other != axis % value.dim():
            value = value.narrow(other, 0, min(_FEW, value.shape[other]))
    return value
