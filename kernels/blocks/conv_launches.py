"""The launches of a convolution's own passes and kernel, and their grids and buffers."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from tunebench.kernels.blocks.conv_im2col import (
    IM2COL,
    IM2COL_THREADS,
    folds,
    im2col_launch,
    is_im2col,
    rows_are_filled_up,
    rows_of_filters,
    shape_of_images,
)
from tunebench.kernels.blocks.conv_space import (
    HALF_WEIGHT,
    TILE_COLUMNS,
    TILE_FILTERS,
    converts_input,
    has_passes,
    implicit_shared_bytes,
    is_implicit,
    products_of_place,
    relays_input,
)
from tunebench.kernels.shared import REPAIR_THREADS
from tunebench.kernels.shared.alignment import aligned, is_aligned
from tunebench.kernels.shared.images import geometry_of_axes, layout_of, memory_format, sides_of
from tunebench.tuner.build import Argument
from tunebench.tuner.device import MOST_BLOCKS
from tunebench.tuner.kernel import Plan, ceil_div
from tunebench.tuner.tensor_map import TensorMap

_REPAIR_BLOCKS = 4
"""Blocks of `repair` for each multiprocessor: it almost never has work."""
_IMPLICIT_THREADS = 384
_FOLDED_PIXELS = 4
"""Pixels of a thread where the pass in front folds channels."""


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


class Operands(NamedTuple):
    """The operands of a convolution, in its own layouts and types.

    Attributes:
        factors: what undoes the scales of half precision, of each output channel; None where nothing is scaled.
        largest: the largest absolute values of each sample, of so many parts of it; None where nothing is scaled.
    """

    x: torch.Tensor
    weight: torch.Tensor
    factors: torch.Tensor | None
    largest: torch.Tensor | None


class Memory(NamedTuple):
    """The shape, type and layout of a tensor that a call makes.

    Attributes:
        is_zero: whether all of it is zero at first.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: torch.memory_format = torch.contiguous_format
    is_zero: bool = False

    def on(self, device: torch.device) -> torch.Tensor:
        """Return it on a device."""
        if self.is_zero:
            return torch.zeros(self.shape, dtype=self.dtype, device=device)
        return torch.empty(self.shape, dtype=self.dtype, device=device, memory_format=self.layout)


class Preparation(NamedTuple):
    """The launch in front of a convolution, of filters that lie in one way.

    Attributes:
        source, halves: memory for images and filters that are laid out anew; None where they are taken as they are.
        layout: of filters that are taken as they are.
        aligns: whether images that are taken as they are have to begin at a multiple of 16 bytes.
        is_as_copied: whether filters lie as the copy engine reads them, so that aligned ones are taken too.
        factors, largest: see `Operands`.
        blocks: for the images.
        sizes: what the entry point is given of the images: samples, channels, pixels and width.
    """

    source: Memory | None
    halves: Memory | None
    layout: torch.memory_format
    aligns: bool
    is_as_copied: bool
    factors: Memory | None
    largest: Memory | None
    blocks: int
    sizes: tuple[int, int, int, int]


def prepared(plan: Plan, x: torch.Tensor, weight: torch.Tensor) -> Operands:
    """Return what the convolution multiplies, made by one launch where anything has to be."""
    found, device = plan.once(_preparation, weight.shape, weight.stride()), x.device
    source = found.source.on(device) if found.source else aligned(x) if found.aligns else x
    filters, halves = 0, weight
    if found.halves is None:
        halves = weight.contiguous(memory_format=found.layout)
    elif not (found.is_as_copied and is_aligned(weight)):
        filters, halves = plan.problem.axes["out_channels"], found.halves.on(device)
    factors = found.factors.on(device) if found.factors else None
    largest = found.largest.on(device) if found.largest else None
    if found.source or filters:
        of_weight = (weight, halves, factors, filters, plan.once(_lies, weight.shape, weight.stride())[0])
        blocks = filters + min(found.blocks, MOST_BLOCKS - filters)
        early, threads = bool(plan["early_launches"]), plan.integer("input_block_size")
        plan.launch(
            "prepare", *of_weight, x, source, largest, *found.sizes, blocks=blocks, threads=threads, early=early
        )
    return Operands(source, halves, factors, largest)


