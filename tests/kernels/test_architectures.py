"""Every kernel is built for every generation of GPUs that the documentation names, none of which need be here."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from parts_contract import fictional
from sampling import slow_but

from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.kernels.runtime.shipped import files_of, read_file
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.errors import UserError
from tunebench.tuner.problem import Accuracy, Problem

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")

ROUNDED: Mapping[str, Value] = {"product": "parts", "corrections": "none"}
"""The library's product of operands that are rounded to fp16."""


@pytest.mark.slow
@pytest.mark.parametrize("architecture", slow_but(["sm_75", "sm_90", "sm_120"], ARCHITECTURES))
@pytest.mark.parametrize("name", kernel_names())
def test_the_default_configuration_is_built(name: str, architecture: str) -> None:
    kernel = load_model(name).kernel
    problem = read_file(files_of(kernel)[0]).results[0].problem
    built = NvrtcCompiler().compile(kernel.variant(Configuration(kernel.space.default), problem, architecture))
    assert built.code.startswith(b"\x7fELF") and built.figures


@pytest.mark.parametrize("architecture", slow_but(["sm_80"], ARCHITECTURES))
@pytest.mark.parametrize("name", ["gemm_scale_bn", "gemm_sigmoid_residual"])
def test_where_tf32_is_permitted_every_generation_multiplies_rounded_operands(name: str, architecture: str) -> None:
    kernel, asked = load_model(name).kernel, dict(ROUNDED)
    if architecture == "sm_90":
        asked = {"product": "fused", "weight_parts": "rounded"}
    axes = {"rows": 1024, "in_features": 1001, "out_features": 513}
    strict = Problem(axes, "float32", {"mode": "eval", "matmul": "tf32"})
    with pytest.raises(UserError, match="not valid for"):
        kernel.space.choose(asked, strict, fictional(architecture))
    configuration = kernel.space.choose(asked, strict.at(Accuracy.TF32), fictional(architecture))
    assert NvrtcCompiler().compile(kernel.variant(configuration, strict, architecture)).figures


@pytest.mark.parametrize("architecture", slow_but(["sm_80"], ARCHITECTURES))
@pytest.mark.parametrize("name", ["gemm_scale_bn", "gemm_sigmoid_residual"])
@pytest.mark.parametrize(("rows", "product"), [(1024, "fused"), (8, "stream")])
def test_every_generation_multiplies_halves(rows: int, product: str, name: str, architecture: str) -> None:
    kernel = load_model(name).kernel
    problem = Problem({"rows": rows, "in_features": 512, "out_features": 512}, "bfloat16", {"mode": "eval"})
    asked = {"product": product if architecture == "sm_90" else "fp32"}
    configuration = kernel.space.choose(asked, problem, fictional(architecture))
    assert NvrtcCompiler().compile(kernel.variant(configuration, problem, architecture)).figures
