"""One call's inputs with what the reference makes of them: what should come of the call, and how far off it may be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tunebench.tuner.gate.comparison import compare, count_differing, norm_of, real, scale_of
from tunebench.tuner.gate.tolerance import REFERENCE_MULTIPLE, allowed_error, tolerance_of
from tunebench.tuner.gate.values import Leaf, Values
from tunebench.tuner.result import ErrorFigures


@dataclass(frozen=True)
class Expected:
    """A tensor of the output, or an input that the reference changes.

    Attributes:
        values: in float64, complex numbers as pairs; where the reference at its own precision is not finite, what it
            is there. Integers and truth values are what they are.
        alternatives: other answers that pass, element by element, of integers and truth values (see `Truth`).
        in_order: what passes as well, element by element, where equal elements may come in any order; None where that
            makes no difference.
        scale, norm: what errors are relative to (see `comparison.scale_of`); 1 for integers.
        like: a meta tensor of the reference's own: shape, dtype, layout.
        device: where the reference's own is.
        aliases: the reference's own is memory of an input.
        own: the reference's error figures, at its own precision.
        allowance: an error that passes as well.
        free: where the reference is not finite, anything passes.
        otherwise: what it is in float64 where only one of the two is finite, or each is something else that is not
            finite: that passes as well, element by element. Elsewhere `values`; None where there is no such element.
    """

    values: torch.Tensor
    alternatives: Sequence[torch.Tensor]
    scale: torch.Tensor
    norm: float
    like: torch.Tensor
    device: torch.device
    aliases: bool
    own: ErrorFigures
    allowance: float = 0.0
    free: bool = False
    otherwise: torch.Tensor | None = None
    in_order: torch.Tensor | None = None

    @property
    def is_exact(self) -> bool:
        """Whether each element has to be met exactly."""
        return not (self.like.is_floating_point() or self.like.is_complex())

    def vanishes_beside(self, size: float) -> bool:
        """Whether all of it is no more than a rounding error beside what it is elsewhere, as a loss whose terms cancel,
        or a constant less its mean: nobody knows the size of the terms. Zeros that the reference meets exactly are not.
        """
        if self.is_exact or not self.values.numel() or (self.values.numel() > 1 and self.own.max_absolute == 0.0):
            return False
        return float(self.values.abs().max()) <= torch.finfo(self.like.dtype).eps * size

    def relative_to(self, size: float) -> Expected:
        """The same with errors relative to this size."""
        own = replace(self.own, max_relative=self.own.max_absolute / size)
        return replace(self, scale=torch.full_like(self.scale, size), own=own)

    @property
    def bound(self) -> float:
        """The error that passes: the tolerance, or twice the reference's own; none of integers."""
        return 0.0 if self.is_exact else max(allowed_error(self.like.dtype, self.own.max_relative), self.allowance)

    @property
    def answer(self) -> torch.Tensor:
        """The right answer, in float64."""
        return torch.view_as_complex(self.values) if self.like.is_complex() else self.values

    def errors_of(self, tensor: torch.Tensor, *, rewritten: bool = False) -> ErrorFigures:
        """The error figures of a tensor of this shape, beside the reference's own.

        Args:
            rewritten: it comes from a rewrite of the algebra (see `comparison.compare`).
        """
        if self.is_exact:
            return count_differing(tensor, self.values, self.alternatives)
        got = real(tensor)
        errors = compare(
            got, self._meant_by(got), self.scale, self.bound, self.norm, rewritten=rewritten, free=self.free
        )
        own, wrong = self.own, errors.first_wrong_index
        if wrong is not None and self.like.is_complex():
            errors = replace(errors, first_wrong_index=wrong // 2)  # of the numbers, not of their parts
        return replace(errors, reference_max_relative=own.max_relative, reference_relative_norm=own.relative_norm)

    def _meant_by(self, got: torch.Tensor) -> torch.Tensor:
        """Return what each element should be: `otherwise` where only that is of the element's kind, else `values`, or
        `in_order` where that is nearer."""
        meant = self.values
        if self.in_order is not None:
            is_alike = _are_alike(got, self.in_order) & ~_are_alike(got, meant)
            is_nearer = is_alike | ((got - self.in_order).abs() < (got - meant).abs())
            meant = torch.where(is_nearer, self.in_order, meant)
        if self.otherwise is None:
            return meant
        return torch.where(_are_alike(got, self.otherwise) & ~_are_alike(got, self.values), self.otherwise, meant)

    def allowed_at(self, index: int) -> float:
        """How far off the element at a flat index may be."""
        rows, columns = self.scale.shape
        width = self.values.numel() // rows
        scale = self.scale[index // width if rows > 1 else 0, index % width if columns > 1 else 0]
        return 0.0 if self.is_exact else self.bound * float(scale)


@dataclass(frozen=True)
class Case:
    """One set of inputs with what the reference makes of it.

    Attributes:
        call_seed: what torch's generators are seeded with before the call.
        draws: the reference draws random numbers in it.
        like: the reference's own output; its tensors are meta tensors.
        output: what the tensors and floats of the output should be, by path.
        plain: what its other leaves may be, by path.
        changed: what the inputs should hold afterwards that the reference changes, by names such as `input 1`.
        input_sums: checksums of all inputs before the call.
        expected_buffers: the module's buffers after the call, in float64.
        reference_buffer_error: the largest relative norm error of its buffers.
        shared: the paths of what is memory of an earlier part of the output.
        note: why the reference's own answer is the truth, where it is not the one in float64.
    """

    name: str
    inputs: tuple[Any, ...]
    call_seed: int
    draws: bool
    like: Values
    output: Mapping[str, Expected]
    plain: Mapping[str, Sequence[Leaf]]
    changed: Mapping[str, Expected]
    input_sums: Sequence[torch.Tensor]
    expected_buffers: Mapping[str, torch.Tensor]
    reference_buffer_error: float
    shared: Sequence[str] = ()
    note: str = ""

    @property
    def elements(self) -> int:
        """Number of elements of the whole output."""
        return sum(expected.values.numel() for expected in self.output.values())

    @property
    def own_error(self) -> float:
        """The largest error that the reference itself makes, relative to the size of what it returns."""
        return max((expected.own.max_relative for expected in self.output.values()), default=0.0)


def figures(tensor: torch.Tensor | float) -> torch.Tensor:
    """A leaf that is judged by its size, as a tensor."""
    return tensor if isinstance(tensor, torch.Tensor) else torch.tensor(tensor, dtype=torch.float64)


def expect(
    own: Leaf,
    exact: Leaf,
    alternatives: Iterable[Leaf] = (),
    in_order: Leaf = None,
    *,
    aliases: bool = False,
    free: bool = False,
) -> Expected:
    """Return what a leaf should be, from the reference's answers: its own, in float64, alternatives, and with the first
    of equal elements first.

    Args:
        own: a tensor or a float.
        exact: None where there is no answer in float64: what it is at its own precision is the truth then, and since
            that is off as well, twice the tolerance passes.
    """
    mine = figures(own)  # type: ignore[arg-type]
    like = without_memory(mine if isinstance(own, torch.Tensor) else mine.float())
    if isinstance(exact, torch.Tensor | float) and figures(exact).shape != mine.shape:
        exact = None
    if not (mine.is_floating_point() or mine.is_complex()):
        others = [
            other for other in (exact, *alternatives) if isinstance(other, torch.Tensor) and other.shape == mine.shape
        ]
        nothing = ErrorFigures(0.0, 0.0, 0.0, 0.0, 0.0)
        return Expected(mine, others, torch.ones(1, 1), 1.0, like, mine.device, aliases, nothing)
    measured = real(mine)
    wide = measured.double() if exact is None else real(figures(exact)).double()  # type: ignore[arg-type]
    most, otherwise = torch.finfo(measured.dtype).max, None
    kind = torch.isfinite(measured) & (wide <= most) & (wide >= -most)
    if not bool(kind.all()):
        # Overflow belongs to a precision: float64 says what the value is, the reference what kind of value it is.
        there, wide = wide.masked_fill(wide > most, math.inf).masked_fill(wide < -most, -math.inf), measured.double()
        wide = torch.where(kind, there, wide)
        otherwise = None if bool(_are_alike(there, wide).all()) else there
    scale, norm = scale_of(wide), norm_of(wide)
    errors = compare(measured, wide, scale, float("inf"), norm)
    errors = replace(errors, reference_max_relative=errors.max_relative, reference_relative_norm=errors.relative_norm)
    allowance = REFERENCE_MULTIPLE * tolerance_of(like.dtype) if exact is None else 0.0
    ordered = None if in_order is None else real(figures(in_order)).double()  # type: ignore[arg-type]
    if ordered is not None and (ordered.shape != wide.shape or torch.equal(ordered, wide)):
        ordered = None
    return Expected(wide, (), scale, norm, like, mine.device, aliases, errors, allowance, free, otherwise, ordered)


def _are_alike(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Where both are finite, both are NaN, or both are the same infinity."""
    finite = torch.isfinite(one) & torch.isfinite(other)
    return finite | (one == other) | (torch.isnan(one) & torch.isnan(other))


def without_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A meta tensor of the same shape, dtype and strides, whatever these are."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
