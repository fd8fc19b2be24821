"""The work after a linear layer's product: in the epilogue of one of ours, or in one pass over a product of torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tunebench.kernels.runtime.derived import Keeper
from tunebench.kernels.shared.parts_product import Product
from tunebench.kernels.shared.products import has_passes, own_product
from tunebench.kernels.shared.split_product import InColumns, RowExponents, Unfit, splits
from tunebench.tuner import constraints
from tunebench.tuner.build import Argument
from tunebench.tuner.device import MOST_BLOCKS, MOST_BLOCKS_ACROSS
from tunebench.tuner.kernel import Plan, ceil_div
from tunebench.tuner.space import Constraint, Predicate, Tunable


class Tuned(NamedTuple):
    """The part of a search space that is about one part of the work."""

    tunables: tuple[Tunable, ...]
    constraints: tuple[Constraint, ...]


class LinearCall(NamedTuple):
    """One call of a linear layer, or of a product of two inputs.

    Attributes:
        x: (rows, in_features); of several products (products, rows, in_features), and the weight likewise.
        weight: (out_features, in_features).
        bias: (out_features,).
        exponents: what is kept of the weight's magnitude.
        values: what the functions behind the product take, in the order of the kernels' parameters.
        by_columns: whether these depend on a value's column or row.
        in_place: whether a pass writes over the product that it reads.
        model: whose cache keeps what is made of the weight alone.
        in_columns: how two inputs lie in memory; None of a layer.
        joined: the weights of other layers whose values the same kernel makes of x.
    """

    plan: Plan
    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    exponents: RowExponents
    values: Sequence[Argument]
    by_columns: bool
    in_place: bool
    model: Keeper
    in_columns: InColumns | None = None
    joined: Sequence[torch.Tensor] = ()


def elements_space() -> Tuned:
    """Return the space of a pass that takes the product for one row."""
    return Tuned(
        tunables=(
            Tunable("block_size", (64, 128, 256, 512, 1024), default=256, when=has_passes),
            Tunable("vector_width", (1, 2, 4, 8), when=has_passes),
            Tunable("vectors_per_thread", (1, 2, 4), when=has_passes),
            Tunable("in_place", (False, True), when=has_passes, host=True),
        ),
        constraints=(constraints.vector_fits("vector_width"), constraints.block_fits("block_size")),
    )


def columns_space(has_pass: Predicate = has_passes) -> Tuned:
    """Return the space of a pass whose threads own columns.

    Args:
        has_pass: whether there is one.
    """
    return Tuned(
        tunables=(
            Tunable("block_size", (64, 128, 256, 512), default=256, when=has_pass),
            Tunable("vector_width", (1, 2, 4, 8), when=has_pass),
            Tunable("rows_per_thread", (1, 2, 4, 8), when=has_pass),
            Tunable("in_place", (False, True), when=has_pass, host=True),
        ),
        constraints=(
            constraints.vector_fits("vector_width"),
            constraints.divides("vector_width", "out_features"),
            constraints.block_fits("block_size"),
        ),
    )


def pass_over(call: LinearCall, product: Product, bias: torch.Tensor | None, *norm: Argument) -> torch.Tensor:
    """Run one pass over a product, whole or partial.

    Args:
        bias: what to add to partial products.
        norm: what the source's normalisation takes, or, where it reads other layers, whether it is applied.
    """
    plan, memory = call.plan, product.memory
    output = memory if call.in_place else torch.empty_like(memory)
    grid = _columns_grid if call.by_columns else _elements_grid
    blocks, threads = plan.once(grid, *output.shape)
    arguments = (*product.arguments(bias), output, *output.shape, *norm, *call.values)
    plan.launch("behind_product", *arguments, blocks=blocks, threads=threads, early=bool(plan["early_launches"]))
    return output


class OwnOutput(NamedTuple):
    """The output of a product by a kernel of ours.

    Attributes:
        values: (rows, out_features).
        unfit: the fused product's notes on what it repaired.
    """

    values: torch.Tensor
    unfit: Unfit | None


def own_output(call: LinearCall, norm: Sequence[Argument] = (), behind: Sequence[Argument] = ()) -> OwnOutput:
    """Compute a product by a kernel of ours, with all that follows in its epilogue.

    Args:
        norm: as of `pass_over`.
        behind: what its product takes last.
    """
    is_sliced = call.in_columns is not None and splits(str(call.plan["product"]), call.plan.problem)
    slices = call.plan.integer("product_slices") if is_sliced else 1
    output = call.x.new_empty(slices * call.x.shape[:-1].numel(), call.weight.shape[-2])
    offset = None if call.bias is None else call.bias.contiguous()
    epilogue = (offset, output, *norm, *call.values, *behind)
    operands = ((call.weight, *call.joined), call.x, call.exponents)
    unfit = own_product(call.plan, call.model, *operands, *epilogue, in_columns=call.in_columns)
    if slices > 1:
        output = pass_over(call, Product(output.view(slices, -1, output.shape[1])), None)
    return OwnOutput(output, unfit)


def _elements_grid(plan: Plan, rows: int, features: int) -> tuple[tuple[int, ...], int]:
    threads = plan.integer("block_size")
    of_block = threads * plan.integer("vector_width") * plan.integer("vectors_per_thread")
    return (min(ceil_div(rows * features, of_block), MOST_BLOCKS),), threads


def _columns_grid(plan: Plan, rows: int, features: int) -> tuple[tuple[int, ...], int]:
    threads = plan.integer("block_size")
    blocks = ceil_div(features, threads * plan.integer("vector_width"))
    return (blocks, min(ceil_div(rows, plan.integer("rows_per_thread")), MOST_BLOCKS_ACROSS)), threads
