"""The host's side of `include/stream_product.cuh`: the fp32 product of few rows, as one pass over the weight."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tunebench.kernels.runtime.derived import Keeper
from tunebench.tuner.build import Argument, Within
from tunebench.tuner.constraints import needs
from tunebench.tuner.device import MOST_BLOCKS, Device, DeviceKind
from tunebench.tuner.kernel import Mode, Plan, ceil_div
from tunebench.tuner.problem import Accuracy, Problem
from tunebench.tuner.space import Constraint, Tunable

MOST_ROWS = 64
"""Limit of the rows: beyond, arithmetic in fp32 takes longer than reading the weight several times over."""

_THREADS = 256
_WARPS = _THREADS // 32
_CHUNK = 256
_MOST_ROWS_OF_LANES = 32
_RUN = 8
_MOST_REGISTERS = 160
_MOST_READS = 16
_STEP = _TILE = 16
_X_ROWS = 8
_MOST_REGISTERS_OF_TILES = 216
_MOST_ROWS_TO_COMPILE = 128
_LEAST_ARCHITECTURE = 80
"""Oldest architecture (compute capability × 10) whose tensor cores multiply TF32."""


def is_stream(product: str) -> bool:
    """Return whether the product is a pass over the weight."""
    return product == "stream"


def _streams_singles(product: str, problem: Problem) -> bool:
    return is_stream(product) and problem.dtype == "float32"


def _has_few_rows(product: str, problem: Problem) -> bool:
    return not _streams_singles(product, problem) or problem.axes["rows"] <= MOST_ROWS


def _unit_multiplies(stream_unit: str, device: Device) -> bool:
    return stream_unit == "lanes" or device.kind is DeviceKind.CPU or device.is_gpu_from(_LEAST_ARCHITECTURE)


def _rows_are_of_use(stream_unit: str, stream_rows: int, problem: Problem) -> bool:
    """Lanes take no more rows at once than a power of two that holds the batch, and no fewer: the weight is read once.
    Tensor cores take all rows, and empty ones besides: what is known of more rows serves fewer."""
    rows = problem.axes["rows"]
    if stream_unit == "tensor_cores":
        return max(rows, _X_ROWS) <= stream_rows <= MOST_ROWS
    return stream_rows // 2 < min(rows, _MOST_ROWS_OF_LANES) <= stream_rows


def _features_are_of_the_unit(stream_unit: str, stream_features: int) -> bool:
    return (stream_unit == "lanes") == (stream_features < _TILE)


def _lanes_fit_registers(stream_unit: str, stream_rows: int, stream_features: int, stream_unroll: int) -> bool:
    """Return whether registers hold the sums, and what is read at once."""
    reads_fit = stream_unroll == 1 or stream_rows * stream_unroll <= _MOST_READS
    sums_fit = stream_features * (stream_rows + _RUN) <= _MOST_REGISTERS
    return stream_unit != "lanes" or (reads_fit and sums_fit)


def _tiles_fit_registers(stream_corrections: str, stream_rows: int, stream_features: int, stream_unroll: int) -> bool:
    """Return whether registers hold the sums, the weight's parts and what is in flight of it, and two steps of x."""
    tiles, x_tiles = stream_features // _TILE, stream_rows // _X_ROWS
    of_x = (14 if stream_corrections == "tf32" else 8) * x_tiles
    return tiles * (4 * x_tiles + 8 * stream_unroll + 16) + of_x <= _MOST_REGISTERS_OF_TILES


def _compiles_soon(stream_unit: str, stream_rows: int, stream_unroll: int) -> bool:
    """More copies of the loop's body would take the compiler longer than two seconds."""
    return stream_unit == "lanes" or stream_rows * stream_unroll <= _MOST_ROWS_TO_COMPILE


def _is_kept(stream_weight: str, problem: Problem) -> bool:
    """Splitting the weight in every call would cost more than it saves."""
    return stream_weight == "whole" or problem.options.get("mode") == Mode.FROZEN


def _weight_holds_enough(stream_weight: str, problem: Problem) -> bool:
    """Halves have the eleven bits of TF32."""
    return stream_weight != "rounded" or problem.accuracy is Accuracy.TF32


def _operands_hold_enough(stream_corrections: str, problem: Problem) -> bool:
    return stream_corrections != "none" or problem.accuracy is Accuracy.TF32


def _corrects_what_is_kept(stream_weight: str, stream_corrections: str) -> bool:
    """Beside the rounding of the weight small terms are nothing, and without them its parts."""
    return stream_weight == "whole" or (stream_weight == "rounded") == (stream_corrections == "none")


def _tensor_cores_stream(product: str, stream_unit: str, problem: Problem) -> bool:
    return _streams_singles(product, problem) and stream_unit == "tensor_cores"


def _is_of_one_product(product: str, problem: Problem) -> bool:
    return product != "stream" or problem.axes["products"] == 1


