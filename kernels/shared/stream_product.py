"""The host's side of `include/stream_product.cuh`: the fp32 product of few rows, as one pass over the weight."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.build import Argument, Within
from tunebench.tuner.constraints import needs
from tunebench.tuner.device import MOST_BLOCKS
from tunebench.tuner.kernel import Mode, Plan, ceil_div
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import Constraint, Tunable

MOST_ROWS = 64
"""Beyond, arithmetic in fp32 takes longer than reading the weight several times over."""

_THREADS = 256
_WARPS = _THREADS // 32
_CHUNK = 256
_MOST_ROWS_AT_ONCE = 32
_RUN = 8
_MOST_REGISTERS = 160
_MOST_READS = 16


def is_stream(product: str) -> bool:
    """Whether the product is a pass over the weight."""
    return product == "stream"


def _has_few_rows(product: str, problem: Problem) -> bool:
    return product != "stream" or problem.axes["rows"] <= MOST_ROWS


def _rows_are_of_use(stream_rows: int, problem: Problem) -> bool:
    """No more rows at once than a power of two that holds the batch, and no fewer, so that the weight is read once."""
    rows = min(problem.axes["rows"], _MOST_ROWS_AT_ONCE)
    return stream_rows // 2 < rows <= stream_rows


def _fits_registers(stream_rows: int, stream_features: int) -> bool:
    """Sums, and what a lane reads of the weight at once."""
    return stream_features * (stream_rows + _RUN) <= _MOST_REGISTERS


def _reads_fit_registers(stream_rows: int, stream_unroll: int) -> bool:
    """What is read of x in all steps that are under way."""
    return stream_unroll == 1 or stream_rows * stream_unroll <= _MOST_READS


def _is_kept(stream_weight: str, problem: Problem) -> bool:
    """Splitting the weight in every call would cost more than it saves."""
    return stream_weight == "whole" or problem.options.get("mode") == Mode.FROZEN


TUNABLES = (
    Tunable("stream_weight", ("whole", "parts"), when=is_stream),
    Tunable("stream_rows", (1, 2, 4, 8, 16, 32), when=is_stream),
    Tunable("stream_features", (1, 2, 4, 8), default=4, when=is_stream),
    Tunable("stream_split", (1, 2, 4, 8), when=is_stream),
    Tunable("stream_unroll", (1, 2, 4), when=is_stream),
)
CONSTRAINTS = (
    needs("product", "stream", dtypes=("float32",)),
    Constraint("a_stream_is_for_few_rows", _has_few_rows),
    Constraint("stream_rows_hold_the_batch_at_once", _rows_are_of_use),
    Constraint("a_stream_fits_registers", _fits_registers),
    Constraint("reads_of_a_stream_fit_registers", _reads_fit_registers),
    Constraint("parts_of_a_streamed_weight_are_kept", _is_kept),
)


class _Streamed(NamedTuple):
    """A weight (features, depth) in 3 bytes an element; all memory is on its device.

    Attributes:
        highs, lows: float16 and int8 (features, whole chunks of the depth), in the order of the lanes that read them.
        exponents, unfit: int32 (features,): the scale of each row, and whether parts cannot hold it.
    """

    highs: torch.Tensor
    lows: torch.Tensor
    exponents: Argument
    unfit: Argument


def stream_product(
    plan: Plan, model: TunedModule, weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor
) -> torch.Tensor:
    """x · weightᵀ + bias, float32 (rows, features), by one launch on torch's current stream.

    Args:
        model: keeps the parts of the weight, where these are read.
        weight: (features, depth), float32, on the device of x.
        x: (rows, depth), float32.
    """
    x, contiguous = x.contiguous(), weight.contiguous()
    (rows, depth), (features, _) = x.shape, contiguous.shape
    parts: tuple[Argument, ...] = (None,) * 4
    if plan["stream_weight"] == "parts":
        parts = model.derived("streamed weight", lambda: _split(plan, contiguous), (weight,))
    output = x.new_empty(rows, features)
    added = None if bias is None else bias.contiguous()
    blocks = plan.once(_grid, rows, features)
    arguments = (x, contiguous, *parts, added, output, rows, features, depth, _chunked(depth))
    plan.launch("stream_product", *arguments, blocks=blocks, threads=_THREADS)
    return output


def _split(plan: Plan, weight: torch.Tensor) -> _Streamed:
    (features, depth), device = weight.shape, weight.device
    highs = torch.empty(features, _chunked(depth), dtype=torch.float16, device=device)
    lows = torch.empty(features, _chunked(depth), dtype=torch.int8, device=device)
    notes = torch.empty(2 * features, dtype=torch.int32, device=device)
    exponents, unfit = Within(notes, 0), Within(notes, 4 * features)
    arguments = (weight, highs, lows, exponents, unfit, features, depth, _chunked(depth))
    plan.launch("split_stream", *arguments, blocks=min(features, MOST_BLOCKS), threads=_THREADS)
    return _Streamed(highs, lows, exponents, unfit)


def _chunked(depth: int) -> int:
    """What is in whole chunks of a depth; the rest is read from the weight as it is."""
    return depth // _CHUNK * _CHUNK


def _grid(plan: Plan, rows: int, features: int) -> tuple[int, int]:
    of_block = _WARPS // plan.integer("stream_split") * plan.integer("stream_features")
    return ceil_div(features, of_block), ceil_div(rows, plan.integer("stream_rows"))
