"""The search space of a convolution followed by a function, and the least work that any implementation must do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tunebench.kernels.blocks import conv_im2col
from tunebench.kernels.blocks.conv_im2col import IM2COL, IM2COL_PARTS, is_im2col
from tunebench.kernels.shared.early_launches import BEGINS_EARLY, early_launches
from tunebench.kernels.shared.images import geometry_of_axes, sides_of
from tunebench.tuner import constraints
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.kernel import ceil_div
from tunebench.tuner.problem import Problem, Work
from tunebench.tuner.space import Constraint, SearchSpace, Tunable

TILE_FILTERS = 128
TILE_COLUMNS = 128
_STAGING_BYTES = 8 * 320 * 4
"""Bytes of the implicit product's staging buffer (conv_gemm.cuh, like the tiles' sizes above)."""

_REGISTERS_OF_PRODUCT = 4
"""Registers of filters that a thread holds for 16 channels at one place of the window."""
_MOST_HELD_REGISTERS = 96

_LONGEST_HALF_SUM = 16384
"""Limit of the products in a sum that is rounded to halves: with more, scaled weights would be subnormal on average."""

_SIDES = 2
_MOST_DIRECT_CHANNELS = 4
_LARGEST_DIRECT_WINDOW = 49
"""Elements of a window that a thread has in registers."""
_MOST_DIRECT_SUMS, _MOST_SUMS_OF_FILTERS = 16, 128
_FEWEST_DIRECT_FILTERS = 4
_DIRECT_SHARED_BYTES = 32 << 10
"""Upper limit of what the filters of a block take of shared memory, where a thread has several."""

IMPLICIT, IMPLICIT_PARTS = "implicit_gemm", "implicit_parts"
HALF_WEIGHT = ("fp16", IMPLICIT, IMPLICIT_PARTS, IM2COL, IM2COL_PARTS)
_WAYS = ("strict", "tf32", IM2COL_PARTS, IM2COL, IMPLICIT, IMPLICIT_PARTS, "fp16", "direct")
"""Ways to convolve. The default is `im2col`; where that is none, the nearest is next, of two as near the first."""
_STRICT = ("strict", "direct", IM2COL_PARTS, IMPLICIT_PARTS)
"""These round nothing to less than the model's own type; the last two round so little that nobody can tell."""
_ROUNDING = ("convolution", "convolution_layout", "benchmark", "fast_math")
"""The tunables that decide how exact an answer is, cuDNN's own choice of an algorithm among them."""


