"""What the tests of the `cpu` compiler share: compile a text with real g++ and launch it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tunebench.tuner.build import Argument, Dim3, LoadedModule
from tunebench.tuner.compile.cpu.compiler import CpuCompiler
from tunebench.tuner.variant import KernelSource, Variant

COMPILER = CpuCompiler()


def variant_of(text: str, constants: str = "", headers: Mapping[str, str] | None = None) -> Variant:
    """A variant whose entry points are all the `__global__` functions of the text."""
    return Variant(KernelSource("example", text, headers or {}), constants or "using scalar_t = float;\n", "x86_64")


def load(text: str, constants: str = "", headers: Mapping[str, str] | None = None) -> LoadedModule:
    return COMPILER.load(COMPILER.compile(variant_of(text, constants, headers)))


def extents(*values: int) -> Dim3:
    x, y, z = (*values, 1, 1, 1)[:3]
    return x, y, z


def blocks_for(count: int, threads: int) -> Dim3:
    return extents(-(-count // threads))


def iota(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=dtype).reshape(shape)


def run_one(
    text: str, grid: Dim3, block: Dim3, arguments: Sequence[Argument], constants: str = "", shared: int = 0
) -> None:
    """Compile a text of one entry point and launch it."""
    variant = variant_of(text, constants)
    (entry_point,) = variant.source.entry_points
    COMPILER.load(COMPILER.compile(variant)).launch(entry_point, grid, block, arguments, shared)


ELEMENTWISE = r"""
extern "C" __global__ void one_each(const float* __restrict__ a, float s, float* __restrict__ c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    c[i] = a[i] * s;
}
extern "C" __global__ void one_each_wide(const float* __restrict__ a, float s, float* __restrict__ c, long long n) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] * s;
}
extern "C" __global__ void __launch_bounds__(256) four_each(const float* __restrict__ a, float s,
                                                            float* __restrict__ c, long long n) {
    const long long first = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (first + 3 < n) {
        float4 v = __ldcs(reinterpret_cast<const float4*>(a + first));
        v = make_float4(v.x * s, v.y * s, v.z * s, v.w * s);
        __stcs(reinterpret_cast<float4*>(c + first), v);
    } else {
        for (long long i = first; i < n; ++i) c[i] = __ldg(a + i) * s;
    }
}
extern "C" __global__ void grid_stride(const float* a, float s, float* c, long long n) {
#pragma unroll 4
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)
        c[i] = a[i] * s;
}
"""

TREE = r"""
extern "C" __global__ void sum(const float* a, float* out, int n) {
    __shared__ float partial[block_size];
    const int i = blockIdx.x * block_size + threadIdx.x;
    partial[threadIdx.x] = i < n ? a[i] : 0.0f;
    __syncthreads();
    for (int stride = block_size / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) partial[threadIdx.x] += partial[threadIdx.x + stride];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}
"""
