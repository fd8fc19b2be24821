"""NVRTC for sm_90, on a machine with or without a GPU."""

import pytest

from tunebench.tuner.build import KernelFigures
from tunebench.tuner.compile.nvrtc import NvrtcCompiler, _version, parse_ptxas_log
from tunebench.tuner.errors import CompileError
from tunebench.tuner.variant import KernelSource, Variant

SOURCE = """
#include "helper.cuh"
extern "C" __global__ void __launch_bounds__(block_size) twice(const float* a, float* c, long long n) {
    __shared__ float tile[block_size];
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? helper(a[i]) : 0.0f;
    __syncthreads();
    if (i < n) c[i] = tile[threadIdx.x];
}
"""
HEADERS = {"helper.cuh": "__device__ float helper(float x) { return 2.0f * x; }"}


def variant(text: str, architecture: str = "sm_90") -> Variant:
    return Variant(KernelSource("twice", text, HEADERS), "constexpr int block_size = 256;\n", architecture)


def test_a_cubin_with_its_figures(nvrtc: NvrtcCompiler) -> None:
    build = nvrtc.compile(variant(SOURCE))
    assert build.code.startswith(b"\x7fELF")
    figures = build.figures["twice"]
    assert figures.shared is not None and figures.shared >= 1024
    assert figures.registers is not None and 0 < figures.registers <= 255
    assert figures.spill_loads == figures.spill_stores == 0
    assert build.seconds > 0


def test_architectures_differ(nvrtc: NvrtcCompiler) -> None:
    hopper, ampere = (nvrtc.compile(variant(SOURCE, architecture)) for architecture in ("sm_90", "sm_80"))
    assert hopper.code != ampere.code
    assert hopper.variant_digest != ampere.variant_digest
    assert nvrtc.flags(variant(SOURCE, "sm_80")) != nvrtc.flags(variant(SOURCE, "sm_90"))


@pytest.mark.parametrize(("version", "left_out"), [((12, 8), ["--no-cache"]), ((12, 9), []), ((13, 0), [])])
def test_options_are_those_of_nvrtc_s_version(
    nvrtc: NvrtcCompiler, version: tuple[int, int], left_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = _version()
    monkeypatch.setattr("tunebench.tuner.compile.nvrtc._version", lambda: version)
    given = nvrtc.flags(variant(SOURCE))
    assert nvrtc.left_out() == left_out and ("--no-cache" in given) == (not left_out)
    assert nvrtc.version() == "NVRTC {}.{}".format(*version)
    if version <= here:  # what an older one takes, this one takes
        assert nvrtc.compile(variant(SOURCE)).figures["twice"].registers


def test_a_refused_source_carries_the_log(nvrtc: NvrtcCompiler) -> None:
    with pytest.raises(CompileError) as caught:
        nvrtc.compile(variant(SOURCE.replace("n) c[i]", "n) d[i]")))
    assert 'identifier "d" is undefined' in caught.value.log
    assert "twice.cu(8)" in caught.value.log


def test_a_process_of_its_own_compiles_the_same(nvrtc: NvrtcCompiler) -> None:
    here, apart = (one.compile(variant(SOURCE)) for one in (nvrtc, nvrtc.apart()))
    assert (apart.code, apart.figures, apart.compiler_version) == (here.code, here.figures, here.compiler_version)
    with pytest.raises(CompileError, match=r"NVRTC refused twice\.cu") as caught:
        nvrtc.apart().compile(variant(SOURCE.replace("n) c[i]", "n) d[i]")))
    assert 'identifier "d" is undefined' in caught.value.log


def test_lambdas_and_functions_without_an_execution_space_are_the_device_s(nvrtc: NvrtcCompiler) -> None:
    text = SOURCE.replace("helper(a[i])", "[](auto x) { return plain(x); }(a[i])")
    assert nvrtc.compile(variant("float plain(float x) { return x; }\n" + text)).figures["twice"]


def test_the_log_of_several_entry_points() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 2048 bytes smem
ptxas info    : Compiling entry function 'second' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers
"""
    assert parse_ptxas_log(log) == {"first": KernelFigures(40, 4, 12, 8, 2048), "second": KernelFigures(12, 0, 0, 0, 0)}