def _preparation(plan: Plan, shape: torch.Size, stride: tuple[int, ...]) -> Preparation:
    convolution, axes, dtype = str(plan["convolution"]), plan.problem.axes, getattr(torch, plan.problem.dtype)
    scales = convolution in HALF_WEIGHT and dtype == torch.float32
    stored = torch.float16 if scales else dtype
    samples, channels, sides = axes["batch"], axes["in_channels"], tuple(axes[name] for name in sides_of(axes))
    layout = memory_format(str(plan["convolution_layout"]), len(shape))
    pixels, source, parts = math.prod(sides), None, 1
    if has_passes(convolution) and converts_input(convolution, str(plan["convolution_layout"]), plan.problem):
        source = Memory((samples, channels, *sides), stored, layout)
        if is_im2col(convolution):
            source = Memory(shape_of_images(plan), stored)
        parts = _parts_of_sample(plan, channels, pixels)
    return Preparation(
        source,
        _filters(plan, shape, stored, layout) if convolution in HALF_WEIGHT else None,
        layout,
        aligns=is_im2col(convolution),
        is_as_copied=not scales and _is_as_copied(plan, shape, stride),
        factors=Memory((axes["out_channels"],), torch.float32) if scales else None,
        largest=Memory((samples, parts), torch.int32) if scales else None,
        blocks=samples * parts if source else 0,
        sizes=(samples, channels, pixels, sides[-1]),
    )


def _parts_of_sample(plan: Plan, channels: int, pixels: int) -> int:
    """Return how many tiles, or chunks, a sample has in the pass."""
    if is_im2col(str(plan["convolution"])) and folds(plan.problem):
        _, *rows, _, columns, _ = shape_of_images(plan)
        return ceil_div(math.prod(rows) * columns, plan.integer("input_block_size") * _FOLDED_PIXELS)
    if relays_input(str(plan["convolution_layout"]), plan.problem):
        tile = plan.integer("input_tile")
        return ceil_div(channels, tile) * ceil_div(pixels, tile)
    of_thread = plan.integer("input_items") * _width(plan, "input_vector_bytes")
    return ceil_div(channels * pixels, plan.integer("input_block_size") * of_thread)


def _filters(plan: Plan, shape: torch.Size, dtype: torch.dtype, layout: torch.memory_format) -> Memory:
    """Return the memory for filters in the convolution's layout."""
    filters, channels, *window = shape
    if is_im2col(str(plan["convolution"])):
        # Elements that fill up a row are multiplied, so they are 0. Products of rows that fill up a group are not kept.
        return Memory((math.prod(rows_of_filters(plan)),), dtype, is_zero=rows_are_filled_up(plan))
    if is_implicit(convolution := str(plan["convolution"])):
        products = products_of_place(convolution, channels)
        elements = ceil_div(filters, TILE_FILTERS) * TILE_FILTERS * math.prod(window) * products
        is_full = filters % TILE_FILTERS == 0 and channels % 16 == 0
        return Memory((elements,), dtype, is_zero=not is_full)
    return Memory(tuple(shape), dtype, layout)


def finish(plan: Plan, product: torch.Tensor, behind: Behind) -> torch.Tensor:
    """Apply everything behind the convolution, in the output's layout."""
    options = plan.problem.options
    output = product if plan["in_place"] else _empty_output(plan, product)
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


def implicit_gemm(plan: Plan, operands: Operands, behind: Behind) -> torch.Tensor:
    """Run the whole model in one kernel."""
    blocks, shared = plan.once(_implicit_geometry)
    output, sizes = _empty_output(plan, operands.x), plan.once(_sizes)
    given: tuple[Argument, ...] = (operands.x, operands.weight, output, behind.bias, *behind.tensors)
    given = (*given, behind.factors, operands.largest, *behind.numbers, *sizes)
    early = bool(plan["early_launches"])
    plan.launch("implicit_gemm", *given, blocks=blocks, threads=_IMPLICIT_THREADS, shared=shared, early=early)
    return output


def im2col(plan: Plan, operands: Operands, behind: Behind) -> torch.Tensor:
    """Run the convolution and all that is behind it in one kernel."""
    found, output = plan.once(im2col_launch), _empty_output(plan, operands.x)
    maps = (TensorMap(operands.x, found.x), TensorMap(operands.weight, found.filters))
    given = (*maps, output, behind.bias, *behind.tensors, behind.factors, *behind.numbers, *plan.once(_sizes))
    early, depth = bool(plan["early_launches"]), plan.once(_depth)
    plan.launch(
        "im2col_product", *given, depth, blocks=found.blocks, threads=IM2COL_THREADS, shared=found.shared, early=early
    )
    return output


