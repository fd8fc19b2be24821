"""The host's side of `include/half_product.cuh`: the product of half types on Hopper, as the copy engine reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tunebench.kernels.shared.alignment import aligned
from tunebench.kernels.shared.split_product import PRODUCT_THREADS, TILE_ROWS, blocks_of_product, is_fused
from tunebench.tuner.build import Argument
from tunebench.tuner.device import Device
from tunebench.tuner.kernel import Mode, Plan, ceil_div
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import Constraint, Tunable
from tunebench.tuner.tensor_map import MapLayout, TensorMap

HALF_TYPES = ("float16", "bfloat16")

LINE_BYTES = 128
LINE_DEPTH = 64
COLUMNS_OF_MAP = 32
BARRIER_BYTES = 16


def multiplies_halves(product: str, problem: Problem) -> bool:
    """Return whether the fused product is that of half types."""
    return is_fused(product) and problem.dtype in HALF_TYPES


def _shared_bytes(product_columns: int, product_stages: int) -> int:
    return product_stages * ((TILE_ROWS + product_columns) * LINE_BYTES + BARRIER_BYTES)


def _fits_shared_memory(
    product: str, product_columns: int, product_stages: int, problem: Problem, device: Device
) -> bool:
    if not multiplies_halves(product, problem):
        return True
    return _shared_bytes(product_columns, product_stages) <= device.max_shared_bytes


def _copy_engine_reads(product: str, problem: Problem) -> bool:
    """Return whether rows begin at multiples of 16 bytes, and features come in whole copies."""
    if not multiplies_halves(product, problem):
        return True
    return problem.axes["in_features"] % 8 == 0 and problem.axes["out_features"] % COLUMNS_OF_MAP == 0


def _is_finished_at_once(product: str, problem: Problem) -> bool:
    """Return whether all that follows can stand in the epilogue: what needs a batch's statistics cannot."""
    return not multiplies_halves(product, problem) or problem.options.get("mode") != Mode.TRAIN


def _may_round(fast_math: bool, product: str, problem: Problem) -> bool:
    return fast_math and multiplies_halves(product, problem)


FAST_TANH = Tunable("fast_tanh", (False, True), when=_may_round)
"""It has functions that are made of tanh use the device's own, whose error a half type rounds off in most outputs."""
TUNABLES = (Tunable("product_band", (8, 4, 16, 1), when=multiplies_halves),)
CONSTRAINTS = (
    Constraint("stages_of_halves_fit_shared_memory", _fits_shared_memory),
    Constraint("the_copy_engine_reads_halves", _copy_engine_reads),
    Constraint("halves_are_finished_in_the_epilogue", _is_finished_at_once),
)


class _Geometry(NamedTuple):
    """The launch of a product of some size, and how the copy engine reads its operands."""

    x: MapLayout
    weight: MapLayout
    blocks: int
    shared: int


def rows_of(matrix_rows: int, depth: int, at_once: int) -> MapLayout:
    """Return how the copy engine reads a matrix: a line's depth of so many rows at once."""
    row = 2 * depth
    return MapLayout(2, (depth, matrix_rows, 1, 1, 1), (row, row, row, row), (LINE_DEPTH, at_once, 1, 1, 1), LINE_BYTES)


def tiles_hold(layers: int) -> Constraint:
    """Require that a tile has as many features of each of so many layers, and each block of a cluster its copies."""

    def hold(product: str, product_columns: int, product_cluster: int, problem: Problem) -> bool:
        of_copy = layers * product_cluster * COLUMNS_OF_MAP
        return not multiplies_halves(product, problem) or product_columns % of_copy == 0

    return Constraint("tiles_of_halves_hold_all_layers", hold)


def geometry_of(plan: Plan, rows: int, features: int, depth: int, layers: int) -> _Geometry:
    """Return the launch of a product of so many layers, and how their operands lie."""
    columns, cluster = plan.integer("product_columns") // layers, plan.integer("product_cluster")
    row, groups = 2 * depth, features // COLUMNS_OF_MAP
    return _Geometry(
        x=rows_of(rows, depth, TILE_ROWS),
        # Rows 8 · q + 2 · i + p of each 32, in the order of i, q and p.
        weight=MapLayout(
            2,
            (depth, 2, 4, 4, groups),
            (row, 8 * row, 2 * row, COLUMNS_OF_MAP * row),
            (LINE_DEPTH, 2, 4, 4, columns // cluster // COLUMNS_OF_MAP),
            LINE_BYTES,
        ),
        blocks=blocks_of_product(ceil_div(features, columns), rows, cluster, plan.device),
        shared=_shared_bytes(plan.integer("product_columns"), plan.integer("product_stages")),
    )


def for_packs(epilogue: Sequence[Argument]) -> list[Argument]:
    """Return what an epilogue takes, where its tensors are read in packs."""
    return [aligned(one) if isinstance(one, torch.Tensor) else one for one in epilogue]


def half_product(plan: Plan, x: torch.Tensor, weights: Sequence[torch.Tensor], *epilogue: Argument) -> None:
    """Launch x · weightᵀ of each weight with the source's epilogue, which joins them, on torch's current stream.

    Args:
        x: (rows, depth), of a half type.
        weights: (features, depth), of the same, on the same device, as many as the source has layers.
        epilogue: what the source's `half_product` takes behind the sizes; the output is a new tensor.
    """
    x = aligned(x.contiguous())
    (rows, depth), features = x.shape, weights[0].shape[0]
    found = plan.once(geometry_of, rows, features, depth, len(weights))
    maps = [TensorMap(aligned(one.contiguous()), found.weight) for one in weights]
    operands: tuple[Argument, ...] = (TensorMap(x, found.x), *maps, rows, features, depth)
    shape = {"blocks": found.blocks, "threads": PRODUCT_THREADS, "shared": found.shared}
    plan.launch("half_product", *operands, *for_packs(epilogue), **shape, early=bool(plan["early_launches"]))
