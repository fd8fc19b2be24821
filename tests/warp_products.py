"""Products by warps beside float64."""

from __future__ import annotations

import torch

from tunebench.kernels.blocks.warp_product import chosen_by_warps, kernel_of_warps, product_by_warps
from tunebench.kernels.shared.split_product import InColumns
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import Device
from tunebench.tuner.problem import Problem

SIZES = [
    (3, 27, 64, 27),
    (2, 48, 33, 64),
    (2, 80, 201, 204),
    (1, 1, 1, 1),
    (2, 130, 33, 100),
    (4, 49, 32, 49),
    (1, 100, 7, 129),
]
"""Products, rows, depth, features."""
LAYOUTS = [InColumns(x, weight) for x in (False, True) for weight in (False, True)]


def error(device: Device, dtype: str, size: tuple[int, int, int, int], in_columns: InColumns, *, is_one: bool) -> float:
    """Return the largest error beside the largest product.

    Args:
        is_one: whether x is one matrix for all products.
    """
    products, rows, depth, features = size
    kernel = kernel_of_warps(in_columns)
    problem = Problem({"rows": rows, "in_features": depth, "out_features": features}, dtype, {})
    tiles = chosen_by_warps(rows, depth, features, in_columns)
    assert tiles is not None
    plan = build_plan(kernel, kernel.space.choose(tiles, problem, device), problem, device, compiler_for(device))
    torch.manual_seed(0)
    x, weight = (
        _laid(torch.randn(products, lines, depth).to(getattr(torch, dtype)), turned).to(device.torch_device)
        for lines, turned in ((rows, in_columns.x), (features, in_columns.weight))
    )
    x = x[:1].expand(products, rows, depth) if is_one else x
    expected = x.double() @ weight.double().mT
    made = product_by_warps(plan, x, weight, in_columns)
    assert made.shape == expected.shape and made.dtype == x.dtype
    return float((made.double() - expected).abs().max() / expected.abs().max())


def _laid(matrices: torch.Tensor, in_columns: bool) -> torch.Tensor:
    return matrices.mT.contiguous().mT if in_columns else matrices