TUNABLES = (
    Tunable("stream_unit", ("lanes", "tensor_cores"), when=_streams_singles),
    Tunable("stream_corrections", ("tf32", "bf16", "none"), when=_tensor_cores_stream),
    Tunable("stream_weight", ("whole", "parts", "rounded"), when=_streams_singles),
    Tunable("stream_rows", (1, 2, 4, 8, 16, 32, 64, 128), when=is_stream),
    Tunable("stream_features", (1, 2, 4, 8, 16, 32, 64, 128, 256), default=4, when=is_stream),
    Tunable("stream_split", (1, 2, 4, 8), when=is_stream),
    Tunable("stream_unroll", (1, 2, 4, 8), when=_streams_singles),
)
CONSTRAINTS = (
    needs("product", "stream", dtypes=("float32", "float16", "bfloat16")),
    Constraint("a_stream_is_for_few_rows", _has_few_rows),
    Constraint("tensor_cores_of_a_stream_multiply_tf32", _unit_multiplies),
    Constraint("stream_rows_hold_the_batch_at_once", _rows_are_of_use),
    Constraint("stream_features_are_of_the_unit", _features_are_of_the_unit),
    Constraint("lanes_of_a_stream_fit_registers", _lanes_fit_registers),
    Constraint("tiles_of_a_stream_fit_registers", _tiles_fit_registers),
    Constraint("a_stream_compiles_soon", _compiles_soon),
    Constraint("parts_of_a_streamed_weight_are_kept", _is_kept),
    Constraint("a_streamed_weight_holds_as_much_as_is_asked_for", _weight_holds_enough),
    Constraint("streams_hold_as_much_as_is_asked_for", _operands_hold_enough),
    Constraint("corrections_are_of_what_is_kept", _corrects_what_is_kept),
)


CONSTRAINTS_OF_INPUTS = (Constraint("a_stream_is_of_one_product", _is_of_one_product),)


class _Streamed(NamedTuple):
    """A weight (features, depth) in 3 bytes an element, or rounded, in 2; all memory is on its device.

    Attributes:
        highs, lows: float16 and int8 (features, whole chunks of the depth), in the order of the lanes that read them;
            a rounded weight has no lows.
        exponents, unfit: int32 (features,): the scale of each row, and whether parts cannot hold it.
    """

    highs: torch.Tensor
    lows: torch.Tensor | None
    exponents: Argument
    unfit: Argument


def stream_product(plan: Plan, model: Keeper, weight: torch.Tensor, x: torch.Tensor, *epilogue: Argument) -> None:
    """Launch x · weightᵀ with the source's epilogue on torch's current stream.

    Args:
        model: keeps the parts of the weight, where these are read.
        weight: (features, depth), float32, on the device of x.
        x: (rows, depth), float32.
        epilogue: what the source's `stream_product` takes behind the sizes, the output among it.
    """
    x, contiguous = x.contiguous(), weight.contiguous()
    (rows, depth), (features, _) = x.shape, contiguous.shape
    parts: tuple[Argument, ...] = (None,) * 4
    if plan["stream_weight"] != "whole":
        settings = (plan["stream_unit"], plan["stream_weight"])
        parts = model.derived("streamed weight", lambda: _split(plan, contiguous), (weight,), settings)
    blocks = plan.once(_grid, rows, features)
    arguments = (x, contiguous, *parts, rows, features, depth, _in_parts(plan, depth))
    plan.launch("stream_product", *arguments, *epilogue, blocks=blocks, threads=_THREADS)


def _split(plan: Plan, weight: torch.Tensor) -> _Streamed:
    (features, depth), device = weight.shape, weight.device
    rows, in_parts = ceil_div(features, _TILE) * _TILE, _in_parts(plan, depth)
    highs = torch.empty(rows, in_parts, dtype=torch.float16, device=device)
    is_rounded = plan["stream_weight"] == "rounded"
    lows = None if is_rounded else torch.empty(rows, in_parts, dtype=torch.int8, device=device)
    notes = torch.empty(2 * features, dtype=torch.int32, device=device)
    exponents, unfit = Within(notes, 0), Within(notes, 4 * features)
    arguments = (weight, highs, lows, exponents, unfit, features, depth, in_parts)
    plan.launch("split_stream", *arguments, blocks=min(features, MOST_BLOCKS), threads=_THREADS)
    return _Streamed(highs, lows, exponents, unfit)


def _in_parts(plan: Plan, depth: int) -> int:
    """Return how much of a depth is kept in parts; the rest is read from the weight as it is."""
    whole = _CHUNK if plan["stream_unit"] == "lanes" else _STEP
    return depth // whole * whole


def _grid(plan: Plan, rows: int, features: int) -> tuple[int, int]:
    of_block = _WARPS // plan.integer("stream_split") * plan.integer("stream_features")
    return ceil_div(features, of_block), ceil_div(rows, plan.integer("stream_rows"))
