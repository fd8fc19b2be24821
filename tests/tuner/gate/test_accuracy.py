"""The accuracy `eager`: what it admits, what it refuses, and what it says of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
from sample_kernel import WriteKernel
from torch import nn

from tunebench.kernels.gemm_sigmoid_residual.model import ModelNew
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import UserError
from tunebench.tuner.gate.accuracy import DRAWS, exactness
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.oracle import consult_reference
from tunebench.tuner.gate.quick import QuickGate, pinned
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stage_log import StageLog
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy, Problem
from tunebench.tuner.result import ErrorFigures, TrialStatus, Verdict
from tunebench.tuner.study.evaluate import LocalEvaluator
from tunebench.tuner.study.subject import Subject

CPU = find_device("cpu")
SIZES = {"batch_size": 64, "input_size": 512, "hidden_size": 256}
DTYPES = ("float32", "float64", "float16", "bfloat16")


def verdict_on(
    factory: type[TunedModule],
    accuracy: Accuracy,
    values: dict[str, Value],
    sizes: object = None,
    dtype: str | None = None,
) -> Verdict:
    kernel = factory.kernel
    reference = kernel.reference(cast("dict[str, int]", sizes), dtype)
    subject = Subject.prepare(kernel, factory, reference, Mode.EVAL, CPU, accuracy)
    assert subject.problem.accuracy is accuracy
    # Not by eager's own space: it has nothing that can never be as exact.
    widest = Accuracy.TOLERANCE if accuracy is Accuracy.EAGER else accuracy
    configuration = kernel.space.choose(values, subject.problem.at(widest), CPU)
    plan = build_plan(kernel, Configuration(configuration), subject.problem, CPU, compiler_for(CPU))
    gate = QuickGate(Model(cast(nn.Module, subject.model)), subject.oracle, Exemptions.of(kernel))
    return gate.check(pinned(subject.model, plan), StageLog())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "is_exact"),
    [
        ({"part_type": "bf16", "pieces": 16}, False),
        ({"part_type": "fp16", "corrections": "int8", "pieces": 8}, False),
        ({"part_type": "fp16", "pieces": 16}, True),
    ],
    ids=str,
)
def test_products_from_parts(parts: dict[str, Value], is_exact: bool) -> None:
    values: dict[str, Value] = {"product": "parts", "corrections": "half", **parts}
    assert verdict_on(ModelNew, Accuracy.TOLERANCE, values, SIZES).passed
    verdict = verdict_on(ModelNew, Accuracy.EAGER, values, SIZES)
    assert verdict.passed == is_exact, verdict.reason
    (stage,) = [one for one in verdict.stages if one.name == "accuracy"]
    assert stage is verdict.stages[-1]
    assert "of the output's size, eager's own" in stage.detail and stage.detail.count("RMS") >= 2
    if not is_exact:
        assert verdict.reason.startswith("less exact than eager: 4 draws of the inputs: error ")
        assert verdict.errors is not None and verdict.errors.multiple_of_reference > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "factor"),
    [("float32", "1.000001"), ("float16", "1.001"), ("bfloat16", "1.004"), ("float64", "1.0000000000001")],
)
def test_in_every_type_no_more_wrong_than_eager_is_in_it(write_kernel: WriteKernel, dtype: str, factor: str) -> None:
    wide = "accumulator_t(x[i]) * accumulator_t(weight[0])"
    source = {
        "y[i] = x[i] * weight[0];": f"y[i] = scalar_t({wide} * accumulator_t(variety == 1 ? {factor} : 1.0));",
        'extern "C"': '#include "half.cuh"\n#include "bfloat.cuh"\n\nextern "C"',
    }
    factory = write_kernel(source=source, model={"(__file__, SPACE,": f"(__file__, SPACE, dtypes={DTYPES},"})
    for variety in (0, 1):
        assert verdict_on(factory, Accuracy.TOLERANCE, {"variety": variety}, dtype=dtype).passed
        verdict = verdict_on(factory, Accuracy.EAGER, {"variety": variety}, dtype=dtype)
        assert verdict.passed == (variety == 0), verdict.reason
        assert verdict.passed or verdict.reason.startswith("less exact than eager")


def test_products_are_rounded_once_in_half_types() -> None:
    assert verdict_on(ModelNew, Accuracy.EAGER, {"product": "fp32"}, SIZES, "bfloat16").passed


@pytest.mark.slow
def test_operands_rounded_to_fp16_are_held_to_what_the_reference_makes_of_them() -> None:
    """No CPU multiplies in TF32, so that the reference is as exact as ever there, and only the tolerance is left."""
    rounded: dict[str, Value] = {"product": "parts", "part_type": "fp16", "corrections": "none", "pieces": 1}
    verdict = verdict_on(ModelNew, Accuracy.TF32, rounded, SIZES)
    assert not verdict.passed and "allowed" in verdict.reason, verdict.reason
    halves: dict[str, Value] = {"product": "parts", "part_type": "bf16", "corrections": "half", "pieces": 16}
    verdict = verdict_on(ModelNew, Accuracy.TF32, halves, SIZES)
    assert verdict.passed and any(stage.name == "accuracy" for stage in verdict.stages), verdict.reason


@pytest.mark.parametrize("asked", [None, Accuracy.TF32])
def test_the_accuracy_follows_the_program(asked: Accuracy | None) -> None:
    assert Accuracy.under({}, asked) is Accuracy.TOLERANCE
    assert Accuracy.under({"matmul": "tf32", "cudnn": "benchmark"}, asked) is Accuracy.TF32
    assert Accuracy.under({"matmul": "bf16"}, asked) is Accuracy.TOLERANCE
    assert all(Accuracy.under({"matmul": "tf32"}, one) is one for one in (Accuracy.EAGER, Accuracy.TOLERANCE))


def test_what_passes_under_the_tolerance_passes_where_tf32_is_permitted() -> None:
    cases = {"draw 1": figures(9e-5, 8e-5, 1e-6, 1e-7)}
    assert not all(one.holds for one in exactness(cases, 1))
    assert all(one.holds for one in exactness(cases, 1, passes=1e-4))
    assert not all(one.holds for one in exactness({"draw 1": figures(1.1e-4, 8e-5, 1e-6, 1e-7)}, 1, passes=1e-4))


Draw = Callable[[float, float], dict[str, ErrorFigures]]


def figures(largest: float, rms: float, own_largest: float, own_rms: float) -> dict[str, ErrorFigures]:
    return {"output": ErrorFigures(largest, largest, rms, own_largest, own_rms)}


def test_either_figure_may_be_larger_by_the_noise_of_eagers_own_and_no_more() -> None:
    def holds(largest: float, rms: float) -> bool:
        # Eager's largest errors are a quarter apart, its RMS does not move.
        cases = {"draw 1": figures(largest, rms, 4.0, 1.0), "draw 2": figures(1.0, 1.0, 5.0, 1.0)}
        return all(one.holds for one in exactness(cases, 2))

    assert holds(5.0, 1.0) and holds(6.25, 1.0)
    assert not holds(6.26, 1.0)
    assert not holds(1.0, 1.001)
    assert not holds(float("nan"), 1.0) and not holds(1.0, float("inf"))


def test_draws_count_together_and_other_cases_alone() -> None:
    cases = {
        "draw 1": figures(5.5, 1.2, 4.0, 1.0),
        "draw 2": figures(1.0, 0.5, 5.0, 1.0),
        "mixed signs": figures(9.0, 1.0, 7.0, 1.0),
    }
    draws, mixed = exactness(cases, 2)
    assert draws.holds and (draws.variant.largest, draws.own.largest) == (5.5, 5.0)
    assert draws.variant.rms == pytest.approx((1.2**2 + 0.5**2) ** 0.5 / 2**0.5)
    assert not mixed.holds and str(mixed).startswith("mixed signs: error 9.00e+00 (RMS 1.00e+00)")


def test_where_eager_is_exact_only_what_is_exact_passes() -> None:
    cases = {"draw 1": figures(0.0, 0.0, 0.0, 0.0), "draw 2": figures(0.0, 0.0, 0.0, 0.0)}
    assert all(one.holds for one in exactness(cases, 2))
    cases["draw 2"] = figures(1e-30, 1e-30, 0.0, 0.0)
    assert not any(one.holds for one in exactness(cases, 2))


def test_eager_is_asked_at_full_precision_and_the_process_stays_as_it_was(write_kernel: WriteKernel) -> None:
    told = {
        "        self.calls += 1": "        precision = torch.get_float32_matmul_precision()\n"
        "        SEEN.append((precision, torch.backends.cudnn.allow_tf32, x.dtype))\n        self.calls += 1",
        "class Model": "SEEN = []\n\nclass Model",
    }
    factory = write_kernel(reference=told)
    reference, cpu = factory.kernel.reference(), torch.device("cpu")
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        for accuracy, seen in ((Accuracy.TOLERANCE, ("highest", True)), (Accuracy.EAGER, ("highest", False))):
            model = reference.make_model(0, cpu)
            calls = type(model).forward.__globals__["SEEN"]
            calls.clear()
            oracle = consult_reference(Source(reference, cpu), Model(model), accuracy)
            asked = [one[:2] for one in calls if one[2] is torch.float32]
            assert asked[: oracle.draws] == [seen] * oracle.draws
            assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("high", True)
            assert (oracle.draws, oracle.accuracy) == (DRAWS[accuracy], accuracy)
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def test_what_only_eager_is_offered_goes_through_the_full_battery(write_kernel: WriteKernel) -> None:
    offered = 'Constraint("for_eager", lambda variety, problem: variety != 2 or "accuracy" in problem.options),'
    factory = write_kernel(model={"    constraints=(": f"    constraints=({offered} "})
    kernel = factory.kernel
    subject = Subject.prepare(kernel, factory, kernel.reference(), Mode.EVAL, CPU, Accuracy.EAGER)
    with pytest.raises(UserError, match="variety cannot be so"):
        kernel.space.choose({"variety": 2}, subject.problem.at(Accuracy.TOLERANCE), CPU)
    configuration = kernel.space.choose({"variety": 2}, subject.problem, CPU)
    compiler = compiler_for(CPU)
    build = BuildCache().build(compiler, kernel.variant(configuration, subject.problem, CPU.architecture))
    result = LocalEvaluator(subject, compiler).evaluate(configuration, build)
    assert result.status is TrialStatus.CORRECT, result.message
    assert result.verdict is not None
    stages = {stage.name: stage for stage in result.verdict.stages}
    assert {"accuracy", "after timing"} <= stages.keys()
    assert all(stages[name].asked for name in ("distributions", "sizes", "weights")), stages
    assert "not valid there" not in stages["distributions"].detail


def test_accuracy_is_an_option_of_the_problem() -> None:
    problem = Problem({"n": 4}, options={"mode": "eval"})
    exact = problem.at(Accuracy.EAGER)
    assert str(exact) == "n=4 float32 mode=eval accuracy=eager"
    assert (problem.accuracy, exact.accuracy) == (Accuracy.TOLERANCE, Accuracy.EAGER)
    assert problem != exact and problem.key != exact.key
    assert exact.at(Accuracy.TOLERANCE) == problem and exact.at(Accuracy.EAGER) is exact
    # A database is anyone's: what it calls an accuracy need not be one.
    assert Problem({"n": 4}, options={"accuracy": "perfect"}).accuracy is Accuracy.TOLERANCE
