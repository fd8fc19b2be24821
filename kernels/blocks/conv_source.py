"""The CUDA C++ of a convolution with a function behind it: what depends on the function; conv.cuh is the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tunebench.kernels.blocks.block import Kind, Operand
from tunebench.kernels.blocks.device_function import device_function

_SOURCE = """{fast_math}#include "functions.cuh"
#include "vector.cuh"

{function}
constexpr int channel_tensors = {channel_tensors}, element_tensors = {element_tensors}, scalars = {scalars};

__device__ __forceinline__ accumulator_t function(accumulator_t value, const accumulator_t* of_channel,
                                                  const accumulator_t* of_element, const accumulator_t* of_call) {{
    return functions::function({arguments});
}}

#include "conv.cuh"

extern "C" __global__ void __launch_bounds__(output_block_size)
    transpose_output(const product_t* __restrict__ product, scalar_t* __restrict__ output,
                     {tensors}, const float* __restrict__ factors,
                     {numbers}long long samples, long long channels, long long pixels) {{
    transpose_output_by_block(product, output, samples, channels, pixels, {epilogue});
}}

extern "C" __global__ void __launch_bounds__(output_block_size)
    finish(const product_t* product, scalar_t* output,
           {tensors}, const float* __restrict__ factors,
           {numbers}long long samples, long long channels, long long pixels) {{
    finish_by_block(product, output, samples, channels, pixels, {epilogue});
}}

extern "C" __global__ void __launch_bounds__(implicit_gemm_threads, 1)
    implicit_gemm(const scalar_t* __restrict__ x, const weight_t* __restrict__ filters, scalar_t* __restrict__ output,
                  {tensors}, const float* __restrict__ factors,
                  unsigned* __restrict__ largest,
                  {numbers}long long samples, long long out_channels, long long height, long long width) {{
    implicit_gemm_by_block(x, filters, output, largest, samples, out_channels, height, width, {epilogue});
}}

extern "C" __global__ void TUNEBENCH_CLUSTER(im2col_cluster) __launch_bounds__(im2col_threads, im2col_blocks)
    im2col_product(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap filters,
                   scalar_t* __restrict__ output, {tensors}, const float* __restrict__ factors,
                   {numbers}long long samples, long long out_channels, long long height, long long width,
                   long long depth) {{
    const ShapeOfSides shape{{samples, out_channels, {{depth, height, width}}, false}};
    im2col_by_block(x, filters, output, shape, {epilogue});
}}

extern "C" __global__ void __launch_bounds__(direct_block_size)
    direct_convolution(const scalar_t* __restrict__ x, const scalar_t* __restrict__ weight,
                       scalar_t* __restrict__ output, {tensors}, const float* __restrict__ factors,
                       {numbers}long long samples, long long out_channels, long long height, long long width,
                       int weight_last, long long depth) {{
    const ShapeOfSides shape{{samples, out_channels, {{depth, height, width}}, weight_last != 0}};
    direct_by_block(x, weight, output, shape, {epilogue});
}}

extern "C" __global__ void __launch_bounds__(repair_threads, 1)
    repair(const scalar_t* __restrict__ x, const scalar_t* __restrict__ weight, scalar_t* __restrict__ output,
           {tensors}, const float* __restrict__ factors,
           const unsigned* __restrict__ largest, {numbers}long long words, long long samples, long long out_channels,
           long long height, long long width, int weight_last, long long depth) {{
    begin_launch();
    if constexpr (sides == 2 && !transposed) {{
        const Shape shape{{samples, out_channels, height, width, weight_last != 0}};
        repair_by_block(x, weight, output, largest, words, shape, {epilogue});
    }} else {{
        const ShapeOfSides shape{{samples, out_channels, {{depth, height, width}}, weight_last != 0}};
        repair_by_block(x, weight, output, largest, words, shape, {epilogue});
    }}
}}
"""


def source_of(where: str, text: str, used: Sequence[Operand], fast_math: str) -> str:
    """Return the source of a block.

    Args:
        where: the class and attribute that has the text, for messages.
        used: the operands of the text, by their kinds: of channels, of elements, of the whole, numbers.
        fast_math: a line that has to come first.
    """
    names = {kind: [one.name for one in used if one.kind is kind] for kind in Kind}
    channels, elements = names[Kind.PER_CHANNEL], names[Kind.ELEMENT]
    alone, numbers = names[Kind.PER_TENSOR], names[Kind.SCALAR]
    arguments = {"value": "value"}
    arguments |= {name: f"of_channel[{place}]" for place, name in enumerate(channels, 1)}
    arguments |= {name: f"of_element[{place}]" for place, name in enumerate(elements)}
    arguments |= {name: f"of_call[{place}]" for place, name in enumerate([*alone, *numbers])}
    tensors = ["layer_bias", *map(_operand, [*channels, *elements, *alone])]
    scalars = [*(f"accumulator_t(*{_operand(name)})" for name in alone), *map(_operand, numbers)]
    return _SOURCE.format(
        fast_math=fast_math,
        function=device_function(where, "function", text, arguments),
        channel_tensors=1 + len(channels),
        element_tensors=len(elements),
        scalars=len(scalars),
        arguments=", ".join(arguments.values()),
        tensors=", ".join(f"const scalar_t* __restrict__ {name}" for name in tensors),
        numbers="".join(f"accumulator_t {_operand(name)}, " for name in numbers),
        epilogue=f"{{{_list(['layer_bias', *map(_operand, channels)])}, {_list(map(_operand, elements))}, "
        f"factors, {_list(scalars)}}}",
    )


def _operand(name: str) -> str:
    """Return an operand's name among an entry point's parameters."""
    return f"operand_{name}"


def _list(values: Iterable[str]) -> str:
    return f"{{{', '.join(values)}}}"
