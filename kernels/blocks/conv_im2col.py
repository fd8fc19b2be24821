"""The host's side of `conv_im2col.cuh`: the product of windows and filters that the copy engine lays out.

Few channels are folded: what a row of the window sees, pixel by pixel, counts as the channels of one place. Else three
channels would be multiplied as the sixteen that a product has at least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tunebench.kernels.shared.images import Geometry, geometry_of_axes, sides_of
from tunebench.tuner import constraints
from tunebench.tuner.device import Device
from tunebench.tuner.kernel import Plan, ceil_div
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import Constraint, Tunable
from tunebench.tuner.tensor_map import MapLayout, Windows

IM2COL, IM2COL_PARTS = "im2col", "im2col_parts"
"""Values of `convolution`: operands in halves, and each in two halves, which have single precision's mantissa."""

_TILE_PIXELS = 128
_FILTERS_OF_MAP = 32
_COLUMN_RUN = 8
_LEAST_COPY, _LEAST_COLUMNS = 16, 16
"""Channels of a copy at least, and columns of a group whose channels are half of that."""
_CHANNELS_OF_PITCH = 8
IM2COL_THREADS = 288
_STATIC_BYTES = 12288
"""Bytes of shared memory beside the pipeline's, at most: what channels have, and sums on their way."""
_SHARED_BYTES = 227 << 10
"""A multiprocessor of Hopper has so much shared memory for its blocks."""
_RESIDENT = {64: 3, 128: 2}
"""Blocks of so many columns that a multiprocessor has registers for; else one."""
_CORNERS = {2: (-128, 127), 3: (-16, 15)}
"""Where the copy engine's windows may begin outside of images with so many sides."""
_MOST_STEPS = 8
_CLUSTERS_AT_ONCE = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15}
"""Clusters of so many blocks that the 132 multiprocessors of an H200 have at once, each with one block
(cuOccupancyMaxActiveClusters). A cluster has to lie within one of the card's parts, so that some are left over."""
_STAGE = 64
"""Products of a sum in a stage of the pipeline."""
_SHORT_SUM, _STAGES_OF_SHORT_SUM = 3 * _STAGE, 4


def is_im2col(convolution: str) -> bool:
    """Return whether the copy engine lays the windows out."""
    return convolution in (IM2COL, IM2COL_PARTS)


class _Side(NamedTuple):
    """The windows along a side of the images, those of a phase where the convolution is transposed.

    Attributes:
        number: of windows.
        lower, upper: where the first begins, and the last, from the image's last element on.
        step: from one to the next.
        reach: the farthest place of a window from its first.
    """

    number: int
    lower: int
    upper: int
    step: int
    reach: int


def folds(problem: Problem) -> bool:
    """Return whether the pass in front folds the images' channels."""
    geometry = geometry_of_axes(problem.axes)
    dense = not geometry.transposed and geometry.groups == 1 and geometry.dilation[-1] == 1
    is_few = problem.axes["in_channels"] <= _CHANNELS_OF_PITCH and geometry.kernel[-1] > 1
    return dense and is_few and problem.options["input"] == "nchw"


def _axes_of(problem: Problem) -> Mapping[str, int]:
    """Return the axes of the problem as the copy engine has it."""
    if not folds(problem):
        return problem.axes
    width = geometry_of_axes(problem.axes).output(*(problem.axes[name] for name in sides_of(problem.axes)))[-1]
    along = {f"{name}_width": size for name, size in (("kernel", 1), ("stride", 1), ("padding", 0))}
    return {**problem.axes, **along, "in_channels": _channels_of_run(problem), "width": width}


def _channels_of_run(problem: Problem) -> int:
    """Return the elements of a row of the window, folded: a multiple of 16 bytes."""
    channels = problem.axes["kernel_width"] * _channels_of_pixel(problem)
    return ceil_div(channels, _CHANNELS_OF_PITCH) * _CHANNELS_OF_PITCH


def _channels_of_pixel(problem: Problem) -> int:
    """Return the elements from one pixel to the next, of one half."""
    axes = problem.axes
    # Runs begin and end at multiples of 16 bytes; what is not finite behind one is only repaired in single precision.
    ends = problem.item_bytes == 4 or axes["kernel_width"] % 2 == 0
    if folds(problem) and axes["in_channels"] <= 4 and axes.get("stride_width", 1) % 2 == 0 and ends:
        return 4
    return ceil_div(axes["in_channels"], _CHANNELS_OF_PITCH) * _CHANNELS_OF_PITCH


