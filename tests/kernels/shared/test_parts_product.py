"""The product from half-precision parts: on the CPU, with torch's products in fp32; and compiled for CUDA devices."""

from dataclasses import replace

import pytest
import torch
from parts_contract import PRECISE, VARIANTS, PartsContract, fictional, product_model, run

from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import ValidSpace

KERNELS = ("gemm_scale_bn", "gemm_sigmoid_residual")


class TestPartsOnCpu(PartsContract):
    device = "cpu"


def test_what_was_kept_for_a_pinned_plan_goes_with_it() -> None:
    x, weight = torch.randn(9, 64), torch.randn(40, 64)
    model = product_model(x, weight, PRECISE, frozen=True)
    run(model, x)
    assert len(model._derived) == 1
    model.pin(None)
    assert model.is_frozen and len(model._derived) == 0


def space_of(kernel: str, architecture: str, mode: str = "eval") -> ValidSpace:
    problem = Problem({"rows": 128, "in_features": 512, "out_features": 512}, "float32", {"mode": mode})
    return load_model(kernel).kernel.space.enumerate(problem, fictional(architecture))


@pytest.mark.parametrize("kernel", KERNELS)
def test_part_types_are_for_devices_that_multiply_them(kernel: str) -> None:
    for architecture, legal in (("sm_61", set()), ("sm_75", {"fp16"}), ("sm_80", {"fp16", "bf16"})):
        space = space_of(kernel, architecture)
        found = {space[number].get("part_type") for number in range(len(space))}
        assert found - {None} == legal


@pytest.mark.slow
def test_corrections_are_for_devices_and_sizes_whose_library_multiplies_them() -> None:
    space = load_model("gemm_sigmoid_residual").kernel.space
    eights = {"e4m3", "int8"}
    for architecture, rows, depth, features, legal in (
        ("sm_75", 128, 512, 512, {"int8"}),
        ("sm_80", 128, 512, 512, {"int8"}),
        ("sm_89", 128, 512, 512, eights),
        ("sm_90", 1, 33, 16, {"e4m3"}),
        ("sm_90", 17, 33, 24, {"int8"}),
        ("sm_90", 128, 512, 511, set()),
        ("sm_90", 128, 70000, 512, {"e4m3"}),
    ):
        axes = {"rows": rows, "in_features": depth, "out_features": features}
        valid = space.enumerate(Problem(axes, "float32", {"mode": "eval"}), fictional(architecture))
        configurations = [valid[number] for number in range(len(valid))]
        assert {one["corrections"] for one in configurations if one["product"] == "parts"} == legal | {"half"}
        assert {one["part_type"] for one in configurations if one.get("corrections") in legal} <= {"fp16"}


def test_partial_products_that_would_fill_the_device_are_not_valid() -> None:
    device = replace(fictional("sm_90"), memory_bytes=80 * 2**30)
    space = load_model("gemm_sigmoid_residual").kernel.space
    for rows, legal in ((4096, {1, 2, 4, 8, 16}), (65536, {1, 2}), (2**21, set())):
        axes = {"rows": rows, "in_features": 8192, "out_features": 8192}
        valid = space.enumerate(Problem(axes, "float32", {"mode": "eval"}), device)
        assert {valid[number].get("pieces") for number in range(len(valid))} - {None} == legal


@pytest.mark.slow
def test_a_weight_normalises_where_its_product_allows_it() -> None:
    for mode, legal in (("eval", {"fp32", "parts"}), ("frozen", {"fp32", "parts"}), ("train", set())):
        space = space_of("gemm_scale_bn", "sm_80", mode)
        configurations = [space[number] for number in range(len(space))]
        assert {c["product"] for c in configurations if c["normalisation"] == "weight"} == legal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "architecture", "variant"),
    [
        ("gemm_scale_bn", "sm_90", "fp16 in 4 pieces"),
        ("gemm_scale_bn", "sm_90", "e4m3 in 2 pieces"),
        ("gemm_sigmoid_residual", "sm_89", "bf16 in one"),
        ("gemm_sigmoid_residual", "sm_89", "int8 in one"),
    ],
)
def test_it_compiles_for_cuda_without_spills(
    nvrtc: NvrtcCompiler, kernel: str, architecture: str, variant: str
) -> None:
    problem = Problem({"rows": 128, "in_features": 512, "out_features": 512}, "float32", {"mode": "eval"})
    one = load_model(kernel).kernel
    configuration = one.space.choose(VARIANTS[variant], problem, fictional(architecture))
    build = nvrtc.compile(one.variant(configuration, problem, architecture))
    assert not any(figures.spill_loads for figures in build.figures.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weight_parts", "columns", "sum_stages"),
    [("e4m3", 256, 0), ("int8", 256, 16), ("e4m3", 128, 64), ("fp16", 256, 32)],
)
def test_the_product_from_tiles_compiles_for_hopper_without_spills(
    nvrtc: NvrtcCompiler, weight_parts: str, columns: int, sum_stages: int
) -> None:
    kernel = load_model("gemm_sigmoid_residual").kernel
    values = {"product": "fused", "weight_parts": weight_parts, "product_columns": columns, "sum_stages": sum_stages}
    problem = Problem({"rows": 128, "in_features": 512, "out_features": 512}, "float32", {"mode": "eval"})
    configuration = kernel.space.choose(values, problem, fictional("sm_90"))
    build = nvrtc.compile(kernel.variant(configuration, problem, "sm_90"))
    # Once a tile, the thread that brings two passes of stages may spill a word.
    most = 4 if weight_parts == "fp16" else 0
    assert all(figures.spill_loads <= most for figures in build.figures.values())
