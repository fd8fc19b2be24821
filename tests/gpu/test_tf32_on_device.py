"""Products of operands rounded to fp16, on a GPU: as exact as TF32 where the program permits that, else not legal."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import tunebench
from tunebench.kernels.runtime import policy
from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import UserError
from tunebench.tuner.gate.contender import KernelContender
from tunebench.tuner.gate.examine import examine
from tunebench.tuner.gate.stage_log import StageLog
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.result import Verdict
from tunebench.tuner.settings import under
from tunebench.tuner.study.subject import Subject

pytestmark = pytest.mark.gpu

KERNELS = ("gemm_scale_bn", "gemm_sigmoid_residual")
ROUNDED: dict[str, dict[str, Value]] = {
    "fused": {"product": "fused", "weight_parts": "rounded", "sum_stages": 0},
    "fused, in rows": {"product": "fused", "weight_parts": "halves", "sum_stages": 0},
    "parts": {"product": "parts", "corrections": "none", "pieces": 1},
}
SIZES = {
    "gemm_scale_bn": {"batch_size": 300, "in_features": 2048, "out_features": 992},
    "gemm_sigmoid_residual": {"batch_size": 300, "input_size": 2048, "hidden_size": 992},
}


def verdict_of(kernel_name: str, values: dict[str, Value], mode: Mode, settings: dict[str, str]) -> Verdict:
    device = find_device("cuda")
    if values["product"] == "fused" and device.architecture != "sm_90":
        pytest.skip("the fused product needs Hopper's warpgroup products")
    factory, compiler = load_model(kernel_name), compiler_for(device)
    kernel, accuracy = factory.kernel, Accuracy.under(settings)
    with under(settings, "cuda"):
        subject = Subject.prepare(kernel, factory, kernel.reference(SIZES[kernel_name]), mode, device, accuracy)
        configuration = kernel.space.choose(values, subject.problem, device)
        build = BuildCache().build(compiler, kernel.variant(configuration, subject.problem, device.architecture))
        contender = KernelContender(kernel, subject.factory, configuration, compiler, build, accuracy=accuracy)
        return examine(subject.answers, contender, StageLog())


@pytest.mark.parametrize("mode", [Mode.EVAL, Mode.FROZEN])
@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_gate_passes_where_tf32_is_permitted(kernel: str, name: str, mode: Mode) -> None:
    verdict = verdict_of(kernel, ROUNDED[name], mode, {"matmul": "tf32"})
    assert verdict.passed, verdict.reason
    (stage,) = [one for one in verdict.stages if one.name == "accuracy"]
    print(stage.detail)


@pytest.mark.parametrize("name", ROUNDED)
def test_it_is_no_choice_where_products_are_strict(name: str) -> None:
    with pytest.raises(UserError, match="not valid for"):
        verdict_of("gemm_scale_bn", ROUNDED[name], Mode.EVAL, {})


def test_a_program_that_permits_tf32_asks_for_its_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "of_program", dataclasses.replace(policy.of_program, accuracy=None))
    x, found = torch.randn(64, 256, device="cuda"), []
    for settings in ({}, {"matmul": "tf32"}):
        model = load_model("gemm_scale_bn")(256, 128, (128,)).cuda().eval()
        with torch.no_grad(), tunebench.use_policy(wait=True), under(settings, "cuda"):
            model(x)
        found += [problem.accuracy for problem, _ in model.choices if problem is not None]
    assert found == [Accuracy.TOLERANCE, Accuracy.TF32]
