"""The host's side of `include/half_stream.cuh`: the product of half types and few rows, as one pass over the weight."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tunebench.kernels.shared.alignment import aligned
from tunebench.kernels.shared.half_product import BARRIER_BYTES, HALF_TYPES, LINE_BYTES, rows_of
from tunebench.kernels.shared.stream_product import is_stream
from tunebench.tuner.build import Argument
from tunebench.tuner.device import Device
from tunebench.tuner.kernel import Mode, Plan, ceil_div
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import Constraint, Tunable
from tunebench.tuner.tensor_map import MapLayout, TensorMap

_RUN = 8
_LEAST_ROWS, _ROWS_OF_BLOCK, _LEAST_FEATURES = 16, 8, 64
_MOST_SUMS = 128 * 128
"""Limit of the sums of a block: more would take the registers of what normalises them."""


def streams_halves(product: str, problem: Problem) -> bool:
    """Return whether the product is a pass over a weight of half types."""
    return is_stream(product) and problem.dtype in HALF_TYPES


def _warpgroups_stream(product: str, problem: Problem, device: Device) -> bool:
    return not streams_halves(product, problem) or device.architecture == "sm_90"


def _copy_engine_reads(product: str, problem: Problem) -> bool:
    """Return whether rows of the operands, and of the output, begin at multiples of 16 bytes."""
    sides = (problem.axes["in_features"], problem.axes["out_features"])
    return not streams_halves(product, problem) or not any(side % _RUN for side in sides)


def _is_finished_at_once(product: str, problem: Problem) -> bool:
    return not streams_halves(product, problem) or problem.options.get("mode") != Mode.TRAIN


def _rows_are_held(stream_rows: int, product: str, problem: Problem) -> bool:
    """Return whether all rows are multiplied at once; what is known of more rows serves fewer."""
    return not streams_halves(product, problem) or max(problem.axes["rows"], _LEAST_ROWS) <= stream_rows


def _features_are_of_warpgroups(stream_features: int, product: str, problem: Problem) -> bool:
    return not streams_halves(product, problem) or stream_features >= _LEAST_FEATURES


def _registers_hold_sums(stream_features: int, stream_rows: int, product: str, problem: Problem) -> bool:
    return not streams_halves(product, problem) or stream_rows * stream_features <= _MOST_SUMS


def _blocks_have_rows(stream_split: int, stream_rows: int, product: str, problem: Problem) -> bool:
    """Return whether each block that shares a tile's depth has rows to finish."""
    return not streams_halves(product, problem) or stream_rows >= stream_split * _ROWS_OF_BLOCK


def _shared_bytes(stream_stages: int, stream_rows: int, stream_features: int, stream_split: int) -> int:
    of_stages = stream_stages * ((stream_rows + stream_features) * LINE_BYTES + BARRIER_BYTES)
    sent = (stream_rows - stream_rows // stream_split) * stream_features * 4
    return of_stages + sent + BARRIER_BYTES


def _fits_shared_memory(
    stream_stages: int, stream_rows: int, stream_features: int, stream_split: int, device: Device
) -> bool:
    return _shared_bytes(stream_stages, stream_rows, stream_features, stream_split) <= device.max_shared_bytes


TUNABLES = (Tunable("stream_stages", (4, 6, 8, 12, 16), when=streams_halves),)
CONSTRAINTS = (
    Constraint("warpgroups_stream_halves", _warpgroups_stream),
    Constraint("the_copy_engine_reads_streams_of_halves", _copy_engine_reads),
    Constraint("streams_of_halves_are_finished_in_the_epilogue", _is_finished_at_once),
    Constraint("rows_of_halves_are_streamed_at_once", _rows_are_held),
    Constraint("features_of_halves_are_of_warpgroups", _features_are_of_warpgroups),
    Constraint("blocks_that_share_a_depth_have_rows", _blocks_have_rows),
    Constraint("registers_hold_the_sums_of_halves", _registers_hold_sums),
    Constraint("streams_of_halves_fit_shared_memory", _fits_shared_memory),
)


class _Geometry(NamedTuple):
    """The launch of a product of some size, and how the copy engine reads its operands."""

    x: MapLayout
    weight: MapLayout
    blocks: int
    threads: int
    shared: int


def _geometry(plan: Plan, rows: int, features: int, depth: int) -> _Geometry:
    of_tile, split = (plan.integer("stream_rows"), plan.integer("stream_features")), plan.integer("stream_split")

    return _Geometry(
        x=rows_of(rows, depth, of_tile[0]),
        weight=rows_of(features, depth, of_tile[1]),
        blocks=ceil_div(features, of_tile[1]) * split,
        threads=2 * of_tile[1] + 64,
        shared=_shared_bytes(plan.integer("stream_stages"), *of_tile, split),
    )


def half_stream(plan: Plan, x: torch.Tensor, weight: torch.Tensor, *epilogue: Argument) -> None:
    """Launch x · weightᵀ with the source's epilogue on torch's current stream.

    Args:
        x: (rows, depth), of a half type.
        weight: (features, depth), of the same, on the same device.
        epilogue: what the source's `half_stream` takes behind the sizes, the output among it.
    """
    x, weight = aligned(x.contiguous()), aligned(weight.contiguous())
    (rows, depth), features = x.shape, weight.shape[0]
    found = plan.once(_geometry, rows, features, depth)
    operands = (TensorMap(x, found.x), TensorMap(weight, found.weight), rows, features, depth)
    plan.launch("half_stream", *operands, *epilogue, blocks=found.blocks, threads=found.threads, shared=found.shared)
