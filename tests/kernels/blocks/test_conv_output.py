"""The product that the copy engine lays out writes each of its sums where it belongs: its own code, on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from convolved import LAYOUTS, Tuned
from torch import nn

from tunebench.kernels.shared.images import geometry_of_axes, memory_format
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import ceil_div
from tunebench.tuner.problem import Problem
from tunebench.tuner.variant import KernelSource

# A sum tells its place: the phase, the pixel in the grid, the group and the column.
WRITER = """
__device__ float made_sum(long long phase, long long pixel, long long group, long long column) {
    return static_cast<float>((phase * 131 + pixel * 17 + group * 29 + column * 7) % 1009) / 1009.0f;
}

extern "C" __global__ void __launch_bounds__(im2col_multipliers)
    write_sums(scalar_t* __restrict__ output, const scalar_t* __restrict__ bias, const float* __restrict__ factors,
               long long samples, long long out_channels, long long height, long long width, long long depth) {
    const ShapeOfSides shape{samples, out_channels, {depth, height, width}, false};
    const Epilogue epilogue{{nullptr, bias}, {}, factors, {}};
    __shared__ Channel of_columns[product_columns];
    __shared__ CrossingSums crossing;
    const long long filters = out_channels / groups, tiles = WindowTile(0, shape, 0).count(shape);
    for (long long number = blockIdx.x; number < tiles; number += gridDim.x) {
        const WindowTile tile(number, shape, 0);
        const long long filter = (tile.column + threadIdx.x) / columns_of_filter;
        if (threadIdx.x < product_columns && filter < filters) {
            of_columns[threadIdx.x] = epilogue.of(tile.group * filters + filter);
        }
        __syncthreads();
        // As tensor cores leave it: eight neighbouring columns of each 32, of two pixels.
        float sum[product_columns / 2];
        const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
        const long long of_rows = tile.phase.depth * stride_height + tile.phase.height;
        const long long phase = of_rows * phases_along + tile.phase.width;
        for (int i = 0; i < product_columns / 2; ++i) {
            const int of_map = i % 16, column = i / 16 * 32 + threadIdx.x % 4 * 8 + of_map / 4 * 2 + of_map % 2;
            sum[i] = made_sum(phase, tile.pixel + row + of_map / 2 % 2 * 8, tile.group, tile.column + column);
        }
        finish_windows<product_columns>(sum, tile, tile.column, of_columns, crossing, output, shape, epilogue);
        __syncthreads();
    }
}
"""


def written(
    model: Tuned, x: torch.Tensor, columns: int, phase_columns: bool, output: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output that is written, and the one that belongs there."""
    problem = model.problem(x)
    assert problem is not None, model.reason
    problem = Problem(problem.axes, problem.dtype, {**problem.options, "output": output})
    (source,) = model.kernel.sources
    assert isinstance(source, KernelSource)
    kernel = replace(model.kernel, sources=(replace(source, text=source.text + WRITER),))
    chosen = {"convolution": "im2col", "convolution_layout": "channels_last", "phase_columns": phase_columns}
    device = find_device("cpu")
    plan = build_plan(
        kernel, Configuration({**chosen, "product_columns": columns}), problem, device, compiler_for(device)
    )
    axes, geometry = problem.axes, geometry_of_axes(problem.axes)
    samples, filters, sides = axes["batch"], axes["out_channels"], x.shape[2:]
    shape = (samples, filters, *geometry.output(*sides))
    made = torch.full(shape, torch.nan).contiguous(memory_format=memory_format(output, x.dim()))
    factors, bias = torch.rand(filters) + 0.5, torch.rand(filters) + 0.5
    height, width = sides[-2:]
    plan.launch(
        "write_sums", made, bias, factors, samples, filters, height, width, axes.get("depth", 1), blocks=3, threads=256
    )
    stride = geometry.stride if geometry.transposed else (1,) * len(sides)
    grid = [ceil_div(side, step) for side, step in zip(shape[2:], stride, strict=True)]
    along = stride[-1] if phase_columns and stride[-1] > 1 else 1
    places = torch.meshgrid(*map(torch.arange, shape), indexing="ij")
    sample, filter_, *at = places
    phase, pixel = torch.zeros_like(sample), sample
    for place, step, size in zip(at, stride, grid, strict=True):
        is_column = along > 1 and place is at[-1]
        phase = phase if is_column else phase * step + place % step
        pixel = pixel * size + place // step
    group, column = filter_ // (filters // geometry.groups), filter_ % (filters // geometry.groups) * along
    column = column + (at[-1] % along)
    sums = (phase * 131 + pixel * 17 + group * 29 + column * 7) % 1009 / 1009
    return made, torch.tanh(sums * factors[filter_]) * bias[filter_]


@pytest.mark.parametrize("columns", [64, 128])
@pytest.mark.parametrize(
    ("layer", "filters", "options"),
    [
        (nn.Conv2d, 50, {"kernel_size": 3, "padding": 1}),
        (nn.Conv2d, 96, {"kernel_size": 3, "groups": 2, "stride": 2}),
        (nn.ConvTranspose2d, 40, {"kernel_size": 4, "stride": 2, "padding": 1, "output_padding": 1}),
        (nn.ConvTranspose2d, 20, {"kernel_size": 3, "stride": 3}),
        (nn.ConvTranspose2d, 33, {"kernel_size": 5, "stride": (1, 4), "padding": 1}),
        (nn.ConvTranspose2d, 64, {"kernel_size": 3, "stride": 5, "padding": 1, "dilation": 2}),
        (nn.ConvTranspose2d, 22, {"kernel_size": 7, "stride": (2, 7), "groups": 2, "output_padding": 1}),
        (nn.ConvTranspose3d, 17, {"kernel_size": 2, "stride": (2, 1, 8)}),
    ],
    ids=str,
)
def test_sums_are_written_where_they_belong(
    layer: type[nn.Module], filters: int, options: dict[str, Any], columns: int
) -> None:
    torch.manual_seed(3)
    model = Tuned(32, filters, options, layer)
    x = torch.randn(2, 32, *(3, 7, 9)[-(model.bias.dim() - 2) :])
    is_transposed = issubclass(layer, nn.modules.conv._ConvTransposeNd)
    for phase_columns in (True, False)[not is_transposed :]:
        is_run = 8 % model.conv.stride[-1] == 0  # of which a thread has eight columns
        for output in LAYOUTS if is_run or not phase_columns else ("nchw",):
            made, wanted = written(model, x, columns, phase_columns, output)
            torch.testing.assert_close(made, wanted)
