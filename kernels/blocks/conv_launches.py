"""The launches of a convolution's own passes and kernel, and their grids and buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from tunebench.kernels.blocks.conv_space import TILE_COLUMNS, TILE_FILTERS, implicit_shared_bytes
from tunebench.kernels.shared import REPAIR_THREADS
from tunebench.kernels.shared.images import geometry_of_axes, layout_of, memory_format, sides_of
from tunebench.tuner.build import Argument
from tunebench.tuner.device import MOST_BLOCKS
from tunebench.tuner.kernel import Plan, ceil_div

_WEIGHT_THREADS = 128
_REPAIR_BLOCKS = 4
"""Blocks of `repair` for each multiprocessor: it almost never has work."""
_IMPLICIT_THREADS = 384


class Behind(NamedTuple):
    """The operands applied after the convolution in a call, as entry points take them.

    Attributes:
        bias: of the layer.
        tensors, numbers: the function's operands.
        factors: what undoes the scales of half precision, of each output channel; None where nothing is scaled.
    """

    bias: torch.Tensor | None
    tensors: tuple[torch.Tensor, ...]
    factors: torch.Tensor | None
    numbers: tuple[float, ...]


def half_weight(
    plan: Plan, weight: torch.Tensor, samples: int
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return the scaled weight, the factors that undo the scales, and zeros for the largest value of each sample.

    A weight of a half type is as it is, without the other two.
    """
    scales = weight.dtype == torch.float32
    dtype = torch.float16 if scales else weight.dtype
    if plan["convolution"] == "implicit_gemm":
        elements, make = plan.once(_implicit_filters, *weight.shape)
        halves = make(elements, dtype=dtype, device=weight.device)
    else:
        layout = memory_format(str(plan["convolution_layout"]), weight.dim())
        halves = torch.empty(weight.shape, dtype=dtype, device=weight.device, memory_format=layout)
    filters, channels = plan.problem.axes["out_channels"], plan.once(_channels_of_group)
    factors = torch.empty(filters, dtype=torch.float32, device=weight.device) if scales else None
    largest = torch.empty(samples, dtype=torch.int32, device=weight.device) if scales else None
    counts = (samples, channels, weight.shape[2:].numel())
    arguments = (weight, halves, factors, largest, *counts, _is_last(plan, weight))
    early = bool(plan["early_launches"])
    plan.launch("prepare_weight", *arguments, blocks=filters, threads=_WEIGHT_THREADS, early=early)
    return halves, factors, largest


def converted(plan: Plan, x: torch.Tensor, dtype: torch.dtype, largest: Argument) -> torch.Tensor:
    """Return x in the convolution's layout and type."""
    layout = str(plan["convolution_layout"])
    to = torch.empty(x.shape, dtype=dtype, device=x.device, memory_format=memory_format(layout, x.dim()))
    threads = plan.integer("input_block_size")
    samples, channels, pixels = x.shape[0], x.shape[1], x.shape[2:].numel()
    if layout != plan.problem.options["input"]:
        tile = plan.integer("input_tile")
        entry_point, sizes = "transpose_input", [samples, channels, pixels]
        blocks = samples * ceil_div(channels, tile) * ceil_div(pixels, tile)
    else:
        width = _width(plan, "input_vector_bytes")
        entry_point, sizes = "cast_input", [samples, channels * pixels]
        blocks = samples * ceil_div(channels * pixels, threads * plan.integer("input_items") * width)
    plan.launch(entry_point, x, to, largest, *sizes, blocks=min(blocks, MOST_BLOCKS), threads=threads)
    return to


def finish(plan: Plan, product: torch.Tensor, behind: Behind) -> torch.Tensor:
    """Apply everything behind the convolution, in the output's layout."""
    options = plan.problem.options
    output = product
    if not plan["in_place"]:
        dtype = getattr(torch, plan.problem.dtype)
        layout = memory_format(options["output"], product.dim())
        output = torch.empty(product.shape, dtype=dtype, device=product.device, memory_format=layout)
    threads = plan.integer("output_block_size")
    samples, channels, pixels = product.shape[0], product.shape[1], product.shape[2:].numel()
    if plan["convolution_layout"] != options["output"]:
        tile = plan.integer("output_tile")
        entry_point = "transpose_output"
        blocks = samples * ceil_div(channels, tile) * ceil_div(pixels, tile)
    else:
        chunk = threads * plan.integer("output_items") * _width(plan, "output_vector_bytes")
        entry_point = "finish"
        in_planes = plan["convolution_layout"] == "nchw"
        planes, elements = (samples * channels, pixels) if in_planes else (1, product.numel())
        blocks = planes * ceil_div(elements, chunk)
    arguments = (
        product,
        output,
        behind.bias,
        *behind.tensors,
        behind.factors,
        *behind.numbers,
        samples,
        channels,
        pixels,
    )
    plan.launch(entry_point, *arguments, blocks=min(blocks, MOST_BLOCKS), threads=threads)
    return output


