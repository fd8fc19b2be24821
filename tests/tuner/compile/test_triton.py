"""The `triton` compiler: real cubins with real figures and refusals, and real functions in Triton's interpreter."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
import torch
from triton_kernels import SOFTMAX, TWO_SOURCES, write

from tunebench.kernels.runtime.registry import import_model
from tunebench.tuner.build import Within
from tunebench.tuner.compile.building import known_build, shared_build
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.compilers import compiler_for, default_compiler
from tunebench.tuner.compile.triton.binaries import binaries_in
from tunebench.tuner.compile.triton.compiler import TritonCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import any_gpu, find_device
from tunebench.tuner.errors import ArgumentError, CompileError, CompileTimeoutError, LaunchError, UserError
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem
from tunebench.tuner.signature import Kind
from tunebench.tuner.triton_source import TritonSource
from tunebench.tuner.variant import Variant

DEFAULT = Configuration({"width": 128, "num_warps": 4})


def kernel_of(folder: Path, changes: dict[str, str] | None = None, text: str = SOFTMAX) -> Kernel:
    return import_model(str(write(folder / "softmax.py", text, changes))).kernel


def variant_of(kernel: Kernel, architecture: str = "sm_90", dtype: str = "float32", columns: int = 80) -> Variant:
    return kernel.variant(DEFAULT, Problem({"rows": 4, "columns": columns}, dtype), architecture)


@pytest.mark.slow
def test_a_cubin_has_figures_and_comes_from_the_cache_the_second_time(tmp_path: Path) -> None:
    wide = Configuration({"width": 512, "num_warps": 4})  # four elements a thread: a vector, where it is allowed
    compiler = TritonCompiler()
    variant = kernel_of(tmp_path).variant(wide, Problem({"rows": 4, "columns": 80}), "sm_90")
    build = BuildCache(tmp_path / "cache").build(compiler, variant)
    figures = build.figures["softmax"]
    assert figures.registers is not None and 8 <= figures.registers <= 255
    assert (figures.spill_loads, figures.spill_stores) == (0, 0)
    assert figures.shared is not None and figures.shared > 0
    general, aligned = binaries_in(build.code)
    assert (general.aligned, aligned.aligned) == (False, True)
    assert aligned.divisible == ("columns",)
    assert {one.threads for one in (general, aligned)} == {128}
    assert all(one.code.startswith(b"\x7fELF") for one in (general, aligned))
    assert general.code != aligned.code
    again = BuildCache(tmp_path / "cache").find(compiler, variant)
    assert again is not None and again.cached
    assert (again.code, again.signatures) == (build.code, variant.signatures)


def test_what_a_variant_is_depends_on_all_that_its_binary_does(tmp_path: Path) -> None:
    kernel = kernel_of(tmp_path)
    known = variant_of(kernel).digest
    others = {
        variant_of(kernel, "sm_80").digest,
        variant_of(kernel, dtype="float16").digest,
        variant_of(kernel, columns=81).digest,
        kernel.variant(
            Configuration({"width": 128, "num_warps": 1}), Problem({"rows": 4, "columns": 80}), "sm_90"
        ).digest,
        variant_of(kernel_of(tmp_path, {"tl.exp(row - largest)": "tl.exp2(row - largest)"})).digest,
    }
    assert len(others | {known}) == 6
    # Rows are no constant, and neither what is behind the functions nor a comment is theirs.
    assert kernel.variant(DEFAULT, Problem({"rows": 5, "columns": 96}), "sm_90").digest == known
    assert variant_of(kernel_of(tmp_path, {"rows = 4": "rows = 7  # more"})).digest == known


def test_the_version_is_part_of_what_a_build_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant, cache = variant_of(kernel_of(tmp_path), "x86_64"), BuildCache(tmp_path / "cache")
    cache.build(TritonCompiler(), variant)
    assert cache.find(TritonCompiler(), variant) is not None
    monkeypatch.setattr(TritonCompiler, "version", lambda _: "Triton 0.1")
    assert cache.find(TritonCompiler(), variant) is None


REFUSED = {
    "a name": ({"inside = at < columns": "inside = at < colums"}, r"softmax.py:18: .*colums"),
    "a shape": ({"tl.arange(0, width)": "tl.arange(0, 100)"}, r"softmax.py:17: .*arange.* power of 2"),
    "inside what is called": ({"tl.exp(row - largest)": "tl.exp(row - smallest)"}, r"softmax.py:12: .*smallest"),
    "a module": ({"import triton.language as tl": "import triton.languages as tl"}, "softmax.py: ModuleNotFoundError"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_has_tritons_own_message_and_the_line(tmp_path: Path, name: str) -> None:
    changes, message = REFUSED[name]
    text = SOFTMAX
    for old, new in changes.items():
        text = text.replace(old, new)
    source = TritonSource.read("softmax", tmp_path / "softmax.py", text)
    assert source is not None
    variant = dataclasses.replace(variant_of(kernel_of(tmp_path)), source=source)
    with pytest.raises(CompileError, match=f"^Triton refused {message}") as refusal:
        TritonCompiler().compile(variant)
    assert len(str(refusal.value).splitlines()) == 1
    assert refusal.value.log


def test_a_compiler_that_hangs_is_killed(tmp_path: Path) -> None:
    compiler = TritonCompiler()
    compiler.deadline_seconds = 0.05
    with pytest.raises(CompileTimeoutError, match=r"Triton was still compiling softmax.py after 0 s: killed"):
        compiler.compile(variant_of(kernel_of(tmp_path)))


def test_a_background_build_is_there_when_it_is_asked_for(tmp_path: Path) -> None:
    compiler = default_compiler(any_gpu("sm_90"), kernel_of(tmp_path).languages)
    variant = variant_of(kernel_of(tmp_path), columns=112)
    assert known_build(compiler, variant) is None or os.environ.get("TUNEBENCH_CACHE")
    assert shared_build(compiler, variant, wait=False).result(120).figures.keys() == {"softmax"}
    assert known_build(compiler, variant) is not None


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_interpreter_runs_the_function_itself(tmp_path: Path, dtype: str) -> None:
    compiler, variant = TritonCompiler(), variant_of(kernel_of(tmp_path), "x86_64", dtype)
    module = compiler.load(compiler.compile(variant))
    x = torch.randn(4, 80, dtype=getattr(torch, dtype))
    y = torch.full_like(x, torch.nan)
    module.launch("softmax", 4, None, (x, y, 80))
    expected = torch.softmax(x.double(), dim=1)
    assert (y.double() - expected).abs().max() <= expected.max() * torch.finfo(x.dtype).eps * 2
    assert module.resident_blocks("softmax", 0) == 1


def test_arguments_have_the_types_that_are_declared(tmp_path: Path) -> None:
    text = """