def space_of(more: Sequence[Tunable], needs: Sequence[Constraint]) -> SearchSpace:
    """Return the space of a block.

    Args:
        more, needs: what the function itself brings.
    """
    tunables = (
        *more,
        Tunable("convolution", _WAYS, default=IM2COL),
        Tunable("direct_filters", (1, 4, 8, 16), default=8, when=_is_direct),
        Tunable("direct_rows", (1, 2, 4, 8, 10), default=4, when=_is_direct),
        Tunable("direct_columns", (1, 2, 4, 8), when=_is_direct),
        Tunable("direct_block_size", (128, 256), default=256, when=_is_direct),
        Tunable("ring_rows", (2, 3, 4, 5, 6, 8), default=4, when=is_implicit),
        Tunable("store_hint", ("normal", "streaming"), when=is_implicit),
        Tunable("writes", ("threads", "bulk"), when=is_implicit),
        Tunable("register_rows", (0, 1, 2, 3), when=_is_bulk),
        Tunable("turns", (False, True), when=_is_bulk),
        early_launches(when=_is_fused),
        Tunable("convolution_layout", ("nchw", "channels_last"), default="channels_last", when=has_passes),
        *conv_im2col.TUNABLES,
        Tunable("benchmark", (False, True), when=_asks_cudnn, host=True),
        Tunable("input_block_size", (128, 256, 512), default=256, when=converts_input),
        Tunable("input_vector_bytes", (4, 8, 16), default=16, when=_reads_packs),
        Tunable("input_tile", (32, 64), default=64, when=_transposes_input),
        Tunable("input_items", (1, 2, 4), when=_casts_input),
        Tunable("output_block_size", (128, 256, 512), default=256, when=_finishes),
        Tunable("output_vector_bytes", (4, 8, 16), default=16, when=_finishes),
        Tunable("output_tile", (32, 64), default=64, when=_relays_output),
        Tunable("output_items", (1, 2, 4), when=_keeps_output),
        Tunable("in_place", (False, True), when=_may_overwrite, host=True),
    )
    conditions = (
        Constraint("precision_is_the_reference's", _precision_allowed),
        Constraint("sum_fits_half_precision", _sum_fits_half),
        Constraint("sums_are_rounded_only_where_they_must", _sums_may_be_rounded),
        constraints.block_fits("input_block_size"),
        constraints.block_fits("output_block_size"),
        # Warpgroup products are Hopper's.
        constraints.needs("convolution", IMPLICIT, dtypes=("float32", "float16", "bfloat16"), architectures=("sm_90",)),
        constraints.needs("convolution", IMPLICIT_PARTS, dtypes=("float32",), architectures=("sm_90",)),
        *conv_im2col.CONSTRAINTS,
        Constraint("implicit_gemm_goes_from_pixel_to_pixel", _is_dense_where_implicit),
        Constraint("kernels_are_of_two_sides", _has_two_sides_where_fused),
        Constraint("direct_channels_are_few", _has_few_channels_where_direct),
        Constraint("direct_threads_share_what_they_read", _shares_reads),
        Constraint("direct_filters_are_held", _holds_direct_filters),
        Constraint("registers_hold_direct_sums", _holds_direct_sums),
        Constraint("a_direct_thread_has_outputs", _has_direct_outputs),
        BEGINS_EARLY,
        Constraint("ring_holds_window", _ring_holds_window),
        Constraint("filters_fit_registers", _filters_fit_registers),
        Constraint("bulk_is_for_planes", _bulk_is_for_planes),
        constraints.shared_memory_fits(
            lambda convolution, ring_rows, writes, problem: (
                0 if _is_bulk(writes) else implicit_shared_bytes(problem, convolution, ring_rows)
            )
        ),
        constraints.shared_memory_fits(
            lambda convolution, ring_rows, register_rows, problem: implicit_shared_bytes(
                problem, convolution, ring_rows, register_rows
            )
        ),
        Constraint("im2col_takes_channels_last", _takes_layout),
    )
    # The gate refuses TF32's where the reference does not round, whatever it may do, as with few channels: what rounds
    # nothing there comes first. The last two are eager's own call before passes of ours: without TF32 cuDNN may choose
    # another algorithm.
    divided: Mapping[str, Value] = {"convolution": IM2COL, "product_columns": 128}
    starts: list[Mapping[str, Value]] = [{**divided, "product_slices": slices} for slices in (8, 4, 3, 2)]
    starts.append({"convolution": IMPLICIT_PARTS})
    # Registers of several filters are too many for a second block of 256 threads.
    several: Mapping[str, Value] = {"convolution": "direct", "direct_filters": 8, "direct_block_size": 128}
    starts += [{**several, "direct_rows": rows} for rows in (10, 8)]
    # A transposed convolution has many columns of short sums: with all of them in a tile, images are copied once.
    starts.append({**divided, "product_columns": 256, "phase_columns": True})
    # With three stages there are two blocks a multiprocessor, of which one writes.
    starts += [{"convolution": IM2COL, "product_stages": stages} for stages in (3, 6)]
    starts += [{"convolution": way} for way in (IM2COL, IMPLICIT, IM2COL_PARTS, "direct")]
    starts += [{"convolution": way, "convolution_layout": "nchw"} for way in ("tf32", "strict")]
    rounding = tuple(one.name for one in tunables if one.name in _ROUNDING)
    return SearchSpace(tunables, (*conditions, *needs), tuple(starts), rounding)


def _channels_of_ring(convolution: str, channels: int) -> int:
    """Return the channels that the implicit product has of images, rounded up; two for each where they are split."""
    return 2 * ceil_div(channels, 8) * 8 if convolution == IMPLICIT_PARTS else ceil_div(channels, 16) * 16


def products_of_place(convolution: str, channels: int) -> int:
    """Return the products of an implicit sum at one place of the window, three for each channel of split ones."""
    more = ceil_div(channels, 16) * 16 if convolution == IMPLICIT_PARTS else 0
    return _channels_of_ring(convolution, channels) + more


