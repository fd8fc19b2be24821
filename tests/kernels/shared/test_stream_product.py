"""The product of few rows on the CPU; where it is offered; and compiled for CUDA devices."""

from dataclasses import replace

import pytest
from stream_contract import VARIANTS, StreamContract

from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.device import Device, DeviceKind, find_device
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import ValidSpace

HOPPER = replace(find_device("cpu"), kind=DeviceKind.CUDA, architecture="sm_90", max_shared_bytes=232448)


class TestStreamOnCpu(StreamContract):
    device = "cpu"


def space_of(rows: int, mode: str = "eval", dtype: str = "float32", device: Device = HOPPER) -> ValidSpace:
    axes = {"rows": rows, "in_features": 512, "out_features": 512}
    return load_model("gemm_sigmoid_residual").kernel.space.enumerate(Problem(axes, dtype, {"mode": mode}), device)


def streams(space: ValidSpace, name: str, unit: str | None = None) -> set[object]:
    configurations = (space[number] for number in range(len(space)))
    found = [one for one in configurations if one["product"] == "stream"]
    return {one[name] for one in found if unit in (None, one["stream_unit"])}


@pytest.mark.slow
def test_it_is_for_few_rows_and_all_of_them_at_once() -> None:
    for rows, legal in ((1, {1}), (3, {4}), (16, {16}), (17, {32}), (64, {32}), (65, set())):
        assert streams(space_of(rows), "stream_rows", unit="lanes") == legal
    for rows, legal in ((1, {8, 16, 32, 64}), (9, {16, 32, 64}), (33, {64}), (64, {64}), (65, set())):
        assert streams(space_of(rows), "stream_rows", unit="tensor_cores") == legal
    assert not streams(space_of(4, dtype="float64"), "stream_rows")


def test_lanes_multiply_where_tensor_cores_have_no_tf32() -> None:
    assert streams(space_of(4), "stream_unit") == {"lanes", "tensor_cores"}
    assert streams(space_of(4, device=replace(HOPPER, architecture="sm_75")), "stream_unit") == {"lanes"}


def test_parts_of_a_weight_are_for_frozen_modules() -> None:
    assert streams(space_of(4), "stream_weight") == {"whole"}
    assert streams(space_of(4, mode="frozen"), "stream_weight") == {"whole", "parts"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "name"), [(1, "four in eight warps"), (32, "one feature a warp"), (64, "two tiles in four warps")]
)
@pytest.mark.parametrize("weight", ["whole", "parts"])
def test_it_compiles_for_cuda(nvrtc: NvrtcCompiler, rows: int, name: str, weight: str) -> None:
    values = {**VARIANTS[name], "stream_rows": rows, "stream_weight": weight}
    problem = Problem({"rows": rows, "in_features": 512, "out_features": 512}, "float32", {"mode": "frozen"})
    kernel = load_model("gemm_sigmoid_residual").kernel
    configuration = kernel.space.choose(values, problem, HOPPER)
    build = nvrtc.compile(kernel.variant(configuration, problem, "sm_90"))
    assert not build.figures["stream_product"].spill_loads
