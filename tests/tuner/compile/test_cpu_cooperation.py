"""The `cpu` compiler: threads of a block that wait for each other."""

from __future__ import annotations

import pytest
import torch
from cpu_launch import COMPILER, TREE, extents, iota, load, run_one, variant_of

from tunebench.tuner.compile.cpu import compiler as cpu
from tunebench.tuner.compile.cpu.compiler import host_source
from tunebench.tuner.errors import CompileError


@pytest.mark.parametrize("threads", [2, 32, 256, 1024])
def test_tree_reduction_through_shared_memory(threads: int) -> None:
    a = iota(10_007) % 97
    out = torch.zeros(-(-10_007 // threads))
    constants = f"constexpr int block_size = {threads};\n"
    run_one(TREE, extents(len(out)), extents(threads), [a, out, 10_007], constants)
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
        module.launch("rows", extents(37), extents(threads), [a, out, 501])
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
    sizes = [m, n, k]
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
        module.launch("k", extents(5), extents(threads), [out, first, stay])
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
    run_one(text, extents(4), extents(64), [out, size], shared=size * 4)
    assert out.item() == pytest.approx(4 * size * (size - 1) / 2, rel=1e-5)


def test_alignment_wherever_cuda_takes_it() -> None:
    text = r"""
    #include <assert.h>
    extern "C" __global__ void __launch_bounds__(64) k(float* out) {
        __shared__ alignas(alignof(float4)) float a[64];
        __shared__ volatile alignas(128) float b[64];
        static __shared__ __align__(16) float c[64];
        alignas(64) __shared__ float2 d[64];
        extern __shared__ alignas(16) float e[];
        a[threadIdx.x] = b[threadIdx.x] = c[threadIdx.x] = e[threadIdx.x] = threadIdx.x;
        d[threadIdx.x] = make_float2(0, threadIdx.x);
        assert((size_t)a % 16 == 0 && (size_t)b % 128 == 0 && (size_t)c % 16 == 0);
        assert((size_t)d % 64 == 0 && (size_t)e % 16 == 0);
        __syncthreads();
        const int other = 63 - threadIdx.x;
        if (other % 4 == 0) {
            const float4 v = *reinterpret_cast<const float4*>(a + other);
            out[other] = v.w + b[other] + c[other] + d[other].y + e[other];
        }
    }"""
    out = torch.zeros(64)
    run_one(text, extents(1), extents(64), [out], shared=256)
    assert out[::4].tolist() == [5 * i + 3 for i in range(0, 64, 4)]


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
    run_one(text, extents(50), extents(128), [i, u, long, f, d, 6001])
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
        module.launch("k", extents(40), extents(96), [out, waiting])
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


def test_fibers_by_ucontext_on_other_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_COOPERATION_FLAGS", (*cpu._COOPERATION_FLAGS, "-DTUNEBENCH_UCONTEXT"))
    test_tree_reduction_through_shared_memory(256)
    test_threads_that_return_early_are_not_waited_for()
    test_every_shuffle_and_vote_lane_by_lane()