def _phases(axes: Mapping[str, int], phase_columns: bool) -> int:
    """Return how many products a transposed convolution is, each of the outputs that stand at one place in a stride."""
    geometry = geometry_of_axes(axes)
    strides = geometry.stride[:-1] if phase_columns else geometry.stride
    return math.prod(strides) if geometry.transposed else 1


def _columns_of_group(axes: Mapping[str, int], phase_columns: bool) -> int:
    """Return how many columns the product of a group has: its filters, or those for each output in a stride."""
    filters = axes["out_channels"] // axes.get("groups", 1)
    return filters * geometry_of_axes(axes).stride[-1] if phase_columns else filters


def _places(axes: Mapping[str, int], phase_columns: bool) -> int:
    """Return how many places a filter has, those among them where it has zeros."""
    *rows, width = geometry_of_axes(axes).kernel
    return math.prod(rows) * (_windows(axes)[-1].reach + 1 if phase_columns else width)


def _windows(axes: Mapping[str, int]) -> list[_Side]:
    """Return the windows along each side of the images."""
    geometry = geometry_of_axes(axes)
    sizes = [axes[name] for name in sides_of(axes)]
    sides = enumerate(zip(sizes, geometry.output(*sizes), strict=True))
    return [_side(geometry, number, size, output) for number, (size, output) in sides]


