"""The fp32 product whose operands are rounded to halves in rows, and multiplied by the product of half types.

`split_tiles` (`include/tile_parts.cuh`) rounds both operands, or x alone where the weight's parts are kept;
`rounded_product` (`include/half_product.cuh`) multiplies, and `repair_rows` makes again what halves cannot hold.
"""

from __future__ import annotations

import torch

from tunebench.kernels.runtime.derived import Keeper
from tunebench.kernels.shared import REPAIR_THREADS, half_product, split_product
from tunebench.kernels.shared.split_product import HALVES, InColumns, Unfit
from tunebench.tuner.build import Argument
from tunebench.tuner.kernel import Mode, Plan
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import Constraint
from tunebench.tuner.tensor_map import TensorMap


def _is_of_whole_copies(weight_parts: str, problem: Problem) -> bool:
    """Return whether features come in whole copies, of one product, and all that follows can stand in the epilogue."""
    axes = problem.axes
    is_one = axes.get("products", 1) == 1 and problem.options.get("mode") != Mode.TRAIN
    return weight_parts != HALVES or (is_one and axes["out_features"] % half_product.COLUMNS_OF_MAP == 0)


def _is_in_one_slice(weight_parts: str, product_slices: int) -> bool:
    return weight_parts != HALVES or product_slices == 1


def _is_in_tiles(weight_parts: str) -> bool:
    return weight_parts != HALVES


CONSTRAINTS = (Constraint("rounded_rows_are_of_whole_copies", _is_of_whole_copies),)
CONSTRAINTS_OF_INPUTS = (Constraint("rounded_rows_are_in_one_slice", _is_in_one_slice),)
IN_TILES = (Constraint("halves_lie_in_tiles", _is_in_tiles),)
"""For what this product cannot do, as triangles, or does slowly: a matrix in columns would be written by 16 bytes."""


def rounded_product(
    plan: Plan,
    x: torch.Tensor,
    weight: torch.Tensor,
    *epilogue: Argument,
    model: Keeper | None = None,
    in_columns: InColumns | None = None,
) -> Unfit:
    """Launch x · weightᵀ with the source's epilogue on torch's current stream.

    Args:
        x: (rows, depth), float32.
        weight: (features, depth), float32, on the same device.
        epilogue: what the source's `rounded_product` and `repair_rows` take behind the sizes.
        model: keeps the parts of a layer's weight while it is frozen.
        in_columns: how two inputs lie; None of a layer.

    Returns:
        what of the epilogue's work was done again behind it.
    """
    (rows, depth), features, early = x.shape, weight.shape[0], bool(plan["early_launches"])
    sizes = (rows, features, depth)
    if in_columns is None:
        x, contiguous = x.contiguous(), weight.contiguous()
        x_rows, w_rows = split_product.tiles_of_both(plan, x, weight, contiguous, model)
    else:
        x, contiguous = split_product.as_they_lie(x, weight, in_columns)
        x_rows, w_rows = split_product.tiles_of_inputs(plan, x, contiguous, in_columns, (1, *sizes, depth))
    found = plan.once(half_product.geometry_of, rows, features, split_product.whole_runs(depth), 1)
    read = (TensorMap(x_rows.parts, found.x), TensorMap(w_rows.parts, found.weight), x_rows.exponents, w_rows.exponents)
    shape = {"blocks": found.blocks, "threads": split_product.PRODUCT_THREADS, "shared": found.shared}
    plan.launch("rounded_product", *read, *sizes, *half_product.for_packs(epilogue), **shape, early=early)
    noted = (x, contiguous, x_rows.unfit, w_rows.unfit, None)
    blocks = plan.device.multiprocessors
    behind = () if in_columns is None else (1, depth)
    plan.launch("repair_rows", *noted, *sizes, *epilogue, *behind, blocks=blocks, threads=REPAIR_THREADS, early=early)
    return Unfit(x_rows.unfit, w_rows.unfit)
