"""The host's side of `include/warp_product.cuh`: products in half types of small matrices, or such as lie unaligned."""

from __future__ import annotations

import functools

import torch

from tunebench.kernels.blocks.plain_product import lying
from tunebench.kernels.shared.alignment import aligned
from tunebench.kernels.shared.half_product import HALF_TYPES
from tunebench.kernels.shared.split_product import InColumns
from tunebench.tuner.kernel import Kernel, Plan, ceil_div
from tunebench.tuner.space import SearchSpace, Tunable

_STEP = 16
"""Rows and features that the tensor core's instruction takes at once, or twice that."""
_PACK = 8
"""The halves of the widest access."""
_MOST_ROWS, _ROWS, _WARPS = 128, 64, 4
"""Upper limit of the rows of a tile, where they are all; rows and warps of a tile of more."""
_MOST_PLACES = 2**31 - 1
SPACE = SearchSpace(
    (
        Tunable("tile_rows", tuple(range(_STEP, _MOST_ROWS + 1, _STEP)), default=_ROWS),
        Tunable("warps", tuple(range(1, _MOST_ROWS // _STEP + 1)), default=_WARPS),
    )
)


@functools.cache
def kernel_of_warps(in_columns: InColumns) -> Kernel:
    """Return the kernel of products whose matrices lie so."""
    constants = [
        f"constexpr bool {name}_in_columns = {str(turned).lower()};"
        for name, turned in zip("xw", in_columns, strict=True)
    ]
    return Kernel.declare(
        __file__,
        SPACE,
        source="\n".join((*constants, '#include "warp_product.cuh"\n')),
        name=f"product_by_warps{lying(in_columns)}",
        texts={},
        compiled_axes=("rows", "in_features", "out_features"),
        axes={},
        dtypes=HALF_TYPES,
    )


def chosen_by_warps(rows: int, depth: int, features: int, in_columns: InColumns) -> dict[str, int] | None:
    """Return the values of the tunables for a product; None where a library's reads its operands in packs."""
    sides = (rows if in_columns.x else depth, features if in_columns.weight else depth, features)
    is_small = max(rows, features) <= _ROWS
    if max(rows, features) * depth > _MOST_PLACES:
        return None
    if not is_small and (min(rows, features) > _MOST_ROWS or not any(side % _PACK for side in sides)):
        return None
    return {
        "tile_rows": _STEP * ceil_div(rows, _STEP) if rows <= _MOST_ROWS else _ROWS,
        "warps": ceil_div(features, _STEP) if features <= _MOST_ROWS else _WARPS,
    }


def product_by_warps(plan: Plan, x: torch.Tensor, weight: torch.Tensor, in_columns: InColumns) -> torch.Tensor:
    """Compute x · weightᵀ.

    Args:
        x: (…, rows, in_features).
        weight: (…, out_features, in_features).
        in_columns: of the plan's kernel.
    """
    rows, features = x.shape[-2], weight.shape[-2]
    made = x.new_empty((*x.shape[:-1], features))
    if not made.numel():
        return made
    operands = (_stack(x, in_columns.x), _stack(weight, in_columns.weight))
    (x, x_stride), (weight, weight_stride) = operands
    warps, stack = plan.integer("warps"), made.shape[:-2].numel()
    blocks = stack * ceil_div(rows, plan.integer("tile_rows")) * ceil_div(features, _STEP * warps)
    plan.launch("warp_product", x, weight, made, x_stride, weight_stride, blocks=blocks, threads=32 * warps)
    return made


def _stack(matrices: torch.Tensor, is_in_columns: bool) -> tuple[torch.Tensor, int]:
    """Matrices as they lie, and how far apart: 0 where all are the same."""
    matrices = matrices.mT if is_in_columns else matrices
    if matrices.stride()[:-2] == (0,) * (matrices.dim() - 2):
        matrices = matrices[(0,) * (matrices.dim() - 2)]
        return aligned(matrices.contiguous()), 0
    return aligned(matrices.contiguous()), matrices.shape[-2:].numel()
