"""Products by warps on tensor cores."""

from __future__ import annotations

import pytest
from warp_products import LAYOUTS, SIZES, error

from tunebench.kernels.shared.split_product import InColumns
from tunebench.tuner.device import Device

pytestmark = pytest.mark.gpu

LARGE = [(16, 80, 201, 3000), (8192, 27, 64, 27), (70000, 16, 8, 16)]


@pytest.mark.parametrize("in_columns", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_by_warps_are_right_on_tensor_cores(cuda: Device, dtype: str, in_columns: InColumns) -> None:
    most = 1e-3 if dtype == "float16" else 5e-3
    for size in SIZES:
        for is_one in (False, True):
            assert error(cuda, dtype, size, in_columns, is_one=is_one) < most


@pytest.mark.parametrize("size", LARGE)
def test_many_products_by_warps_are_right(cuda: Device, size: tuple[int, int, int, int]) -> None:
    assert error(cuda, "bfloat16", size, InColumns(False, True), is_one=False) < 5e-3
