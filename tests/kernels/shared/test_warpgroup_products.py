"""Products that go on while their results are not asked for: ptxas says where it could not leave them so."""

from collections.abc import Mapping

import pytest
from parts_contract import fictional

from tunebench.kernels.gemm_scale_bn.model import ModelNew
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Value
from tunebench.tuner.problem import Accuracy, Problem

INT8: Mapping[str, Value] = {"weight_parts": "int8", "split_threads": 512, "sum_stages": 128}
VARIANTS: Mapping[str, tuple[str, Mapping[str, Value]]] = {
    "split on the way": ("train", {"statistics_in": "memory"}),
    "statistics in the epilogue": ("train", {"statistics_in": "epilogue"}),
    "parts beside, statistics in the epilogue": (
        "train",
        {**INT8, "weight_split": "beside", "statistics_in": "epilogue"},
    ),
    "rounded": ("eval", {"weight_parts": "rounded", "split_threads": 512, "sum_stages": 0, "weight_split": "beside"}),
    "rounded in rows": ("eval", {"weight_parts": "halves", "split_threads": 512, "sum_stages": 0}),
    "parts in fp16": ("eval", {**INT8, "weight_parts": "fp16", "weight_split": "beside"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_no_product_waits_for_the_one_before(name: str) -> None:
    mode, values = VARIANTS[name]
    problem = Problem({"rows": 4096, "in_features": 1024, "out_features": 8192}, "float32", {"mode": mode})
    problem = problem.at(Accuracy.TF32)
    asked = {"product": "fused", "weight_parts": "none", "early_launches": True, **values}
    configuration = ModelNew.kernel.space.choose(asked, problem, fictional("sm_90"))
    build = NvrtcCompiler().compile(ModelNew.kernel.variant(configuration, problem, "sm_90"))
    name = "rounded_product" if values.get("weight_parts") == "halves" else "split_product"
    assert build.figures[name].registers == 168
    assert "wgmma" not in build.log
