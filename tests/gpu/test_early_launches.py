"""Launches that begin before the one in front has ended: the same numbers, however closely calls follow one another."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from parts_contract import pin
from torch import nn

from tunebench.kernels.conv_min_add_mul.model import ModelNew as Convolution
from tunebench.kernels.gemm_div_sum_scale.model import ModelNew as ColumnSums
from tunebench.kernels.gemm_scale_bn.model import ModelNew as ScaleBn
from tunebench.kernels.gemm_sigmoid_residual.model import ModelNew as Sigmoid
from tunebench.tuner.configuration import Value

pytestmark = pytest.mark.gpu

FUSED: Mapping[str, Value] = {"product": "fused", "weight_parts": "none", "split_threads": 512}
INT8: Mapping[str, Value] = {**FUSED, "weight_parts": "int8"}
DEPTH, FEATURES = 512, 4200


def sigmoid() -> nn.Module:
    return Sigmoid(DEPTH, FEATURES, 2.0)


def scale_bn() -> nn.Module:
    return ScaleBn(DEPTH, FEATURES, (FEATURES,))


CASES: Mapping[str, tuple[Any, tuple[int, ...], Mapping[str, Value], str]] = {
    "parts ahead": (sigmoid, (1200, DEPTH), INT8, "eval"),
    "parts beside": (sigmoid, (1200, DEPTH), {**INT8, "weight_split": "beside"}, "eval"),
    "parts kept": (sigmoid, (1200, DEPTH), INT8, "frozen"),
    "split on the way": (sigmoid, (1200, DEPTH), FUSED, "eval"),
    "normalised": (scale_bn, (1200, DEPTH), {**INT8, "normalisation": "folded"}, "eval"),
    "statistics in memory": (scale_bn, (1200, DEPTH), {**FUSED, "statistics_in": "memory"}, "train"),
    "statistics in the epilogue": (scale_bn, (1200, DEPTH), {**FUSED, "statistics_in": "epilogue"}, "train"),
    "column sums": (lambda: ColumnSums(2048, 1000, 1.5), (300, 2048), {"join": "kernel"}, "eval"),
    "column sums by dot": (lambda: ColumnSums(2048, 1000, 1.5), (300, 2048), {"join": "dot"}, "eval"),
    "convolution": (
        lambda: Convolution(64, 128, 3, 0.5, (128, 1, 1), 2.0),
        (16, 64, 66, 66),
        {"convolution": "implicit_gemm", "writes": "bulk"},
        "eval",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_calls_that_follow_one_another_are_those_that_wait(name: str) -> None:
    make, size, values, mode = CASES[name]
    if torch.cuda.get_device_capability() != (9, 0) and "column" not in name:
        pytest.skip("the product needs Hopper's warpgroup products")
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("launches begin early from compute capability 9.0 on")
    generator = torch.Generator("cuda").manual_seed(0)
    inputs = [torch.randn(size, device="cuda", generator=generator) for _ in range(6)]
    found = []
    for early in (False, True):
        torch.manual_seed(1)
        model = make().cuda().train(mode == "train")
        if mode == "frozen":
            model.freeze()
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
            pin(model, inputs[0], {**values, "early_launches": early})
            x = torch.empty_like(inputs[0])
            with torch.no_grad():
                outputs = []
                for one in inputs * 3:
                    x.copy_(one)  # a kernel right in front of the call's first
                    outputs.append(model(x).clone())
                graph = torch.cuda.CUDAGraph()
                if mode != "train":
                    with torch.cuda.graph(graph):
                        captured = model(x)
                    for one in inputs:
                        x.copy_(one)
                        graph.replay()
                        outputs.append(captured.clone())
        found.append([*outputs, *model.buffers()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