def implicit_gemm(
    plan: Plan, x: torch.Tensor, filters: torch.Tensor, largest: torch.Tensor | None, behind: Behind
) -> torch.Tensor:
    """Run the whole model in one kernel."""
    shape, blocks, shared = plan.once(_implicit_geometry)
    layout = memory_format(plan.problem.options["output"], x.dim())
    output = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)
    sizes = (shape[0], shape[1], x.shape[2], x.shape[3])
    arguments = (x, filters, output, behind.bias, *behind.tensors, behind.factors, largest, *behind.numbers, *sizes)
    early = bool(plan["early_launches"])
    plan.launch("implicit_gemm", *arguments, blocks=blocks, threads=_IMPLICIT_THREADS, shared=shared, early=early)
    return output


def direct(plan: Plan, x: torch.Tensor, weight: torch.Tensor, behind: Behind) -> torch.Tensor:
    """Run the whole model in one kernel, of few channels a group."""
    shape = plan.once(_output_shape)
    output = torch.empty(
        shape, dtype=x.dtype, device=x.device, memory_format=memory_format(plan.problem.options["output"], x.dim())
    )
    threads, rows = plan.integer("direct_block_size"), ceil_div(shape[-2], plan.integer("direct_rows"))
    blocks = min(ceil_div(shape[0] * shape[1] * rows * shape[-1], threads), MOST_BLOCKS)
    arguments = (x, weight, output, behind.bias, *behind.tensors, None, *behind.numbers, *plan.once(_sizes))
    plan.launch("direct_convolution", *arguments, *_lies(plan, weight), blocks=blocks, threads=threads)
    return output


def repair(
    plan: Plan, x: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, largest: torch.Tensor, behind: Behind
) -> None:
    """Compute again what lay outside the range of half precision."""
    sizes = plan.once(_sizes)
    blocks = min(sizes[0] * sizes[1], _REPAIR_BLOCKS * plan.device.multiprocessors)
    arguments = (x, weight, output, behind.bias, *behind.tensors, behind.factors, largest, *behind.numbers, *sizes)
    early = bool(plan["early_launches"])
    plan.launch("repair", *arguments, *_lies(plan, weight), blocks=blocks, threads=REPAIR_THREADS, early=early)


def _sizes(plan: Plan) -> tuple[int, ...]:
    """Return samples, output channels, and the last two sides of the images."""
    return tuple(plan.problem.axes[name] for name in ("batch", "out_channels", "height", "width"))


def _lies(plan: Plan, weight: torch.Tensor) -> tuple[bool, int]:
    """Return whether filters lie channels-last, and the images' first side."""
    return _is_last(plan, weight), plan.problem.axes.get("depth", 1)


def _output_shape(plan: Plan) -> tuple[int, ...]:
    axes = plan.problem.axes
    sides = geometry_of_axes(axes).output(*(axes[name] for name in sides_of(axes)))
    return axes["batch"], axes["out_channels"], *sides


def _channels_of_group(plan: Plan) -> int:
    return plan.problem.axes["in_channels"] // geometry_of_axes(plan.problem.axes).groups


def _implicit_filters(
    _plan: Plan, filters: int, channels: int, height: int, width: int
) -> tuple[int, Callable[..., torch.Tensor]]:
    """Return how many elements the implicit product's filters have, and what makes their memory."""
    elements = ceil_div(filters, TILE_FILTERS) * height * width * ceil_div(channels, 16) * 2 * TILE_FILTERS * 8
    whole = filters % TILE_FILTERS == 0 and channels % 16 == 0
    return elements, torch.empty if whole else torch.zeros  # what fills the last tile and group up counts as 0


def _implicit_geometry(plan: Plan) -> tuple[tuple[int, ...], tuple[int, int], int]:
    """Return the output of the implicit product, its blocks, and their shared memory in bytes."""
    shape = _output_shape(plan)
    rows = shape[0] * shape[2] * ceil_div(shape[3], TILE_COLUMNS)
    tiles = ceil_div(shape[1], TILE_FILTERS)
    blocks = (min(rows, ceil_div(plan.device.multiprocessors, tiles)), tiles)
    register_rows = plan.integer("register_rows") if plan["writes"] == "bulk" else None
    return shape, blocks, implicit_shared_bytes(plan.problem, plan.integer("ring_rows"), register_rows)


def _is_last(plan: Plan, weight: torch.Tensor) -> bool:
    """Return whether filters lie channels-last."""
    return plan.once(_is_channels_last, weight.shape, weight.stride())


def _is_channels_last(_plan: Plan, shape: torch.Size, stride: tuple[int, ...]) -> bool:
    return layout_of(torch.empty_strided(shape, stride, device="meta")) == "channels_last"


def _width(plan: Plan, tunable: str) -> int:
    """Return how many elements of the model's type one access of so many bytes has."""
    return max(1, plan.integer(tunable) // plan.problem.item_bytes)
