"""Our products of half types: where they are offered, and how the compiler for CUDA devices takes them."""

from collections.abc import Mapping
from typing import Any

import pytest
from parts_contract import fictional

from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import Device
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import ValidSpace

HALF_TYPES = ("float16", "bfloat16")
HOPPER = fictional("sm_90")


def space_of(
    name: str = "gemm_sigmoid_residual",
    dtype: str = "bfloat16",
    mode: str = "eval",
    device: Device = HOPPER,
    depth: int = 512,
    features: int = 512,
    rows: int = 1024,
) -> ValidSpace:
    axes = {"rows": rows, "in_features": depth, "out_features": features}
    return load_model(name).kernel.space.enumerate(Problem(axes, dtype, {"mode": mode}), device)


def has_fused(space: ValidSpace) -> bool:
    return any(space[number]["product"] == "fused" for number in range(len(space)))


def streams(**of_problem: Any) -> set[Value]:
    """The rows that passes over the weight take at once."""
    space = space_of(**of_problem)
    configurations = (space[number] for number in range(len(space)))
    return {one["stream_rows"] for one in configurations if one["product"] == "stream"}


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_it_is_for_what_the_copy_engine_reads_on_hopper(dtype: str) -> None:
    assert has_fused(space_of(dtype=dtype))
    assert has_fused(space_of(dtype=dtype, depth=8, features=32))
    assert not has_fused(space_of(dtype=dtype, depth=516))
    assert not has_fused(space_of(dtype=dtype, features=528))
    assert not has_fused(space_of(dtype=dtype, device=fictional("sm_80")))
    assert not has_fused(space_of(dtype=dtype, device=fictional("sm_100")))


def test_a_batchs_own_statistics_are_behind_the_librarys_product() -> None:
    assert has_fused(space_of("gemm_scale_bn", mode="frozen"))
    assert not has_fused(space_of("gemm_scale_bn", mode="train"))


def test_halves_are_not_split_and_singles_have_no_bands() -> None:
    space = load_model("gemm_sigmoid_residual").kernel.space
    axes = {"rows": 1024, "in_features": 512, "out_features": 512}
    chosen = {
        dtype: space.choose({"product": "fused"}, Problem(axes, dtype, {"mode": "eval"}), HOPPER)
        for dtype in ("bfloat16", "float32")
    }
    assert not chosen["bfloat16"].keys() & {"weight_parts", "sum_stages", "split_threads"}
    assert "product_band" not in chosen["float32"]


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_a_stream_takes_all_of_few_rows_at_once_on_hopper(dtype: str) -> None:
    for rows, legal in ((1, {16, 32, 64, 128}), (17, {32, 64, 128}), (100, {128}), (128, {128}), (129, set())):
        assert streams(rows=rows, dtype=dtype) == legal
    assert streams(rows=1, depth=8, features=8)
    assert not streams(rows=1, depth=12) | streams(rows=1, features=12)
    assert not streams(rows=1, device=fictional("sm_80")) | streams(rows=1, device=fictional("sm_100"))
    assert streams(rows=2, name="gemm_scale_bn") and not streams(rows=2, name="gemm_scale_bn", mode="train")


VARIANTS: Mapping[str, Mapping[str, Value]] = {
    "gemm_sigmoid_residual": {"fast_math": False},
    "gemm_scale_bn": {"normalisation": "reciprocal"},
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("columns", [128, 256])
@pytest.mark.parametrize("name", VARIANTS)
def test_no_product_waits_for_the_one_before_and_registers_hold_all(
    nvrtc: NvrtcCompiler, name: str, columns: int, dtype: str
) -> None:
    problem = Problem({"rows": 1024, "in_features": 512, "out_features": 512}, dtype, {"mode": "eval"})
    kernel, values = load_model(name).kernel, {"product": "fused", "product_columns": columns, **VARIANTS[name]}
    build = nvrtc.compile(kernel.variant(kernel.space.choose(values, problem, HOPPER), problem, "sm_90"))
    figures = build.figures["half_product"]
    assert (figures.registers, figures.spill_stores, figures.stack) == (168, 0, 0)
    assert "wgmma" not in build.log


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize(("rows", "features"), [(16, 64), (16, 256), (32, 128), (64, 64), (64, 256), (128, 128)])
@pytest.mark.parametrize("name", VARIANTS)
def test_registers_hold_the_sums_of_a_stream(
    nvrtc: NvrtcCompiler, name: str, rows: int, features: int, dtype: str
) -> None:
    problem = Problem({"rows": rows, "in_features": 512, "out_features": 512}, dtype, {"mode": "eval"})
    kernel, values = load_model(name).kernel, {"stream_rows": rows, "stream_features": features, **VARIANTS[name]}
    values |= {"product": "stream", "stream_stages": 4, "stream_split": min(rows // 8, 4)}
    if name == "gemm_scale_bn":
        values["normalisation"] = "per_element"  # which has the most vectors
    build = nvrtc.compile(kernel.variant(kernel.space.choose(values, problem, HOPPER), problem, "sm_90"))
    figures = build.figures["half_stream"]
    assert (figures.spill_stores, figures.stack) == (0, 0) and figures.registers > 20
    assert "wgmma" not in build.log