def implicit_shared_bytes(problem: Problem, convolution: str, ring_rows: int, register_rows: int | None = None) -> int:
    """Return the shared memory of a block of the implicit product, in bytes.

    Args:
        register_rows: of the window, whose filters stand in registers, where the copy engine writes; else None.
    """
    geometry = geometry_of_axes(problem.axes)
    span = (geometry.kernel[1] - 1) * geometry.dilation[1] + 1
    channels = problem.axes["in_channels"]
    groups, products = _channels_of_ring(convolution, channels) // 8, products_of_place(convolution, channels) // 8
    columns = TILE_COLUMNS + ceil_div(geometry.padding[1] // 2 % 2 + span, 2) * 2
    filters = (geometry.kernel[0] - (register_rows or 0)) * geometry.kernel[1] * products * TILE_FILTERS * 16
    staging = _STAGING_BYTES if register_rows is None else TILE_FILTERS * (TILE_COLUMNS + 8) * problem.item_bytes
    return filters + ring_rows * groups * columns * 16 + staging + (2 * ring_rows + 1) * 8


def work(problem: Problem, element_tensors: int = 0) -> Work:
    """Return the least work: tensors cross memory once; a product and a sum for each weight of each output element.

    Args:
        element_tensors: of the function, each as large as the output.
    """
    axes = problem.axes
    geometry = geometry_of_axes(axes)
    sides = [axes[name] for name in sides_of(axes)]
    outputs = axes["batch"] * axes["out_channels"] * math.prod(geometry.output(*sides))
    inputs = axes["batch"] * axes["in_channels"] * math.prod(sides)
    elements = inputs + outputs * (1 + element_tensors) + axes["out_channels"] * _products(problem)
    # A transposed convolution multiplies each element of the images by as many weights.
    multiplied = inputs // axes["in_channels"] * axes["out_channels"] if geometry.transposed else outputs
    return Work(bytes=elements * problem.item_bytes, operations=2 * multiplied * _products(problem))


def _products(problem: Problem) -> int:
    """Return the number of products that one output element sums, at most where the convolution is transposed."""
    geometry = geometry_of_axes(problem.axes)
    return problem.axes["in_channels"] // geometry.groups * math.prod(geometry.kernel)


def _precision_allowed(convolution: str, problem: Problem, device: Device) -> bool:
    """Allow another precision than the type's own only where the reference's convolution would run in TF32."""
    own = convolution in _STRICT or (_is_fused(convolution) and problem.item_bytes == 2)
    return own or (problem.options["precision"] == "tf32" and device.kind is DeviceKind.CUDA)


def _sum_fits_half(convolution: str, problem: Problem) -> bool:
    return convolution != "fp16" or _products(problem) <= _LONGEST_HALF_SUM


def _sums_may_be_rounded(convolution: str, problem: Problem, device: Device) -> bool:
    """Return whether no kernel has the same products with their sums in single precision, where the library rounds."""
    return convolution != "fp16" or not conv_im2col.reads_halves(problem, device)


def is_implicit(convolution: str) -> bool:
    """Return whether a kernel of ours multiplies images that it lays out nowhere but in shared memory."""
    return convolution in (IMPLICIT, IMPLICIT_PARTS)


def _is_fused(convolution: str) -> bool:
    """Return whether a kernel of ours multiplies and does all that is behind it, by tensor cores."""
    return is_implicit(convolution) or is_im2col(convolution)


def _is_bulk(writes: str) -> bool:
    return writes == "bulk"


def _filters_fit_registers(convolution: str, register_rows: int, problem: Problem) -> bool:
    """Return whether the window has so many rows, and they fit in the registers that the accumulators leave free."""
    axes = problem.axes
    products = products_of_place(convolution, axes["in_channels"]) // 16
    held = register_rows * axes["kernel_width"] * products * _REGISTERS_OF_PRODUCT
    return register_rows <= axes["kernel_height"] and held <= _MOST_HELD_REGISTERS


def _bulk_is_for_planes(writes: str, problem: Problem) -> bool:
    return not _is_bulk(writes) or problem.options["output"] == "nchw"


def _is_direct(convolution: str) -> bool:
    return convolution == "direct"


def _has_few_channels_where_direct(convolution: str, problem: Problem) -> bool:
    channels = problem.axes["in_channels"] // problem.axes.get("groups", 1)
    return not _is_direct(convolution) or channels <= _MOST_DIRECT_CHANNELS


def _shares_reads(direct_filters: int, problem: Problem) -> bool:
    """Return whether a thread has several filters where a group has them, and little more than there are.

    Torch's own kernels for channels by themselves leave zeros out, which the one of a single filter does too.
    """
    axes = problem.axes
    groups = axes.get("groups", 1)
    filters = axes["out_channels"] // groups
    if filters < _FEWEST_DIRECT_FILTERS or (groups > 1 and axes["in_channels"] == groups):
        return direct_filters == 1
    return 1 < direct_filters < filters + _FEWEST_DIRECT_FILTERS


def _holds_direct_filters(direct_filters: int, problem: Problem) -> bool:
    """Return whether registers hold the window of one filter, with two sides, or shared memory those of several."""
    kernel = geometry_of_axes(problem.axes).kernel
    if direct_filters == 1:
        return len(kernel) == _SIDES and math.prod(kernel) <= _LARGEST_DIRECT_WINDOW
    return direct_filters * _products(problem) * max(4, problem.item_bytes) <= _DIRECT_SHARED_BYTES


def _holds_direct_sums(direct_filters: int, direct_rows: int, direct_columns: int) -> bool:
    if direct_filters == 1:
        return direct_rows * direct_columns <= _MOST_DIRECT_SUMS
    return direct_columns == 1 and direct_rows * direct_filters <= _MOST_SUMS_OF_FILTERS


def _has_direct_outputs(convolution: str, direct_rows: int, direct_columns: int, problem: Problem) -> bool:
    """Return whether at most half of a thread's outputs are beyond the image's ends."""
    axes = problem.axes
    *_, height, width = geometry_of_axes(axes).output(*(axes[name] for name in sides_of(axes)))
    return not _is_direct(convolution) or (direct_rows < 2 * height and direct_columns < 2 * width)


def has_passes(convolution: str) -> bool:
    """Return whether passes of ours stand in front of a convolution."""
    return not (is_implicit(convolution) or _is_direct(convolution))


def _is_dense_where_implicit(convolution: str, problem: Problem) -> bool:
    geometry = geometry_of_axes(problem.axes)
    return not is_implicit(convolution) or (geometry.stride == (1, 1) and geometry.groups == 1)


def _has_two_sides_where_fused(convolution: str, problem: Problem) -> bool:
    geometry = geometry_of_axes(problem.axes)
    has_sides = len(geometry.kernel) == _SIDES or _is_direct(convolution)
    return has_passes(convolution) or (has_sides and not geometry.transposed)


def _takes_layout(convolution: str, convolution_layout: str) -> bool:
    return not is_im2col(convolution) or convolution_layout == "channels_last"


def _asks_cudnn(convolution: str, device: Device) -> bool:
    return convolution in ("strict", "tf32", "fp16") and device.kind is DeviceKind.CUDA


def _ring_holds_window(ring_rows: int, problem: Problem) -> bool:
    """Return whether the ring has room for the window of one row, and the next row of x."""
    geometry = geometry_of_axes(problem.axes)
    return (geometry.kernel[0] - 1) * geometry.dilation[0] + 1 < ring_rows


def relays_input(convolution_layout: str, problem: Problem) -> bool:
    """Return whether images lie in another layout than the convolution takes."""
    return convolution_layout != problem.options["input"]


def _rounds_input(convolution: str, problem: Problem) -> bool:
    """Return whether images in single precision are rounded to halves."""
    return convolution == "fp16" or (is_im2col(convolution) and problem.item_bytes == 4)


def converts_input(convolution: str, convolution_layout: str, problem: Problem) -> bool:
    """Return whether the pass in front changes images at all."""
    return _rounds_input(convolution, problem) or relays_input(convolution_layout, problem)


def _reads_packs(convolution: str, convolution_layout: str, problem: Problem) -> bool:
    """Return whether the pass in front reads neighbours at once: one that folds reads pixels."""
    is_folded = is_im2col(convolution) and conv_im2col.folds(problem)
    return converts_input(convolution, convolution_layout, problem) and not is_folded


def _transposes_input(convolution: str, convolution_layout: str, problem: Problem) -> bool:
    return _reads_packs(convolution, convolution_layout, problem) and relays_input(convolution_layout, problem)


def _casts_input(convolution: str, convolution_layout: str, problem: Problem) -> bool:
    return _rounds_input(convolution, problem) and not relays_input(convolution_layout, problem)


def _relays_output(convolution: str, convolution_layout: str, problem: Problem) -> bool:
    return not is_im2col(convolution) and convolution_layout != problem.options["output"]


def _finishes(convolution: str) -> bool:
    """Return whether a pass of ours comes last."""
    return has_passes(convolution) and not is_im2col(convolution)


def _keeps_output(convolution: str, convolution_layout: str, problem: Problem) -> bool:
    """Return whether a pass of ours comes last, in the convolution's own layout."""
    return _finishes(convolution) and not _relays_output(convolution, convolution_layout, problem)


def _may_overwrite(convolution: str, convolution_layout: str, problem: Problem) -> bool:
    """Return whether the output may be the convolution's own memory: same type, same layout."""
    return convolution != "fp16" and _keeps_output(convolution, convolution_layout, problem)
