"""The product of few rows on the CPU; where it is offered; and compiled for CUDA devices."""

from dataclasses import replace

import pytest
from stream_contract import VARIANTS, StreamContract

from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.device import Device, DeviceKind, find_device
from tunebench.tuner.problem import Accuracy, Problem
from tunebench.tuner.space import ValidSpace

HOPPER = replace(find_device("cpu"), kind=DeviceKind.CUDA, architecture="sm_90", max_shared_bytes=232448)


class TestStreamOnCpu(StreamContract):
    device = "cpu"


def space_of(
    rows: int,
    mode: str = "eval",
    dtype: str = "float32",
    device: Device = HOPPER,
    accuracy: Accuracy = Accuracy.TOLERANCE,
) -> ValidSpace:
    problem = Problem({"rows": rows, "in_features": 512, "out_features": 512}, dtype, {"mode": mode})
    return load_model("gemm_sigmoid_residual").kernel.space.enumerate(problem.at(accuracy), device)


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


def test_operands_are_rounded_where_tf32_is_permitted_alone() -> None:
    for accuracy in (Accuracy.TOLERANCE, Accuracy.EAGER):
        found = space_of(4, mode="frozen", accuracy=accuracy)
        assert streams(found, "stream_corrections", unit="tensor_cores") == {"tf32", "bf16"}
        assert "rounded" not in streams(found, "stream_weight")
    permitted = space_of(4, mode="frozen", accuracy=Accuracy.TF32)
    kinds = {
        (one["stream_weight"], one["stream_corrections"])
        for one in (permitted[number] for number in range(len(permitted)))
        if one["product"] == "stream" and one["stream_unit"] == "tensor_cores"
    }
    exact = {(weight, corrections) for weight in ("whole", "parts") for corrections in ("tf32", "bf16")}
    assert kinds == {*exact, ("whole", "none"), ("rounded", "none")}
    assert streams(permitted, "stream_weight", unit="lanes") == {"whole", "parts", "rounded"}


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
