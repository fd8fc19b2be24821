"""The `cpu` compiler with real g++: CUDA sources give CUDA's answers, and what CUDA refuses is refused."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import threading
from pathlib import Path

import pytest
import torch
from cpu_launch import COMPILER, ELEMENTWISE, TREE, blocks_for, extents, iota, load, run_one, variant_of
from processes import ended

from tunebench.tuner.build import Argument, CompilerName, Dim3, LoadedModule
from tunebench.tuner.compile.cpu.compiler import CpuCompiler, geometry_refusal
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.errors import CompileError, CompilerMissingError, LaunchError
from tunebench.tuner.space import SearchSpace, Tunable
from tunebench.tuner.variant import KernelSource, Variant, prologue


@pytest.fixture(scope="module")
def elementwise() -> LoadedModule:
    return load(ELEMENTWISE)


@pytest.mark.parametrize("count", [1, 3, 31, 255, 256, 257, 1021, 100_003])
@pytest.mark.parametrize("threads", [1, 32, 96, 256])
def test_elementwise_of_odd_sizes_leaves_the_tail_alone(elementwise: LoadedModule, count: int, threads: int) -> None:
    a = torch.randn(count)
    scale = 3.14
    for name, size, per_thread in (
        ("one_each", count, 1),
        ("one_each_wide", count, 1),
        ("four_each", count, 4),
        ("grid_stride", count, 7),
    ):
        c = torch.full((count + 64,), torch.nan)
        elementwise.launch(name, blocks_for(count, threads * per_thread), extents(threads), [a, scale, c, size])
        assert torch.equal(c[:count], a * 3.14), name
        assert c[count:].isnan().all(), name


def test_overlapping_tensors_are_computed_in_place(elementwise: LoadedModule) -> None:
    a = torch.randn(5000)
    expected = a * 2
    elementwise.launch("grid_stride", extents(3), extents(128), [a, 2, a, 5000])
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
    elementwise.launch("one_each_wide", grid, extents(1), [torch.ones(1), 2, c, 1])
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
        )
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


def test_constant_memory_and_device_variables() -> None:
    text = r"""
    __constant__ float weights[3] = {1.0f, 10.0f, 100.0f};
    __device__ int shift = 7;
    extern "C" __global__ void k(float* data, int size) {
        if (threadIdx.x < size) data[threadIdx.x] = weights[threadIdx.x % 3] + shift;
    }"""
    c = torch.zeros(6)
    run_one(text, extents(1), extents(32), [c, 5])
    assert c.tolist() == [8, 17, 107, 8, 17, 0]


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
        elementwise.launch("one_each", grid, block, [tensor, 2, tensor, 1], shared)
    assert tensor.item() == 1


def test_the_largest_launches_that_cuda_allows() -> None:
    for block in ((1024, 1, 1), (1, 1024, 1), (16, 1, 64), (32, 32, 1)):
        assert geometry_refusal((2**31 - 1, 65535, 65535), block, 227 * 1024) is None


def test_wrong_arguments_are_refused(elementwise: LoadedModule) -> None:
    tensor = torch.ones(4)
    scale = 2
    cases: list[tuple[list[Argument], str]] = [
        ([tensor, scale, tensor], r"takes 4 arguments \(a, s, c, n\), not 3"),
        ([tensor, scale, tensor, 4, 4], "takes 4 arguments .*, not 5"),
        ([tensor, scale, tensor, 2**31], r"parameter 'n' \(int\) takes -2147483648 to 2147483647, not 2147483648"),
        ([tensor, tensor, tensor, 4], r"parameter 's' \(float\) takes a float or an int, not Tensor"),
        ([tensor.to("meta"), scale, tensor, 4], "parameter 'a' .* takes a tensor on cpu, not on meta"),
    ]
    for arguments, message in cases:
        with pytest.raises(LaunchError, match=message):
            elementwise.launch("one_each", extents(1), extents(4), arguments)
    with pytest.raises(LaunchError, match=r"no entry point 'absent' \(known: one_each"):
        elementwise.launch("absent", extents(1), extents(4), [])
    with pytest.raises(LaunchError, match="__launch_bounds__ allow 256"):
        elementwise.launch("four_each", extents(1), extents(257), [tensor, scale, tensor, 4])
    assert tensor.tolist() == [1, 1, 1, 1]


def test_launch_bounds_of_constants_with_a_second_number() -> None:
    text = r"""
    __global__ void __launch_bounds__(max(block_size, 32) * 2, 4) k(int* out);
    extern "C" __global__ void __launch_bounds__(max(block_size, 32) * 2, 4) k(int* out) { *out = 1; }"""
    source = KernelSource("example", text.replace("__global__", 'extern "C" __global__', 1), {})
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
    run_one(text % "", extents(1), extents(1), [out, 5])
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


@pytest.fixture(scope="module")
def failing() -> LoadedModule:
    return load(FAILING)


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
def test_a_failing_kernel_leaves_the_process_usable(failing: LoadedModule, entry_point: str, message: str) -> None:
    argument = {"asserting": 128 + 36, "outside_its_mask": 4}.get(entry_point, 100)
    for _ in range(3):
        with pytest.raises(LaunchError, match=message):
            failing.launch(entry_point, extents(8), extents(128), [argument])
        out = torch.zeros(8 * 128, dtype=torch.int32)
        failing.launch("fine", extents(8), extents(128), [out])
        assert out.sum().item() == 8 * 128


@pytest.mark.slow
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
    return set(re.findall(rf"\S*{pattern}\S*", Path("/proc/self/maps").read_text(encoding="utf-8")))


def test_a_module_is_unmapped_with_its_last_reference() -> None:
    build = COMPILER.compile(variant_of(TREE, "constexpr int block_size = 32;\n"))
    before = mapped("tunebench-")
    module = COMPILER.load(build)
    module.launch("sum", extents(1), extents(32), [torch.ones(32), torch.zeros(1), 32])
    assert len(mapped("tunebench-") - before) == 1
    del module
    assert not mapped("tunebench-") - before


@pytest.mark.slow
def test_one_openmp_runtime_is_in_the_process_and_torch_chooses_its_threads() -> None:
    """In a process of its own: pytest's may have loaded anything."""
    program = r"""
import ctypes, re, sys
sys.path[:0] = ["tests/tuner/compile"]
import torch
from cpu_launch import load
from tunebench.tuner.compile.cpu.compiler import _parallel_function
assert _parallel_function()
module = load('extern "C" long gettid(); extern "C" __global__ void k(long* out) {'
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
    path = os.pathsep.join([str(root / "src"), str(root / "tests")])
    done = ended(sys.executable, "-c", program, folder=root, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_launches_from_several_python_threads_at_once() -> None:
    module = load(TREE, "constexpr int block_size = 64;\n")
    failures: list[str] = []

    def work(seed: int) -> None:
        a = (iota(6400) + seed) % 31
        expected = a.reshape(-1, 64).sum(1)
        for _ in range(30):
            out = torch.zeros(100)
            module.launch("sum", extents(100), extents(64), [a, out, 6400])
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
