"""The correctness gate: a sound kernel passes, and each way of being wrong is refused at the stage that names it."""

import re

import pytest
import torch
from sample_kernel import WriteKernel

from tunebench.kernels.tuned_module import TunedModule
from tunebench.tuner.check import Oracle, check, compare, consult_reference, scale_of
from tunebench.tuner.compile import compiler_for
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.device import find_device
from tunebench.tuner.evaluate import Subject
from tunebench.tuner.kernel import Plan
from tunebench.tuner.result import Verdict

CPU = find_device("cpu")


def verdict_of(factory: type[TunedModule], mode: str = "eval") -> Verdict:
    """The verdict on a kernel's default configuration."""
    kernel = factory.kernel
    subject = Subject.prepare(kernel, factory, kernel.reference(), mode, CPU)
    space = kernel.space.enumerate(subject.problem, CPU)
    configuration = space[space.default]
    compiler = compiler_for(CPU)
    build = BuildCache().build(compiler, kernel.variant(configuration, subject.problem, CPU.architecture))
    plan = Plan(configuration, subject.problem, CPU, compiler.load(build))
    return check(subject.model, plan, subject.oracle)


def test_a_sound_kernel_passes_every_stage(write_kernel: WriteKernel) -> None:
    verdict = verdict_of(write_kernel())
    assert verdict.passed
    assert verdict.reason == ""
    assert {stage.name.split(",")[0] for stage in verdict.stages} == {
        "structure",
        "written",
        "inputs",
        "repeatable",
        "values",
        "buffers",
    }
    assert verdict.errors is not None
    assert verdict.errors.max_relative < 1e-6
    assert verdict.errors.multiple_of_reference <= 1.0