def direct(plan: Plan, x: torch.Tensor, weight: torch.Tensor, behind: Behind) -> torch.Tensor:
    """Run the whole model in one kernel, of few channels a group."""
    output, blocks = _empty_output(plan, x), plan.once(_direct_blocks)
    threads = plan.integer("direct_block_size")
    lies = plan.once(_lies, weight.shape, weight.stride())
    arguments = (x, weight, output, behind.bias, *behind.tensors, None, *behind.numbers, *plan.once(_sizes), *lies)
    plan.launch("direct_convolution", *arguments, blocks=blocks, threads=threads)
    return output


def _direct_blocks(plan: Plan) -> int:
    """Return the blocks of the direct kernel: as many for each tile of filters, where threads have several."""
    samples, filters, *outer, height, width = _output_shape(plan)
    rows, across = ceil_div(height, plan.integer("direct_rows")), ceil_div(width, plan.integer("direct_columns"))
    groups, threads = plan.problem.axes.get("groups", 1), plan.integer("direct_block_size")
    outputs, of_thread = samples * math.prod(outer) * rows * across, plan.integer("direct_filters")
    if of_thread == 1:
        return min(ceil_div(outputs * filters, threads), MOST_BLOCKS)
    tiles = groups * ceil_div(filters // groups, of_thread)  # each block's filters are of one
    return tiles * min(ceil_div(outputs, threads), max(1, MOST_BLOCKS // tiles))


def repair(
    plan: Plan, x: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, largest: torch.Tensor, behind: Behind
) -> None:
    """Compute again what lay outside the range of half precision."""
    sizes = plan.once(_sizes)
    blocks = min(sizes[0] * sizes[1], _REPAIR_BLOCKS * plan.device.multiprocessors)
    given = (x, weight, output, behind.bias, *behind.tensors, behind.factors, largest, *behind.numbers)
    early = bool(plan["early_launches"])
    sizes = (largest.shape[1], *sizes, *plan.once(_lies, weight.shape, weight.stride()))
    plan.launch("repair", *given, *sizes, blocks=blocks, threads=REPAIR_THREADS, early=early)


def _sizes(plan: Plan) -> tuple[int, ...]:
    """Return samples, output channels, and the last two sides of the images."""
    return tuple(plan.problem.axes[name] for name in ("batch", "out_channels", "height", "width"))


def _lies(plan: Plan, shape: torch.Size, stride: tuple[int, ...]) -> tuple[bool, int]:
    """Return whether filters lie channels-last, and the images' first side."""
    return _is_channels_last(shape, stride), _depth(plan)


def _depth(plan: Plan) -> int:
    return plan.problem.axes.get("depth", 1)


def _empty_output(plan: Plan, x: torch.Tensor) -> torch.Tensor:
    """Return memory for the output, in its layout."""
    return plan.once(_output).on(x.device)


def _output(plan: Plan) -> Memory:
    shape, dtype = _output_shape(plan), getattr(torch, plan.problem.dtype)
    return Memory(shape, dtype, memory_format(plan.problem.options["output"], len(shape)))


def _output_shape(plan: Plan) -> tuple[int, ...]:
    axes = plan.problem.axes
    sides = geometry_of_axes(axes).output(*(axes[name] for name in sides_of(axes)))
    return axes["batch"], axes["out_channels"], *sides


def _is_as_copied(plan: Plan, shape: torch.Size, stride: tuple[int, ...]) -> bool:
    """Return whether filters lie as the copy engine is to read them."""
    is_whole = plan["convolution"] == IM2COL and math.prod(rows_of_filters(plan)) == math.prod(shape)
    return is_whole and not plan.problem.axes.get("transposed", 0) and _is_channels_last(shape, stride)


def _implicit_geometry(plan: Plan) -> tuple[tuple[int, int], int]:
    """Return the blocks of the implicit product, and their shared memory in bytes."""
    shape = _output_shape(plan)
    rows = shape[0] * shape[2] * ceil_div(shape[3], TILE_COLUMNS)
    tiles = ceil_div(shape[1], TILE_FILTERS)
    blocks = (min(rows, ceil_div(plan.device.multiprocessors, tiles)), tiles)
    register_rows = plan.integer("register_rows") if plan["writes"] == "bulk" else None
    convolution = str(plan["convolution"])
    return blocks, implicit_shared_bytes(plan.problem, convolution, plan.integer("ring_rows"), register_rows)


def _is_channels_last(shape: torch.Size, stride: tuple[int, ...]) -> bool:
    return layout_of(torch.empty_strided(shape, stride, device="meta")) == "channels_last"


def _width(plan: Plan, tunable: str) -> int:
    """Return how many elements of the model's type one access of so many bytes has."""
    return max(1, plan.integer(tunable) // plan.problem.item_bytes)
