"""A product of two inputs, as torch.matmul makes it: what is multiplied, and how large the problem is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from tunebench.kernels.blocks.block import Kind, Operand
from tunebench.kernels.runtime.axes import UnservedError
from tunebench.kernels.shared.split_product import InColumns
from tunebench.tuner.problem import Problem, Work


class Stacks(NamedTuple):
    """Two inputs as matrices that are multiplied, or stacks of them.

    Attributes:
        x: (…, rows, in_features).
        weight: (…, out_features, in_features).
        shape: of what torch.matmul makes.
    """

    x: torch.Tensor
    weight: torch.Tensor
    shape: tuple[int, ...]

    @property
    def axes(self) -> dict[str, int]:
        """The sizes of the problem."""
        rows, depth = self.x.shape[-2:]
        products, features = self.x.shape[:-2].numel(), self.weight.shape[-2]
        return {"products": products, "rows": rows, "in_features": depth, "out_features": features}


def stacks_of(x: torch.Tensor, weight: torch.Tensor, in_columns: InColumns, *, is_either_way: bool) -> Stacks:
    """Return what two inputs, of which those in columns are transposed, are multiplied as.

    All matrices that one matrix is multiplied with are one, whose rows are theirs.

    Args:
        is_either_way: whether a product of one column may be made as the transposed one, of one row.

    Raises:
        UnservedError: they are no matrices that fit.
    """
    if min(x.dim(), weight.dim()) < 2:
        raise UnservedError("a vector is no matrix")
    x, weight = x.mT if in_columns.x else x, weight.mT if in_columns.weight else weight
    if x.shape[-1] != weight.shape[-1]:
        raise UnservedError(f"matrices of {x.shape[-1]} columns and of {weight.shape[-1]} rows do not fit")
    try:
        stack = torch.broadcast_shapes(x.shape[:-2], weight.shape[:-2])  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise UnservedError(f"stacks of {tuple(x.shape[:-2])} and {tuple(weight.shape[:-2])} do not fit") from error
    shape = (*stack, x.shape[-2], weight.shape[-2])
    if weight.dim() == 2 and not (in_columns.x and x.dim() > 2):
        x = x.reshape(-1, x.shape[-1])
    if max(x.dim(), weight.dim()) > 2:
        x, weight = (one.expand(*stack, -1, -1).reshape(-1, *one.shape[-2:]) for one in (x, weight))
    elif is_either_way and weight.shape[0] == 1:
        x, weight = weight, x
    return Stacks(x, weight, shape)


def require_fitting(stacks: Stacks, used: Sequence[Operand], values: Sequence[Any]) -> None:
    """Require that what is read behind the product fits it.

    Raises:
        UnservedError: a tensor does not.
    """
    shape = stacks.shape
    sizes = {Kind.PER_FEATURE: shape[-1], Kind.PER_ROW: math.prod(shape[:-1]), Kind.PER_TENSOR: 1}
    for one, value in zip(used, values, strict=True):
        if one.kind is Kind.ELEMENT and value.shape != shape:
            raise UnservedError(f"'{one.path}' is {tuple(value.shape)}, the product {shape}")
        if one.kind in (Kind.ELEMENT, Kind.PER_ROW) and not value.is_contiguous():
            raise UnservedError(f"'{one.path}' is not contiguous: its strides are {value.stride()}")
        if one.kind in sizes and value.numel() != sizes[one.kind]:
            raise UnservedError(f"'{one.path}' has {value.numel()} elements, not {sizes[one.kind]}")


def work_of_inputs(problem: Problem) -> Work:
    """Return the least work: two inputs and their product cross memory once, and operations as of a layer."""
    products, rows, depth, features = (
        problem.axes[name] for name in ("products", "rows", "in_features", "out_features")
    )
    elements = products * (rows * depth + depth * features + rows * features)
    return Work(elements * problem.item_bytes, operations=2 * products * rows * depth * features)