BROKEN = {
    "never writes the last element": (
        {"source": {"i < n;": "i < n - 1;"}},
        "written",
        "1 of 2112 elements were never written",
    ),
    "never runs": ({"model": {"plan.launch(": "(lambda *a: None)("}}, "written", "2112 of 2112 elements"),
    "slightly wrong": ({"source": {"* weight[0]": "* weight[0] * 1.001f"}}, "values", "error 1.*first wrong element 0"),
    "wrong in one element": (
        {"source": {"x[i] * weight[0]": "i == 77 ? 1.0f : x[i] * weight[0]"}},
        "values",
        "first wrong element 77",
    ),
    "loses the sign": ({"source": {"x[i] *": "fabsf(x[i]) *"}}, "values", "mixed signs"),
    "returns zeros": ({"source": {"x[i] * weight[0]": "0"}}, "values", "error 1"),
    "a NaN where a number belongs": ({"source": {"x[i] * weight[0]": "x[i] * weight[0] / (i != 5)"}}, "values", "inf"),
    "writes into its input": (
        {"source": {"const scalar_t* x": "scalar_t* x", "y[i] =": "y[i] = x[i] * weight[0]; x[i] ="}},
        "inputs",
        "an input was changed",
    ),
    "writes into a parameter": (
        {"source": {"const scalar_t* weight": "scalar_t* weight", "y[i] =": "weight[0] *= 1.0001f; y[i] ="}},
        "inputs",
        "parameter 'weight' was changed",
    ),
    "returns its input": ({"model": {"        return y\n": "        return x\n"}}, "inputs", "memory of an input"),
    "copies its input": ({"model": {"        return y\n": "        return x.clone()\n"}}, "values", "error"),
    "one output for all calls": (
        {"model": {"y = torch.empty_like(x)": "y = self.__dict__.setdefault('kept', torch.empty_like(x))"}},
        "repeatable",
        "a later call overwrites the output of an earlier one",
    ),
    "remembers the first answer": (
        {"model": {"        return y\n": "        return self.__dict__.setdefault('kept', y).clone()\n"}},
        "values",
        "seed 2",
    ),
    "depends on what memory held": (
        {"source": {"y[i] = x[i] * weight[0]": "y[i] = i == 3 && y[i] > 0 ? y[i] : x[i] * weight[0]"}},
        "repeatable",
        "two runs on the same inputs differ",
    ),
    "another shape": ({"model": {"        return y\n": "        return y.flatten()\n"}}, "structure", r"\(2112,\)"),
    "another layout": (
        {"model": {"        return y\n": "        return y.t().contiguous().t()\n"}},
        "structure",
        r"strides \(1, 64\)",
    ),
    "another dtype": ({"model": {"        return y\n": "        return y.double()\n"}}, "structure", "float64"),
    "forgets its buffer": (
        {"model": {"        self.calls += 1\n        y =": "        y ="}},
        "buffers",
        "buffer 'calls' is off",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_is_refused(write_kernel: WriteKernel, name: str) -> None:
    changes, stage, reason = BROKEN[name]
    verdict = verdict_of(write_kernel(**changes))
    assert not verdict.passed
    assert verdict.stages[-1].name.split(",")[0] == stage, verdict.reason
    assert not verdict.stages[-1].passed
    assert all(earlier.passed for earlier in verdict.stages[:-1])
    assert re.search(reason, verdict.reason), verdict.reason


def oracle_of(write_kernel: WriteKernel, **changes: dict[str, str]) -> Oracle:
    reference = write_kernel(**changes).kernel.reference()
    cpu = torch.device("cpu")
    return consult_reference(reference, reference.make_model(0, cpu), cpu, seeds=(1, 2))


def test_the_oracle_draws_different_inputs_and_both_signs(write_kernel: WriteKernel) -> None:
    first, second, signs = (case.inputs[0] for case in oracle_of(write_kernel).cases)
    assert not torch.equal(first, second)
    assert (first > 0).all()
    assert (signs < 0).any()
    assert torch.equal(signs.abs(), first)


def test_consulting_leaves_the_reference_as_it_was(write_kernel: WriteKernel) -> None:
    reference = write_kernel().kernel.reference()
    cpu = torch.device("cpu")
    model = reference.make_model(0, cpu)
    consult_reference(reference, model, cpu, seeds=(1,))
    assert float(model.get_buffer("calls")) == 0.0


def test_error_figures_are_relative_to_the_row() -> None:
    expected = torch.ones(2, 64, dtype=torch.float64)
    expected[1] = 1000.0
    output = expected.clone()
    output[1, 7] += 0.5
    figures = compare(output, expected, scale_of(expected), bound=1e-4)
    assert figures.max_absolute == pytest.approx(0.5)
    assert figures.max_relative == pytest.approx(0.5 / 1000.0)
    assert figures.first_wrong_index == 64 + 7
    assert figures.relative_norm == pytest.approx(0.5 / float(torch.linalg.vector_norm(expected)))


def test_a_row_of_zeros_must_be_met_exactly() -> None:
    expected = torch.zeros(2, 64, dtype=torch.float64)
    expected[0] = 1.0
    output = expected.clone()
    assert compare(output, expected, scale_of(expected), 1e-4).max_relative == 0.0
    output[1, 0] = 1e-30
    assert compare(output, expected, scale_of(expected), 1e-4).max_relative > 1.0


@pytest.mark.parametrize(
    ("got", "wanted", "good"),
    [
        ("inf", "inf", True),
        ("nan", "nan", True),
        ("-inf", "inf", False),
        ("nan", "inf", False),
        ("inf", "nan", False),
        ("1.0", "nan", False),
        ("nan", "1.0", False),
        ("inf", "1.0", False),
    ],
)
def test_what_is_not_finite_must_be_of_the_same_kind(got: str, wanted: str, good: bool) -> None:
    expected = torch.ones(1, 64, dtype=torch.float64)
    expected[0, 9] = float(wanted)
    output = torch.ones(1, 64)
    output[0, 9] = float(got)
    figures = compare(output, expected, scale_of(expected), bound=1e-4)
    assert (figures.max_relative == 0.0) is good
    assert (figures.first_wrong_index is None) is good
    if not good:
        assert figures.max_relative == float("inf")
        assert figures.first_wrong_index == 9


def test_long_outputs_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = torch.rand(37, 64, dtype=torch.float64) + 0.5
    output = (expected * (1 + 1e-6)).float()
    output[35, 1] = 9.0
    whole = compare(output, expected, scale_of(expected), 1e-4)
    monkeypatch.setattr("tunebench.tuner.check._CHUNK_ELEMENTS", 64 * 5)
    pieces = compare(output, expected, scale_of(expected), 1e-4)
    assert pieces.first_wrong_index == whole.first_wrong_index == 35 * 64 + 1
    assert pieces.max_relative == whole.max_relative
    assert pieces.relative_norm == pytest.approx(whole.relative_norm)
