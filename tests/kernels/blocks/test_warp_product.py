"""Products by warps: any sizes and layouts on the CPU, and what they are for."""

from __future__ import annotations

import pytest
from warp_products import LAYOUTS, SIZES, error

from tunebench.kernels.blocks.warp_product import chosen_by_warps
from tunebench.kernels.shared.split_product import InColumns
from tunebench.tuner.device import find_device


@pytest.mark.parametrize("in_columns", LAYOUTS)
@pytest.mark.parametrize("size", SIZES)
def test_products_by_warps_are_right(size: tuple[int, int, int, int], in_columns: InColumns) -> None:
    dtype, is_one = ("float16", False) if sum(size) % 2 else ("bfloat16", in_columns.x)
    assert error(find_device("cpu"), dtype, size, in_columns, is_one=is_one) < (1e-3 if dtype == "float16" else 5e-3)


def test_what_a_library_reads_in_packs_is_no_product_by_warps() -> None:
    rows, columns = InColumns(False, False), InColumns(False, True)
    assert chosen_by_warps(64, 512, 64, rows) == {"tile_rows": 64, "warps": 4}  # small
    assert chosen_by_warps(80, 201, 3000, columns) == {"tile_rows": 80, "warps": 4}
    assert chosen_by_warps(3000, 201, 80, columns) == {"tile_rows": 64, "warps": 5}
    assert chosen_by_warps(80, 208, 3000, rows) is None
    assert chosen_by_warps(80, 201, 3000, InColumns(True, True)) is None  # its depth is no row
    assert chosen_by_warps(1000, 201, 1000, rows) is None  # of many tiles
    assert chosen_by_warps(2**20 - 1, 4097, 1, rows) is None  # places of more than 32 bits