import triton
import triton.language as tl

@triton.jit
def fill(y: tl.pointer_type(tl.float64), big: tl.int64, small: tl.int8, share: tl.float64, on: tl.int1):
    tl.store(y, share)
    tl.store(y + 1, (big * small).to(tl.float64))
    tl.store(y + 2, on.to(tl.float64))
"""
    source = TritonSource.read("fill", tmp_path / "fill.py", text)
    assert source is not None
    fixed = '{"dtype": "float32", "options": {}, "functions": {"fill": {"constants": {}}}}'
    compiler, variant = TritonCompiler(), Variant(source, fixed, "x86_64")
    assert [one.kind for one in variant.signatures["fill"].parameters][1:3] == [Kind.INT64, Kind.INT8]
    module = compiler.load(compiler.compile(variant))
    y = torch.zeros(4, dtype=torch.float64)
    module.launch("fill", 1, None, (Within(y, 8), 2**40, -2, 0.1, True))
    assert y.tolist() == [0.0, 0.1, -(2.0**41), 1.0]


LAUNCHES = {
    "threads": (("softmax", 4, 128, ("x", "y", 80)), "a Triton function is given no threads and no shared memory"),
    "another function": (("exponentials", 4, None, ()), r"no Triton function 'exponentials' .*\(known: softmax\)"),
    "too few": (("softmax", 4, None, ("x", "y")), r"it takes 3 arguments \(x, y, columns\), not 2"),
    "a float": (("softmax", 4, None, ("x", "y", 8.0)), r"parameter 'columns' \(i32\) takes an int or a bool, not 8.0"),
    "a dtype": (("softmax", 4, None, ("x", "z", 80)), r"parameter 'y' \(\*fp32\) takes a float32 tensor, not float64"),
    "no grid": (("softmax", 0, None, ("x", "y", 80)), "extents of a grid are from"),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_wrong_launch_is_one_line(tmp_path: Path, name: str) -> None:
    (entry_point, blocks, threads, given), message = LAUNCHES[name]
    compiler = TritonCompiler()
    module = compiler.load(compiler.compile(variant_of(kernel_of(tmp_path), "x86_64")))
    tensors = {"x": torch.zeros(4, 80), "y": torch.zeros(4, 80), "z": torch.zeros(4, 80, dtype=torch.float64)}
    with pytest.raises(LaunchError, match=message) as refusal:
        module.launch(entry_point, blocks, threads, [tensors.get(one, one) for one in given])  # type: ignore[call-overload]
    assert isinstance(refusal.value, ArgumentError) or name == "no grid"
    assert len(str(refusal.value).splitlines()) == 1


def test_what_a_function_raises_in_the_interpreter_names_the_line(tmp_path: Path) -> None:
    compiler = TritonCompiler()
    kernel = kernel_of(tmp_path, {"inside = at < columns": "inside = at < colums"})
    module = compiler.load(compiler.compile(variant_of(kernel, "x86_64")))
    with pytest.raises(LaunchError, match=r"launch of 'softmax' .*: line 18: NameError: .*colums"):
        module.launch("softmax", 4, None, (torch.zeros(4, 80), torch.zeros(4, 80), 80))


def test_two_sources_are_compiled_each_by_its_compiler(tmp_path: Path) -> None:
    kernel = import_model(str(write(tmp_path / "twice.py", TWO_SOURCES))).kernel
    compiler = compiler_for(find_device("cpu"), None, kernel.languages)
    assert compiler.version().count(", Triton ") == 1
    x, problem = torch.rand(300), Problem({"n": 300})
    made = set()
    for values in ({"source": "cuda", "block_size": 64}, {"source": "triton", "block_size": 64, "num_warps": 1}):
        variant = kernel.variant(Configuration(values), problem, find_device("cpu").architecture)
        build = BuildCache(tmp_path / "cache").build(compiler, variant)
        y = torch.zeros_like(x)
        compiler.load(build).launch("twice", 5, 64 if values["source"] == "cuda" else None, (x, y, 300))
        assert torch.equal(y, 2 * x)
        made.add(build.compiler.value)
    assert made == {"cpu", "triton"}


def test_a_compiler_of_another_language_is_refused(tmp_path: Path) -> None:
    languages = kernel_of(tmp_path).languages
    with pytest.raises(UserError, match="compiler 'cpu' does not compile Triton"):
        compiler_for(find_device("cpu"), compiler_for(find_device("cpu")).name, languages)
    with pytest.raises(UserError, match="compiler 'triton' does not compile CUDA"):
        compiler_for(find_device("cpu"), TritonCompiler.name)


def test_bfloat16_is_rounded_as_gpus_round_it(tmp_path: Path) -> None:
    text = """
import triton
import triton.language as tl

@triton.jit
def rounded(x: tl.pointer_type(tl.float32), y, n: tl.constexpr = 1024):
    at = tl.arange(0, n)
    tl.store(y + at, tl.load(x + at).to(tl.bfloat16))
"""
    source = TritonSource.read("rounded", tmp_path / "rounded.py", text)
    assert source is not None
    fixed = '{"dtype": "bfloat16", "options": {}, "functions": {"rounded": {"constants": {}}}}'
    compiler = TritonCompiler()
    module = compiler.load(compiler.compile(Variant(source, fixed, "x86_64")))
    x = torch.randn(1024) * torch.logspace(-44, 38.6, 1024)
    x[:4] = torch.tensor([torch.inf, -torch.inf, 3.4e38, -0.0])
    y = torch.zeros(1024, dtype=torch.bfloat16)
    module.launch("rounded", 1, None, (x, y))
    assert torch.equal(y.view(torch.int16), x.bfloat16().view(torch.int16))
    x[5] = torch.nan
    module.launch("rounded", 1, None, (x, y))
    assert y[5].isnan() and not y[6].isnan()
