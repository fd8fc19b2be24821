"""The `cpu` compiler with real g++: CUDA sources give CUDA's answers, and what CUDA refuses is refused."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from tunebench.tuner.compile import cpu
from tunebench.tuner.compile.base import Argument, CompilerName, Dim3, LoadedModule
from tunebench.tuner.compile.cpu import CpuCompiler, geometry_refusal, host_source
from tunebench.tuner.errors import CompileError, CompilerMissingError, LaunchError
from tunebench.tuner.space import Configuration, SearchSpace, Tunable, Value
from tunebench.tuner.variant import KernelSource, Variant, prologue

COMPILER = CpuCompiler()


def variant_of(text: str, constants: str = "", headers: Mapping[str, str] | None = None) -> Variant:
    """A variant whose entry points are all the `__global__` functions of the text."""
    names = tuple(re.findall(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)', text))
    source = KernelSource("example", text, names, headers or {})
    return Variant(source, constants or "using scalar_t = float;\n", "x86_64")


def load(text: str, constants: str = "", headers: Mapping[str, str] | None = None) -> LoadedModule:
    return COMPILER.load(COMPILER.compile(variant_of(text, constants, headers)))


def extents(*values: int) -> Dim3:
    x, y, z = (*values, 1, 1, 1)[:3]
    return x, y, z


def int32(value: int) -> ctypes.c_int:
    return ctypes.c_int(value)


def int64(value: int) -> ctypes.c_longlong:
    return ctypes.c_longlong(value)


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


# --------------------------------------------------------------------------------------------- threads that do not wait

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


@pytest.fixture(scope="module")
def elementwise() -> LoadedModule:
    return load(ELEMENTWISE)


@pytest.mark.parametrize("count", [1, 3, 31, 255, 256, 257, 1021, 100_003])
@pytest.mark.parametrize("threads", [1, 32, 96, 256])
def test_elementwise_of_odd_sizes_leaves_the_tail_alone(elementwise: LoadedModule, count: int, threads: int) -> None:
    a = torch.randn(count)
    scale = ctypes.c_float(3.14)
    for name, size, per_thread in (
        ("one_each", int32(count), 1),
        ("one_each_wide", int64(count), 1),
        ("four_each", int64(count), 4),
        ("grid_stride", int64(count), 7),
    ):
        c = torch.full((count + 64,), torch.nan)
        elementwise.launch(name, blocks_for(count, threads * per_thread), extents(threads), [a, scale, c, size])
        assert torch.equal(c[:count], a * 3.14), name
        assert c[count:].isnan().all(), name


def test_overlapping_tensors_are_computed_in_place(elementwise: LoadedModule) -> None:
    a = torch.randn(5000)
    expected = a * 2
    elementwise.launch("grid_stride", extents(3), extents(128), [a, ctypes.c_float(2), a, int64(5000)])
    assert torch.equal(a, expected)


def test_indices_and_extents_in_three_dimensions() -> None:
    text = r"""
    extern "C" __global__ void indices(int* out) {
        const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        const unsigned place = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
        out[place] += 1000000 * blockIdx.z + 100000 * blockIdx.y + 10000 * blockIdx.x + 100 * threadIdx.z +
                      10 * threadIdx.y + threadIdx.x;
    }"""
    grid, block = (3, 4, 2), (5, 3, 2)
    out = torch.zeros(24 * 30, dtype=torch.int32)
    run_one(text, grid, block, [out])
    blocks = torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(3)) @ torch.tensor([100, 10, 1])
    threads = torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(5)) @ torch.tensor([100, 10, 1])
    assert torch.equal(out.long(), (10000 * blocks[:, None] + threads).flatten())


def test_a_grid_of_more_blocks_than_fit_in_32_bits_of_threads(elementwise: LoadedModule) -> None:
    c = torch.zeros(1)
    grid = (2**22, 1, 1)
    elementwise.launch("one_each_wide", grid, extents(1), [torch.ones(1), ctypes.c_float(2), c, int64(1)])
    assert c.item() == 2


def test_double_and_templates_with_constants_from_the_search_space() -> None:
    text = r"""
    template <typename T, int count> __device__ __forceinline__ T power(T x) {
        T product = 1;
    #pragma unroll
        for (int i = 0; i < count; ++i) product *= x;
        return product;
    }
    template <typename T> struct Scaled {
        T factor;
        __host__ __device__ T operator()(T x) const { return factor * x; }
    };
    extern "C" __global__ void __launch_bounds__(block_size) k(const scalar_t* a, scalar_t* c) {
        const Scaled<scalar_t> scaled{scalar_t(0.5)};
        const auto plus = [=] __device__(scalar_t x) { return x + scalar_t(rows); };
        for (int item = 0; item < items; ++item) {
            const int i = (blockIdx.x * items + item) * block_size + threadIdx.x;
            if (i < rows) c[i] = plus(scaled(power<scalar_t, exponent>(a[i])));
        }
        if (hint == hint_t::streaming && guarded) c[0] = -1;
    }"""
    space = SearchSpace(
        tunables=(
            Tunable("block_size", (32, 64)),
            Tunable("items", (1, 4)),
            Tunable("exponent", (2, 3)),
            Tunable("hint", ("none", "streaming")),
            Tunable("guarded", (False, True)),
        ),
        default={"block_size": 32, "items": 1, "exponent": 2, "hint": "none", "guarded": False},
    )
    a = torch.randn(1000, dtype=torch.float64)
    for items, exponent, hint, guarded in ((1, 3, "none", True), (4, 2, "streaming", True)):
        values: dict[str, Value] = {
            "block_size": 64,
            "items": items,
            "exponent": exponent,
            "hint": hint,
            "guarded": guarded,
        }
        constants = prologue(space, Configuration(values), "float64", {"rows": 1000})
        c = torch.zeros_like(a)
        run_one(text, blocks_for(1000, 64 * items), extents(64), [a, c], constants)
        expected = a**exponent * 0.5 + 1000
        if hint == "streaming":
            expected[0] = -1
        torch.testing.assert_close(c, expected, rtol=1e-14, atol=0)


def test_includes_of_the_kernel_and_of_its_headers() -> None:
    headers = {
        "outer.cuh": '#pragma once\n#include "inner.cuh"\n__device__ float twice(float x) { return add(x, x); }\n',
        "inner.cuh": "#pragma once\n__device__ inline float add(float x, float y) { return x + y; }\n",
    }
    text = '#include "outer.cuh"\nextern "C" __global__ void k(float* c) { c[threadIdx.x] = twice(threadIdx.x); }'
    c = torch.zeros(8)
    load(text, headers=headers).launch("k", extents(1), extents(8), [c])
    assert torch.equal(c, iota(8) * 2)


def test_constant_memory_device_variables_and_structures_as_arguments() -> None:
    text = r"""
    __constant__ float weights[3] = {1.0f, 10.0f, 100.0f};
    __device__ int shift = 7;
    struct Span { float* data; int size; };
    extern "C" __global__ void k(Span span) {
        if (threadIdx.x < span.size) span.data[threadIdx.x] = weights[threadIdx.x % 3] + shift;
    }"""

    class Span(ctypes.Structure):
        _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_int))

    c = torch.zeros(6)
    run_one(text, extents(1), extents(32), [Span(c.data_ptr(), 5)])  # type: ignore[list-item]
    assert c.tolist() == [8, 17, 107, 8, 17, 0]


# --------------------------------------------------------------------------------------------------- threads that wait

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


@pytest.mark.parametrize("threads", [2, 32, 256, 1024])
def test_tree_reduction_through_shared_memory(threads: int) -> None:
    a = iota(10_007) % 97
    out = torch.zeros(-(-10_007 // threads))
    constants = f"constexpr int block_size = {threads};\n"
    run_one(TREE, extents(len(out)), extents(threads), [a, out, int32(10_007)], constants)
    padded = torch.nn.functional.pad(a, (0, len(out) * threads - 10_007))
    assert torch.equal(out, padded.reshape(-1, threads).sum(1))


def test_shuffle_reduction_over_whole_and_partial_warps() -> None:
    text = r"""
    __device__ float warp_sum(float value) {
        for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
        return value;
    }
    extern "C" __global__ void rows(const float* a, float* out, int columns) {
        __shared__ float partial[32];
        float value = 0;
        for (int column = threadIdx.x; column < columns; column += blockDim.x)
            value += a[blockIdx.x * columns + column];
        value = warp_sum(value);
        if (threadIdx.x % warpSize == 0) partial[threadIdx.x / warpSize] = value;
        __syncthreads();
        if (threadIdx.x < warpSize) {
            value = warp_sum(threadIdx.x < blockDim.x / warpSize ? partial[threadIdx.x] : 0.0f);
            if (threadIdx.x == 0) out[blockIdx.x] = value;
        }
    }
    extern "C" __global__ void last_warp(int* out) {
        int value = threadIdx.x;
        for (int offset = 16; offset > 0; offset /= 2) {
            const int other = __shfl_down_sync(0xffffffffu, value, offset);
            if (threadIdx.x % 32 + offset < min(32u, blockDim.x - threadIdx.x / 32 * 32)) value += other;
        }
        out[threadIdx.x] = value;
    }"""
    module = load(text)
    a = iota(37, 501) % 13
    for threads in (32, 128, 1024):
        out = torch.zeros(37)
        module.launch("rows", extents(37), extents(threads), [a, out, int32(501)])
        assert torch.equal(out, a.sum(1))
    numbers = torch.zeros(45, dtype=torch.int32)
    module.launch("last_warp", extents(1), extents(45), [numbers])
    assert numbers[[0, 32]].tolist() == [sum(range(32)), sum(range(32, 45))]


def test_every_shuffle_and_vote_lane_by_lane() -> None:
    text = r"""
    extern "C" __global__ void lanes(int* out, double* wide, unsigned* votes) {
        const int lane = threadIdx.x, value = 100 + lane;
        out[0 * 32 + lane] = __shfl_sync(~0u, value, 5);
        out[1 * 32 + lane] = __shfl_sync(~0u, value, lane + 1, 8);
        out[2 * 32 + lane] = __shfl_up_sync(~0u, value, 3);
        out[3 * 32 + lane] = __shfl_up_sync(~0u, value, 3, 16);
        out[4 * 32 + lane] = __shfl_down_sync(~0u, value, 30);
        out[5 * 32 + lane] = __shfl_down_sync(~0u, value, 2, 4);
        out[6 * 32 + lane] = __shfl_xor_sync(~0u, value, 9);
        out[7 * 32 + lane] = __shfl_xor_sync(~0u, value, 5, 4);
        wide[lane] = __shfl_sync(~0u, value + 0.25, 31 - lane);
        votes[lane] = __ballot_sync(~0u, lane % 3 == 0);
        votes[32 + lane] = __any_sync(~0u, lane == 31) | __any_sync(~0u, 0) << 1 | __all_sync(~0u, lane < 32) << 2 |
                           __all_sync(~0u, lane) << 3;
        if (lane < 12)
            votes[64 + lane] = __ballot_sync(0xfffu, lane & 1);
        else
            votes[64 + lane] = __ballot_sync(0xfffff000u, lane & 2);
        __syncwarp();
        votes[96 + lane] = lane % 2 ? __activemask() : 7 * __activemask();
    }"""
    out, wide = torch.zeros(8, 32, dtype=torch.int32), torch.zeros(32, dtype=torch.float64)
    votes = torch.zeros(4, 32, dtype=torch.int32)
    run_one(text, extents(1), extents(32), [out, wide, votes])
    sources = [
        [5 for _ in range(32)],
        [lane // 8 * 8 + (lane + 1) % 8 for lane in range(32)],
        [max(lane - 3, lane if lane < 3 else 0) for lane in range(32)],
        [lane - 3 if lane % 16 >= 3 else lane for lane in range(32)],
        [lane + 30 if lane < 2 else lane for lane in range(32)],
        [lane + 2 if lane % 4 < 2 else lane for lane in range(32)],
        [lane ^ 9 for lane in range(32)],
        [lane ^ 5 if lane ^ 5 <= lane | 3 else lane for lane in range(32)],
    ]
    assert (out - 100).tolist() == sources
    assert wide.tolist() == [131.25 - lane for lane in range(32)]
    unsigned = votes.long() & 0xFFFFFFFF
    assert set(unsigned[0].tolist()) == {sum(1 << lane for lane in range(0, 32, 3))}
    assert set(unsigned[1].tolist()) == {0b0101}
    low, high = (sum(1 << lane for lane in range(a, b) if lane & bit) for a, b, bit in ((0, 12, 1), (12, 32, 2)))
    assert unsigned[2].tolist() == [low] * 12 + [high] * 20
    assert unsigned[3].tolist() == [7 * 0x55555555 & 0xFFFFFFFF, 0xAAAAAAAA] * 16


def test_tiled_matrix_product() -> None:
    text = r"""
    extern "C" __global__ void matmul(const scalar_t* a, const scalar_t* b, scalar_t* c, int m, int n, int k) {
        __shared__ scalar_t tile_a[tile][tile + 1];
        __shared__ scalar_t tile_b[tile][tile + 1];
        const int row = blockIdx.y * tile + threadIdx.y, column = blockIdx.x * tile + threadIdx.x;
        scalar_t total = 0;
        for (int start = 0; start < k; start += tile) {
            const int ka = start + threadIdx.x, kb = start + threadIdx.y;
            tile_a[threadIdx.y][threadIdx.x] = row < m && ka < k ? a[row * k + ka] : 0;
            tile_b[threadIdx.y][threadIdx.x] = kb < k && column < n ? b[kb * n + column] : 0;
            __syncthreads();
            for (int i = 0; i < tile; ++i) total += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
            __syncthreads();
        }
        if (row < m && column < n) c[row * n + column] = total;
    }"""
    m, n, k = 45, 70, 33
    a, b = torch.randn(m, k, dtype=torch.float64), torch.randn(k, n, dtype=torch.float64)
    c = torch.zeros(m, n, dtype=torch.float64)
    constants = "using scalar_t = double;\nconstexpr int tile = 16;\n"
    sizes = [int32(m), int32(n), int32(k)]
    run_one(text, extents(-(-n // 16), -(-m // 16)), extents(16, 16), [a, b, c, *sizes], constants)
    torch.testing.assert_close(c, a @ b)


def test_threads_that_return_early_are_not_waited_for() -> None:
    text = r"""
    extern "C" __global__ void k(int* out, int first, int stay) {
        __shared__ int count;
        if (threadIdx.x == first) count = 0;
        if (threadIdx.x < first || threadIdx.x >= first + stay) return;
        __syncthreads();
        atomicAdd(&count, 1);
        __syncthreads();
        if (threadIdx.x % 2) return;
        const unsigned lanes = __ballot_sync(~0u, 1);
        __syncthreads();
        out[blockIdx.x * blockDim.x + threadIdx.x] = count * 100 + __popc(lanes);
    }"""
    module = load(text)
    for threads, first, stay in ((64, 0, 64), (64, 0, 1), (100, 40, 30), (256, 255, 1), (1024, 3, 1000), (64, 64, 0)):
        out = torch.zeros(5, threads, dtype=torch.int32)
        module.launch("k", extents(5), extents(threads), [out, int32(first), int32(stay)])
        expected = torch.zeros(threads, dtype=torch.int32)
        stayed = [t for t in range(first, min(first + stay, threads)) if t % 2 == 0]
        for thread in stayed:
            expected[thread] = stay * 100 + sum(other // 32 == thread // 32 for other in stayed)
        assert torch.equal(out, expected.expand(5, -1)), (threads, first, stay)


def test_barriers_with_votes() -> None:
    text = r"""
    extern "C" __global__ void k(int* out) {
        const int count = __syncthreads_count(threadIdx.x % 3 == 0);
        const int any = __syncthreads_or(threadIdx.x == 40), none = __syncthreads_or(0);
        const int all = __syncthreads_and(threadIdx.x < 50), some = __syncthreads_and(threadIdx.x < 49);
        out[threadIdx.x] = count * 10000 + (any != 0) * 1000 + (none != 0) * 100 + (all != 0) * 10 + (some != 0);
    }"""
    out = torch.zeros(50, dtype=torch.int32)
    run_one(text, extents(1), extents(50), [out])
    assert set(out.tolist()) == {17 * 10000 + 1010}


DYNAMIC = r"""
extern __shared__ scalar_t outside[];
namespace inner {
extern __shared__ __align__(16) unsigned char raw[];
__device__ scalar_t first() { return reinterpret_cast<scalar_t*>(raw)[0]; }
}
#define REVERSED_MEMORY extern __shared__ scalar_t from_macro[]
extern "C" __global__ void local(const scalar_t* a, scalar_t* c) {
    extern __shared__ __align__(16) scalar_t reversed[];
    reversed[blockDim.x - 1 - threadIdx.x] = a[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    c[blockIdx.x * blockDim.x + threadIdx.x] = reversed[threadIdx.x];
}
extern "C" __global__ void global(const scalar_t* a, scalar_t* c) {
    outside[blockDim.x - 1 - threadIdx.x] = a[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    c[blockIdx.x * blockDim.x + threadIdx.x] = outside[threadIdx.x] + 0 * inner::first();
}
extern "C" __global__ void rows(const scalar_t* a, scalar_t* c) {
    extern __shared__ volatile scalar_t two_wide[][2];  // with "a { brace" in a comment
    two_wide[threadIdx.x / 2][1 - threadIdx.x % 2] = a[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    c[blockIdx.x * blockDim.x + threadIdx.x] = two_wide[threadIdx.x / 2][threadIdx.x % 2];
}
"""


def test_dynamic_shared_memory_in_every_spelling() -> None:
    module = load(DYNAMIC.replace("REVERSED_MEMORY extern", "REVERSED_MEMORY \\\n extern"))
    a = torch.randn(40, 128)
    for name, expected in (
        ("local", a.flip(1)),
        ("global", a.flip(1)),
        ("rows", a.reshape(40, 64, 2).flip(2).reshape(40, 128)),
    ):
        c = torch.zeros_like(a)
        module.launch(name, extents(40), extents(128), [a, c], shared=128 * 4)
        assert torch.equal(c, expected), name


def test_dynamic_shared_memory_up_to_what_cuda_allows() -> None:
    text = r"""
    extern "C" __global__ void k(float* out, int size) {
        extern __shared__ float memory[];
        for (int i = threadIdx.x; i < size; i += blockDim.x) memory[i] = i;
        __syncthreads();
        float total = 0;
        for (int i = threadIdx.x; i < size; i += blockDim.x) total += memory[size - 1 - i];
        atomicAdd(out, total);
    }"""
    size = 227 * 1024 // 4
    out = torch.zeros(1, dtype=torch.float32)
    run_one(text, extents(4), extents(64), [out, int32(size)], shared=size * 4)
    assert out.item() == pytest.approx(4 * size * (size - 1) / 2, rel=1e-5)


def test_rewriting_dynamic_shared_memory_keeps_the_lines() -> None:
    text = "void f() {\n extern\n __shared__ int x\n[];\n}\n// extern __shared__ int y[];\n"
    rewritten = host_source(text)
    assert rewritten.splitlines()[4] == "}"
    assert "reinterpret_cast<int (*)>" in rewritten
    assert rewritten.endswith("// extern __shared__ int y[];\n")


def test_atomics_across_blocks_and_threads() -> None:
    text = r"""
    extern "C" __global__ void k(int* i, unsigned* u, unsigned long long* l, float* f, double* d, int n) {
        const int t = blockIdx.x * blockDim.x + threadIdx.x;
        if (t >= n) return;
        atomicAdd(i, 1);
        atomicSub(i + 1, 2);
        atomicMax(i + 2, t);
        atomicMin(i + 3, -t);
        atomicInc(u, 99u);
        atomicOr(u + 1, 1u << t % 32);
        atomicXor(u + 2, 1u << t % 2);
        atomicAdd(l, 1ull << 32);
        atomicAdd(f, 1);
        atomicAdd(d, 0.5);
        atomicExch(f + 1, 3.0f);
        for (int old = i[4], seen; ; old = seen) {
            seen = atomicCAS(i + 4, old, old + 3);
            if (seen == old) break;
        }
    }"""
    i, u = torch.zeros(5, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    long, f, d = torch.zeros(1, dtype=torch.int64), torch.zeros(2), torch.zeros(1, dtype=torch.float64)
    run_one(text, extents(50), extents(128), [i, u, long, f, d, int32(6001)])
    assert i.tolist() == [6001, -12002, 6000, -6000, 18003]
    assert (u[0].item(), u[1].item(), u[2].item()) == (6001 % 100, -1, 0b01)
    assert (long.item(), f.tolist(), d.item()) == (6001 << 32, [6001, 3], 3000.5)


def test_the_last_block_sees_what_the_others_wrote() -> None:
    text = r"""
    __device__ unsigned finished = 0;
    extern "C" __global__ void k(const float* a, float* partial, float* total) {
        __shared__ bool last;
        float value = a[blockIdx.x * blockDim.x + threadIdx.x];
        for (int offset = 16; offset; offset /= 2) value += __shfl_down_sync(~0u, value, offset);
        if (threadIdx.x == 0) {
            partial[blockIdx.x] = value;
            __threadfence();
            last = atomicAdd(&finished, 1) == gridDim.x - 1;
        }
        __syncthreads();
        if (last && threadIdx.x == 0) {
            float sum = 0;
            for (unsigned i = 0; i < gridDim.x; ++i) sum += partial[i];
            *total = sum;
            finished = 0;
        }
    }"""
    module = load(text)
    a, partial, total = iota(200, 32) % 7, torch.zeros(200), torch.zeros(1)
    for _ in range(3):
        module.launch("k", extents(200), extents(32), [a, partial, total])
        assert total.item() == a.sum().item()


def test_whether_threads_wait_is_found_out_by_running() -> None:
    """Cooperation in a branch, a macro, a member, or only in some blocks and some threads: never a wrong answer."""
    text = r"""
    #define MEET() __syncthreads()
    struct Barrier {
        bool used;
        __device__ ~Barrier() { if (used) MEET(); }
    };
    template <class Meeting> __device__ void apply(int* shared, Meeting meeting) {
        shared[threadIdx.x] = threadIdx.x + 1;
        meeting();
    }
    extern "C" __global__ void k(int* out, int waiting_blocks) {
        __shared__ int values[96];
        const bool waits = blockIdx.x % 2 == 0 && blockIdx.x < waiting_blocks;
        if (!waits) {
            out[blockIdx.x * 96 + threadIdx.x] = -1;
            if (blockIdx.x % 3 == 0 && threadIdx.x >= 64) __syncwarp();
            return;
        }
        { Barrier barrier{true}; values[threadIdx.x] = 0; }
        apply(values, [] { MEET(); });
        out[blockIdx.x * 96 + threadIdx.x] = values[95 - threadIdx.x];
    }"""
    module = load(text)
    for waiting in (0, 1, 7, 40):
        out = torch.zeros(40, 96, dtype=torch.int32)
        module.launch("k", extents(40), extents(96), [out, int32(waiting)])
        expected = torch.full((40, 96), -1, dtype=torch.int32)
        expected[0 : min(waiting, 40) : 2] = torch.arange(96, 0, -1, dtype=torch.int32)
        assert torch.equal(out, expected), waiting


def test_cooperation_that_the_scan_of_the_source_misses_does_not_compile() -> None:
    text = '#define PASTE(a, b) a##b\nextern "C" __global__ void k(int* out) { PASTE(__sync, threads)(); out[0] = 1; }'
    with pytest.raises(CompileError, match="__syncthreads"):
        COMPILER.compile(variant_of(text))


def test_many_blocks_of_many_waiting_threads_agree_bit_for_bit() -> None:
    text = r"""
    extern "C" __global__ void k(float* data) {
        __shared__ float row[1024];
        float* mine = data + blockIdx.x * 1024;
        row[threadIdx.x] = mine[threadIdx.x];
        for (int round = 0; round < 20; ++round) {
            __syncthreads();
            const float next = 0.25f * row[(threadIdx.x + 1) % 1024] + 0.5f * row[(threadIdx.x + 1023) % 1024];
            __syncthreads();
            row[threadIdx.x] = next + __shfl_xor_sync(~0u, next, 1 << round % 5);
        }
        mine[threadIdx.x] = row[threadIdx.x];
    }"""
    module = load(text)
    start = torch.randn(24, 1024)
    results = []
    for _ in range(3):
        data = start.clone()
        module.launch("k", extents(24), extents(1024), [data])
        results.append(data)
    expected = start.clone()
    lanes = torch.arange(1024)
    for step in range(20):
        following = 0.25 * expected.roll(-1, 1) + 0.5 * expected.roll(1, 1)
        expected = following + following[:, lanes ^ (1 << step % 5)]
    torch.testing.assert_close(results[0], expected)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


# ----------------------------------------------------------------------------------------------------------- arithmetic


def unary(expressions: Sequence[str], x: torch.Tensor) -> list[torch.Tensor]:
    """Each expression of a float `x`, element by element."""
    assignments = "".join(f"out[{row} * n + i] = {expression};\n" for row, expression in enumerate(expressions))
    text = f"""
    extern "C" __global__ void k(const float* a, float* out, long long n) {{
        const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        const float x = a[i];
        {assignments}
    }}"""
    out = torch.zeros(len(expressions), len(x))
    run_one(text, blocks_for(len(x), 256), extents(256), [x, out, int64(len(x))])
    return list(out)


def units_in_the_last_place(value: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest distance of float32 values from float64 ones, in units of float32's last place there."""
    size = exact.abs().clamp(min=torch.finfo(torch.float32).tiny)
    return float(((value.double() - exact).abs() / torch.exp2(size.log2().floor() - 23)).max())


def test_exp_and_tanh_are_as_exact_as_cudas() -> None:
    x = torch.cat([torch.linspace(-103.9, 88.7, 400_001), torch.linspace(-1, 1, 100_001), torch.randn(100_000) * 1e-3])
    exponential, hyperbolic = unary(["expf(x)", "tanhf(x)"], x)
    assert units_in_the_last_place(exponential, x.double().exp()) < 1.1
    assert units_in_the_last_place(hyperbolic, x.double().tanh()) < 2.0
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, 1000.0, -1000.0, 0.0, -0.0])
    exponential, hyperbolic, other = unary(["expf(x)", "tanhf(x)", "1.0f / (1.0f + __expf(-x))"], special)
    torch.testing.assert_close(exponential, special.exp(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(hyperbolic, special.tanh(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(hyperbolic.signbit()[-2:], torch.tensor([False, True]))
    torch.testing.assert_close(other, special.sigmoid(), equal_nan=True)


def test_minimum_and_maximum_prefer_a_number_to_nan() -> None:
    x = torch.tensor([1.0, -2.0, torch.nan, torch.inf, -torch.inf])
    expressions = ["fminf(x, 0.5f)", "fmaxf(0.5f, x)", "min(x, 0.5f)", "fmax(x, 0.5f)", "__saturatef(x)"]
    results = unary(expressions, x)
    assert results[0].tolist() == results[2].tolist() == [0.5, -2, 0.5, 0.5, -torch.inf]
    assert results[1].tolist() == results[3].tolist() == [1, 0.5, 0.5, torch.inf, 0.5]
    assert results[4].tolist() == [1, 0, 0, 1, 0]


def test_functions_of_the_library_and_the_intrinsics() -> None:
    x = torch.linspace(0.1, 4, 1001)
    cases = {
        "rsqrtf(x)": x.rsqrt(),
        "sqrtf(x) + sqrt(x)": 2 * x.sqrt(),
        "__logf(x) + log(x)": 2 * x.log(),
        "__powf(x, 2.5f)": x**2.5,
        "__sinf(x) * __cosf(x)": x.sin() * x.cos(),
        "__fdividef(1.0f, x) + __frcp_rn(x)": 2 / x,
        "erff(x) + expm1f(x) + log1pf(x)": x.erf() + x.expm1() + x.log1p(),
        "fmaf(x, x, 1.0f)": x * x + 1,
        "__int_as_float(__float_as_int(x) ^ 0x80000000)": -x,
        "float(exp(double(x)) + fma(double(x), 2.0, 1.0))": x.exp() + 2 * x + 1,
        "max(int(x), 2) + min(threadIdx.x, 0u) + abs(-3)": x.int().clamp(min=2).float() + 3,
        "__popc(7) + __ffs(8) + __clz(1) + __brev(1u) / 2147483648u + (isnan(x) || isinf(x))": torch.full_like(x, 39),
    }
    for (expression, expected), value in zip(cases.items(), unary(list(cases), x), strict=True):
        assert torch.allclose(value, expected, rtol=1e-6, atol=1e-6), expression


def test_products_and_sums_contract_unless_each_is_to_be_rounded() -> None:
    x = torch.rand(1000) + 1
    (contracted,) = unary(["x * x - 1.7f"], x)
    (rounded,) = unary(["__fsub_rn(__fmul_rn(x, x), 1.7f)"], x)
    assert torch.equal(rounded, x * x - 1.7)
    in_one_rounding = (x.double() * x.double() - torch.tensor(1.7).double()).float()
    # A processor without the instruction has nothing to contract to.
    assert torch.equal(contracted, in_one_rounding) or torch.equal(contracted, rounded)


# ---------------------------------------------------------------------------------- refusals, failures, and the process


@pytest.mark.parametrize(
    ("grid", "block", "shared"),
    [
        ((0, 1, 1), (1, 1, 1), 0),
        ((1, 1, 1), (32, 0, 1), 0),
        ((-1, 1, 1), (1, 1, 1), 0),
        ((2**31, 1, 1), (1, 1, 1), 0),
        ((1, 65536, 1), (1, 1, 1), 0),
        ((1, 1, 65536), (1, 1, 1), 0),
        ((1, 1, 1), (1025, 1, 1), 0),
        ((1, 1, 1), (1, 1, 65), 0),
        ((1, 1, 1), (32, 33, 1), 0),
        ((1, 1, 1), (32, 1, 1), 227 * 1024 + 1),
        ((1, 1, 1), (32, 1, 1), -1),
    ],
)
def test_launches_that_cuda_refuses(elementwise: LoadedModule, grid: Dim3, block: Dim3, shared: int) -> None:
    assert geometry_refusal(grid, block, shared)
    tensor = torch.ones(1)
    with pytest.raises(LaunchError, match="launch of 'one_each'"):
        elementwise.launch("one_each", grid, block, [tensor, ctypes.c_float(2), tensor, int32(1)], shared)
    assert tensor.item() == 1


def test_the_largest_launches_that_cuda_allows() -> None:
    for block in ((1024, 1, 1), (1, 1024, 1), (16, 1, 64), (32, 32, 1)):
        assert geometry_refusal((2**31 - 1, 65535, 65535), block, 227 * 1024) is None


def test_wrong_arguments_are_refused(elementwise: LoadedModule) -> None:
    tensor = torch.ones(4)
    scale = ctypes.c_float(2)
    cases: list[tuple[list[Argument], str]] = [
        ([tensor, scale, tensor], "takes 4 arguments, not 3"),
        ([tensor, scale, tensor, int32(4), int32(4)], "takes 4 arguments, not 5"),
        ([tensor, scale, tensor, int64(4)], "argument 4 takes 4 bytes, not 8"),
        ([tensor, tensor, tensor, int32(4)], "argument 2 takes 4 bytes, not 8"),
        ([tensor.to("meta"), scale, tensor, int32(4)], "meta"),
    ]
    for arguments, message in cases:
        with pytest.raises(LaunchError, match=message):
            elementwise.launch("one_each", extents(1), extents(4), arguments)
    with pytest.raises(LaunchError, match=r"no entry point 'absent' \(known: one_each"):
        elementwise.launch("absent", extents(1), extents(4), [])
    with pytest.raises(LaunchError, match="__launch_bounds__ allow 256"):
        elementwise.launch("four_each", extents(1), extents(257), [tensor, scale, tensor, int64(4)])
    assert tensor.tolist() == [1, 1, 1, 1]


def test_launch_bounds_of_constants_with_a_second_number() -> None:
    text = r"""
    __global__ void __launch_bounds__(max(block_size, 32) * 2, 4) k(int* out);
    extern "C" __global__ void __launch_bounds__(max(block_size, 32) * 2, 4) k(int* out) { *out = 1; }"""
    source = KernelSource("example", text.replace("__global__", 'extern "C" __global__', 1), ("k",), {})
    module = COMPILER.load(COMPILER.compile(Variant(source, "constexpr int block_size = 48;\n", "x86_64")))
    out = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(LaunchError, match="allow 96 threads"):
        module.launch("k", extents(1), extents(97), [out])
    module.launch("k", extents(1), extents(96), [out])
    assert out.item() == 1


def test_a_source_that_g_plus_plus_refuses() -> None:
    with pytest.raises(CompileError, match=r"example.cu:2.*nonsense") as raised:
        COMPILER.compile(variant_of('extern "C" __global__ void k(int* a) {\n    a[0] = nonsense;\n}'))
    assert "nonsense" in raised.value.log
    with pytest.raises(CompileError, match=r"missing\.cuh"):
        COMPILER.compile(variant_of('#include "missing.cuh"\nextern "C" __global__ void k() {}'))
    with pytest.raises(CompileError, match="undefined reference"):
        COMPILER.compile(variant_of('void absent(); extern "C" __global__ void k() { absent(); }'))
    with pytest.raises(CompileError):
        COMPILER.compile(Variant(KernelSource("example", "", ("absent",), {}), "", "x86_64"))


def test_a_thread_that_waits_and_needs_too_large_a_stack_does_not_compile() -> None:
    text = r"""
    extern "C" __global__ void k(int* out, int i) {
        volatile int local[20000];
        local[i] = 3;
        %s
        out[0] = local[i];
    }"""
    with pytest.raises(CompileError, match="frame size"):
        COMPILER.compile(variant_of(text % "__syncthreads();"))
    out = torch.zeros(1, dtype=torch.int32)
    run_one(text % "", extents(1), extents(1), [out, int32(5)])
    assert out.item() == 3


FAILING = r"""
extern "C" __global__ void asserting(int n) { assert(blockIdx.x * blockDim.x + threadIdx.x != n); }
extern "C" __global__ void trapping(int n) { if (threadIdx.x == n) __trap(); }
extern "C" __global__ void trapping_at_a_barrier(int n) {
    __syncthreads();
    if (threadIdx.x == n) __trap();
    __syncthreads();
}
extern "C" __global__ void deadlocked(int n) {
    if (threadIdx.x < n) __shfl_sync(~0u, 1, 0);
    else __syncthreads();
}
extern "C" __global__ void outside_its_mask(int n) { __syncwarp(1u << n); }
extern "C" __global__ void fine(int* out) {
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}
"""


@pytest.mark.parametrize(
    ("entry_point", "message"),
    [
        ("asserting", r"assertion failed: .* != n at example.cu:2, in block \(1, 0, 0\), thread \(36, 0, 0\)"),
        ("trapping", "__trap.*thread \\(100, 0, 0\\)"),
        ("trapping_at_a_barrier", "__trap.*thread \\(100, 0, 0\\)"),
        ("deadlocked", "wait for each other for ever: 28 of 128 are at __syncthreads"),
        ("outside_its_mask", "mask that leaves out"),
    ],
)
def test_a_kernel_that_fails_leaves_the_process_and_the_module_usable(entry_point: str, message: str) -> None:
    module = failing_module()
    argument = {"asserting": 128 + 36, "outside_its_mask": 4}.get(entry_point, 100)
    for _ in range(3):
        with pytest.raises(LaunchError, match=message):
            module.launch(entry_point, extents(8), extents(128), [int32(argument)])
        out = torch.zeros(8 * 128, dtype=torch.int32)
        module.launch("fine", extents(8), extents(128), [out])
        assert out.sum().item() == 8 * 128


_modules: dict[str, LoadedModule] = {}


def failing_module() -> LoadedModule:
    if "failing" not in _modules:
        _modules["failing"] = load(FAILING)
    return _modules["failing"]


def test_three_hundred_variants_in_one_process() -> None:
    """Each with thread-local variables of its own, of one name and of different sizes, in a template."""
    text = r"""
    template <typename T> __device__ T* scratch() {
        __shared__ T memory[size];
        return memory;
    }
    extern "C" __global__ void k(int* out) {
        int* memory = scratch<int>();
        memory[size - 1 - threadIdx.x] = threadIdx.x + 1000 * size;
        __syncthreads();
        out[blockIdx.x * size + threadIdx.x] = memory[threadIdx.x];
    }"""
    sizes = (1, 33, 256, 1024)
    builds = {size: COMPILER.compile(variant_of(text, f"constexpr int size = {size};\n")) for size in sizes}
    modules = [(size, COMPILER.load(builds[size])) for _ in range(75) for size in sizes]
    for size, module in modules:
        out = torch.zeros(3, size, dtype=torch.int32)
        module.launch("k", extents(3), extents(size), [out])
        expected = torch.arange(size - 1, -1, -1, dtype=torch.int32) + 1000 * size
        assert torch.equal(out, expected.expand(3, -1))


def mapped(pattern: str) -> set[str]:
    return set(re.findall(rf"\S*{pattern}\S*", Path("/proc/self/maps").read_text()))


def test_a_module_is_unmapped_with_its_last_reference() -> None:
    build = COMPILER.compile(variant_of(TREE, "constexpr int block_size = 32;\n"))
    before = mapped("tunebench-")
    module = COMPILER.load(build)
    module.launch("sum", extents(1), extents(32), [torch.ones(32), torch.zeros(1), int32(32)])
    assert len(mapped("tunebench-") - before) == 1
    del module
    assert not mapped("tunebench-") - before


def test_one_openmp_runtime_is_in_the_process_and_torch_chooses_its_threads() -> None:
    """In a process of its own: pytest's may have loaded anything."""
    program = r"""
import ctypes, re, sys
sys.path[:0] = ["tests/tuner/compile"]
import torch
import test_cpu as t
module = t.load('extern "C" long gettid(); extern "C" __global__ void k(long* out) {'
                'out[blockIdx.x] = gettid(); for (volatile int i = 0; i < 200000; ++i); }')
for threads in (2, 1):
    torch.set_num_threads(threads)
    ids = torch.zeros(64, dtype=torch.int64)
    module.launch("k", (64, 1, 1), (1, 1, 1), [ids])
    assert 0 not in ids and len(ids.unique()) <= threads, ids
torch.set_num_threads(2)
torch.mul(torch.ones(10**6), 2)
names = {line.split()[-1] for line in open("/proc/self/maps") if re.search(r"/lib(gomp|omp|iomp5)[^/]*$", line)}
print(sorted(names))
assert len(names) == 1, names
"""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root / "tests")])}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_launches_from_several_python_threads_at_once() -> None:
    module = load(TREE, "constexpr int block_size = 64;\n")
    failures: list[str] = []

    def work(seed: int) -> None:
        a = (iota(6400) + seed) % 31
        expected = a.reshape(-1, 64).sum(1)
        for _ in range(30):
            out = torch.zeros(100)
            module.launch("sum", extents(100), extents(64), [a, out, int32(6400)])
            if not torch.equal(out, expected):
                failures.append(f"seed {seed}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_build_says_what_it_is() -> None:
    variant = variant_of(TREE, "constexpr int block_size = 32;\n")
    build = COMPILER.compile(variant)
    assert (build.variant_digest, build.compiler, build.cached) == (variant.digest, CompilerName.CPU, False)
    assert build.code.startswith(b"\x7fELF")
    assert list(build.figures) == ["sum"]
    assert 0 < build.seconds < 60
    assert re.fullmatch(r"g\+\+ .*, processor [0-9a-f]{16}, built-ins [0-9a-f]{16}", build.compiler_version)
    assert COMPILER.version() == build.compiler_version
    assert "-DTUNEBENCH_COOPERATES" in COMPILER.flags(variant)
    assert "-DTUNEBENCH_COOPERATES" not in COMPILER.flags(variant_of(ELEMENTWISE))
    assert COMPILER.load(build).resident_blocks("sum", 32) == 1


def test_a_binary_that_the_loader_refuses() -> None:
    build = COMPILER.compile(variant_of(TREE, "constexpr int block_size = 32;\n"))
    with pytest.raises(LaunchError, match="cannot be loaded"):
        COMPILER.load(dataclasses.replace(build, code=build.code[:100]))
    with pytest.raises(LaunchError, match="no entry point 'other'"):
        COMPILER.load(dataclasses.replace(build, figures={"other": build.figures["sum"]}))


def test_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerMissingError, match=r"apt-get install g\+\+"):
        CpuCompiler().version()
    with pytest.raises(CompilerMissingError):
        CpuCompiler().compile(variant_of(TREE))


def test_fibers_by_ucontext_on_other_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_COOPERATION_FLAGS", (*cpu._COOPERATION_FLAGS, "-DTUNEBENCH_UCONTEXT"))
    test_tree_reduction_through_shared_memory(256)
    test_threads_that_return_early_are_not_waited_for()
    test_every_shuffle_and_vote_lane_by_lane()