def _side(geometry: Geometry, number: int, size: int, output: int) -> _Side:
    stride, before = geometry.stride[number], geometry.padding[number] // 2
    reach = (geometry.kernel[number] - 1) * geometry.dilation[number]
    if not geometry.transposed:
        return _Side(output, -before, (output - 1) * stride + 1 - size - before, stride, reach)
    count, lowest = ceil_div(output, stride), -((reach - before) // stride)
    return _Side(count, lowest, count + lowest - size, 1, ceil_div(before, stride) - lowest)


def _parts(plan: Plan) -> int:
    """Return how many halves an operand has."""
    return 2 if plan["convolution"] == IM2COL_PARTS else 1


def shape_of_images(plan: Plan) -> tuple[int, ...]:
    """Return the shape of the images as the pass in front leaves them."""
    axes, pitch = plan.problem.axes, _channels_of_pixel(plan.problem)
    *rows, width = (axes[name] for name in sides_of(axes))
    if not folds(plan.problem):
        return axes["batch"], *rows, width, _parts(plan) * pitch
    # The last run is within its row, and rows begin at multiples of 16 bytes.
    columns = ceil_div(width + axes.get("padding_width", 0) + axes["kernel_width"] % 2, 2) * 2
    return axes["batch"], *rows, _parts(plan), columns, pitch


def _copied_channels(axes: Mapping[str, int]) -> int:
    """Return the channels of one copy, the most that waste least."""
    channels = axes["in_channels"] // axes.get("groups", 1)
    return min((64, 32, 16), key=lambda copied: ceil_div(channels, copied) * copied)


def _copy_engine_reads(convolution: str, problem: Problem) -> bool:
    """Return whether pixels begin at multiples of 16 bytes, copies are of one group, and windows are within reach."""
    if not is_im2col(convolution):
        return True
    axes, sides = problem.axes, _windows(_axes_of(problem))
    least, most = _CORNERS[len(sides)]
    # Images that a pass lays out anew may have any number of channels.
    whole = axes["in_channels"] % _CHANNELS_OF_PITCH == 0 or problem.options["input"] == "nchw"
    whole = whole and _copies_are_of_one_group(convolution, problem)
    begins = [begin for side in sides for begin in (side.lower, side.upper)]
    reaches = all(side.reach <= most - least and side.step <= _MOST_STEPS for side in sides)
    return whole and reaches and least <= min(begins) and max(begins) <= most


def _copies_are_of_one_group(convolution: str, problem: Problem) -> bool:
    """Return whether groups have whole copies of channels, or enough columns for half of one.

    The other half is the next group's, multiplied by zeros: what is not finite is only repaired in single precision.
    """
    axes = problem.axes
    groups = axes.get("groups", 1)
    channels, columns = axes["in_channels"] // groups, _columns_of_group(axes, _has_phases(convolution, problem))
    is_half = channels == _LEAST_COPY // 2 and columns >= _LEAST_COLUMNS and problem.item_bytes == 4
    return groups == 1 or channels % _LEAST_COPY == 0 or is_half


def _shared_bytes(product_columns: int, product_stages: int) -> int:
    return product_stages * ((_TILE_PIXELS + product_columns) * 128 + 16)


def _columns_are_divided(product_columns: int, product_cluster: int, product_slices: int) -> bool:
    """Return whether the blocks of a cluster share the filters or the sum, and finish equally many of them."""
    filters = product_columns // _FILTERS_OF_MAP
    is_shared = product_slices == 1 and filters % product_cluster == 0
    return is_shared or (product_cluster == 1 and filters % ceil_div(filters, product_slices) == 0)


def _pipeline_is_no_longer_than_sums(convolution: str, product_stages: int, problem: Problem) -> bool:
    """Return whether a pipeline leaves room for other blocks of a multiprocessor, where sums are short.

    While a block writes what came of a few stages, others multiply.
    """
    if not is_im2col(convolution) or product_stages <= _STAGES_OF_SHORT_SUM:
        return True
    axes = _axes_of(problem)
    copied = _copied_channels(axes)
    channels = ceil_div(axes["in_channels"] // axes.get("groups", 1), copied) * copied
    terms = 3 if convolution == IM2COL_PARTS else 1
    return _places(axes, False) * channels * terms > _SHORT_SUM * _phases(axes, False)


def _tiles(problem: Problem, columns: int, cluster: int, phase_columns: bool) -> int:
    """Return how many tiles the product has, each of as many columns, and of the pixels of a cluster's blocks."""
    axes = _axes_of(problem)
    tiles = _phases(axes, phase_columns) * axes.get("groups", 1)
    tiles *= ceil_div(_columns_of_group(axes, phase_columns), columns)
    return tiles * ceil_div(axes["batch"] * math.prod(side.number for side in _windows(axes)), _TILE_PIXELS * cluster)


def _ends_sooner(product_columns: int, product_slices: int, problem: Problem, device: Device) -> bool:
    """Return whether the multiprocessor with most to do has a third less of it than with half as many slices.

    It also has less than with any number of fewer slices.
    """

    def most(slices: int) -> float:
        at_once = max(1, _CLUSTERS_AT_ONCE[slices] * device.multiprocessors // _CLUSTERS_AT_ONCE[1])
        return ceil_div(_tiles(problem, product_columns, 1, False), at_once) / slices

    if product_slices == 1:
        return True
    fewer, here = [most(slices) for slices in range(1, product_slices)], most(product_slices)
    return here < min(fewer) and 3 * here <= 2 * fewer[product_slices // 2 - 1]


def _is_matrix(convolution: str, problem: Problem) -> bool:
    """Return whether there is more than one filter: by one alone cuDNN multiplies more exactly than in TF32."""
    is_exact = convolution != IM2COL or problem.item_bytes == 2
    return is_exact or problem.axes["out_channels"] > problem.axes.get("groups", 1)


def _columns_have_filters(convolution: str, product_columns: int, problem: Problem) -> bool:
    """Return whether less than 64 columns of a tile are without filters, where phases may be columns too."""
    return product_columns < _columns_of_group(problem.axes, _has_phases(convolution, problem)) + 64


def _has_phases(convolution: str, problem: Problem) -> bool:
    """Return whether the phases along the width may be columns.

    Channels-last a thread writes its eight columns, which are whole filters then; to planes a warp's lanes write.
    """
    geometry = geometry_of_axes(problem.axes)
    stride = geometry.stride[-1]
    fits = 1 < stride <= _COLUMN_RUN and (problem.options["output"] == "nchw" or _COLUMN_RUN % stride == 0)
    return is_im2col(convolution) and geometry.transposed and fits


def reads_halves(problem: Problem, device: Device) -> bool:
    """Return whether the copy engine is there, and lays out the windows of a problem in single precision."""
    return device.architecture == "sm_90" and _copy_engine_reads(IM2COL, problem)


TUNABLES = (
    Tunable("phase_columns", (False, True), default=True, when=_has_phases),
    Tunable("product_columns", (64, 128, 160, 192, 256), default=128, when=is_im2col),
    # Every sum may have the default's stages. Where a sum may not, the nearest valid configuration can be another
    # convolution.
    Tunable("product_stages", (3, 4, 6, 8), default=_STAGES_OF_SHORT_SUM, when=is_im2col),
    Tunable("product_cluster", (1, 2), when=is_im2col),
    Tunable("product_slices", (1, 2, 3, 4, 6, 8), when=is_im2col),
)
CONSTRAINTS = (
    # Warpgroup products are Hopper's.
    constraints.needs("convolution", IM2COL, dtypes=("float32", "float16", "bfloat16"), architectures=("sm_90",)),
    constraints.needs("convolution", IM2COL_PARTS, dtypes=("float32",), architectures=("sm_90",)),
    Constraint("the_copy_engine_reads_windows", _copy_engine_reads),
    Constraint("clusters_divide_filters", _columns_are_divided),
    Constraint("one_filter_is_no_matrix", _is_matrix),
    Constraint("columns_have_filters", _columns_have_filters),
    Constraint("sums_are_divided_where_multiprocessors_idle", _ends_sooner),
    Constraint("pipelines_are_no_longer_than_sums", _pipeline_is_no_longer_than_sums),
    constraints.shared_memory_fits(
        lambda product_columns, product_stages: _shared_bytes(product_columns, product_stages) + _STATIC_BYTES
    ),
)


class Im2colLaunch(NamedTuple):
    """The launch for a problem, and how the copy engine reads its operands."""

    x: MapLayout
    filters: MapLayout
    blocks: int
    shared: int


def rows_of_filters(plan: Plan) -> tuple[int, int]:
    """Return how many rows the filters have as the copy engine reads them, each with how many elements."""
    axes = _axes_of(plan.problem)
    groups, copied = axes.get("groups", 1), _copied_channels(axes)
    rows = groups * ceil_div(_columns_of_group(axes, _is_by_columns(plan)), _FILTERS_OF_MAP) * _FILTERS_OF_MAP
    channels = ceil_div(axes["in_channels"] // groups, copied) * copied
    return rows, _places(axes, _is_by_columns(plan)) * _parts(plan) * channels


def _is_by_columns(plan: Plan) -> bool:
    """Return whether the phases along the width are columns."""
    return bool(plan.configuration.get("phase_columns", False))


def rows_are_filled_up(plan: Plan) -> bool:
    """Return whether the rows of filters have elements that no filter has."""
    axes = plan.problem.axes
    products = math.prod(geometry_of_axes(axes).kernel) * (axes["in_channels"] // axes.get("groups", 1))
    return _is_by_columns(plan) or rows_of_filters(plan)[1] != products * _parts(plan)


def _channels_and_strides(plan: Plan, sizes: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """Return how many elements count as a pixel's channels, and the bytes from pixel to pixel along each side."""
    *_, columns, pitch = shape_of_images(plan)
    channels, step, row = pitch, pitch, columns * pitch
    if folds(plan.problem):
        step = pitch * plan.problem.axes.get("stride_width", 1)
        channels = _channels_of_run(plan.problem) + (_parts(plan) - 1) * row  # the second halves' row is behind
        row *= _parts(plan)
    strides = [2 * step, 2 * row]
    for size in reversed(sizes[:-1]):
        strides.append(strides[-1] * size)
    return channels, tuple(strides)


def im2col_launch(plan: Plan) -> Im2colLaunch:
    """Return the launch of a plan."""
    axes = _axes_of(plan.problem)
    sides, copied = _windows(axes), _copied_channels(axes)
    columns, cluster = plan.integer("product_columns"), plan.integer("product_cluster")
    sizes = [axes[name] for name in sides_of(axes)]
    channels, strides = _channels_and_strides(plan, sizes)
    _, lower, upper, steps, _ = zip(*reversed(sides), strict=True)
    rows, depth = rows_of_filters(plan)
    slices, stages = plan.integer("product_slices"), plan.integer("product_stages")
    tiles = _tiles(plan.problem, columns, cluster, _is_by_columns(plan))
    shared = _shared_bytes(columns, stages)
    resident = min(_RESIDENT.get(columns, 1), _SHARED_BYTES // (shared + _STATIC_BYTES))
    at_once = tiles if slices > 1 else max(1, plan.device.multiprocessors * resident // cluster)
    return Im2colLaunch(
        x=MapLayout(
            2,
            (channels, *reversed(sizes), axes["batch"]),
            strides,
            (copied, _TILE_PIXELS),
            2 * copied,
            Windows(lower, upper, steps),
        ),
        # Rows 8 · q + 2 · i + p of each 32, in the order of i, q and p.
        filters=MapLayout(
            2,
            (depth, 2, 4, 4, rows // _FILTERS_OF_MAP),
            (2 * depth, 16 * depth, 4 * depth, 2 * _FILTERS_OF_MAP * depth),
            (copied, 2, 4, 4, columns // cluster // _FILTERS_OF_MAP),
            2 * copied,
        ),
        blocks=min(tiles, at_once) * cluster * slices,
        shared=shared,
    )
