"""gemm_sigmoid_residual on the CPU: every configuration, weights changed either way, and what no kernel serves."""

import copy
import pickle
import random

import pytest
import torch
from torch import nn

from tunebench.kernels.gemm_sigmoid_residual.model import ModelNew
from tunebench.kernels.gemm_sigmoid_residual.reference import Model
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.problem import Problem

CPU = find_device("cpu")
SPACE = ModelNew.kernel.space


def pair(inputs: int = 7, features: int = 12, factor: float = 2.0) -> tuple[Model, ModelNew]:
    torch.manual_seed(3)
    reference = Model(inputs, features, factor)
    tuned = ModelNew(inputs, features, factor)
    tuned.load_state_dict(reference.state_dict())
    return reference, tuned


def sample(count: int, dtype: str) -> list[Configuration]:
    problem = Problem({"rows": 37, "in_features": 7, "out_features": 12}, dtype)
    space = SPACE.enumerate(problem, CPU)
    return [space[number] for number in random.Random(5).sample(range(len(space)), count)]


def pin(model: ModelNew, configuration: Configuration, x: torch.Tensor) -> None:
    problem = model.problem(x)
    assert problem is not None
    model.pin(build_plan(model.kernel, configuration, problem, CPU, compiler_for(CPU)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "configuration"),
    [
        (dtype, configuration)
        for dtype, count in (("float32", 8), ("float64", 8), ("float16", 5), ("bfloat16", 5))
        for configuration in sample(count, dtype)
    ],
    ids=str,
)
def test_every_configuration_and_size(dtype: str, configuration: Configuration) -> None:
    for rows, features in ((1, 1), (3, 5), (37, 12), (65, 31)):
        reference, tuned = (model.to(getattr(torch, dtype)) for model in pair(features=features))
        x = torch.randn(rows, 7, dtype=getattr(torch, dtype)) * 30
        pin(tuned, configuration, x)
        with torch.no_grad():
            wanted = copy.deepcopy(reference).double()(x.double())
            found = tuned(x)
        tolerance = {"float32": 1e-5, "float64": 1e-13, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
        # Two parts in bf16 hold 16 bits, and corrections in eight bits three to six more than fp16.
        if configuration.get("part_type") == "bf16" or configuration.get("corrections", "half") != "half":
            tolerance = 1e-3
        assert found.dtype == x.dtype
        # Of half types the product is rounded once and the output again: errors are relative to the output's size.
        size = float(wanted.abs().max()) if x.dtype.itemsize == 2 else 1.0
        torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance * size)


def test_the_sigmoid_far_out_and_of_what_is_not_finite() -> None:
    reference, tuned = pair(inputs=1, features=1)
    with torch.no_grad():
        for model in (reference, tuned):
            model.gemm.weight.fill_(1.0)
            model.gemm.bias.zero_()
        x = torch.tensor([[-1e30], [-200.0], [-89.0], [0.0], [89.0], [1e30], [torch.inf], [-torch.inf], [torch.nan]])
        for fast_math in (False, True):
            pin(tuned, SPACE.choose({"fast_math": fast_math}, tuned.problem(x), CPU), x)
            torch.testing.assert_close(tuned(x), reference(x), equal_nan=True)


def test_which_products_are_for_whom() -> None:
    for dtype, legal in (("float32", {"fp32", "parts", "stream"}), ("float64", {"fp32"}), ("float16", {"fp32"})):
        space = SPACE.enumerate(Problem({"rows": 37, "in_features": 7, "out_features": 12}, dtype), CPU)
        assert {space[number]["product"] for number in range(len(space))} == legal


@pytest.mark.parametrize("change", ["in place", "through .data", "replaced", "load_state_dict", "hook", "no bias"])
def test_a_change_between_two_calls_changes_the_next_output(change: str) -> None:
    reference, tuned = pair()
    x = torch.randn(9, 7)
    with torch.no_grad():
        before = tuned(x)
        for model in (reference, tuned):
            if change == "in place":
                model.gemm.weight.mul_(2.0)
            elif change == "through .data":
                model.gemm.weight.data.mul_(2.0)
            elif change == "replaced":
                model.gemm.weight = nn.Parameter(torch.full_like(model.gemm.weight, 0.25))
            elif change == "load_state_dict":
                model.load_state_dict({name: value + 1.0 for name, value in model.state_dict().items()})
            elif change == "hook":
                model.gemm.register_forward_hook(lambda _module, _inputs, output: output + 1.0)
            else:
                model.gemm.bias = None  # type: ignore[assignment]
        torch.testing.assert_close(tuned(x), reference(x))
        assert not torch.allclose(tuned(x), before)


def test_gradients_are_the_reference_gradients() -> None:
    reference, tuned = (model.double() for model in pair())
    x = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(tuned, (x,))
    (wanted,) = torch.autograd.grad(reference(x).square().sum(), reference.gemm.weight)
    (found,) = torch.autograd.grad(tuned(x).square().sum(), tuned.gemm.weight)
    torch.testing.assert_close(found, wanted)


def test_copies_and_seeds() -> None:
    reference, tuned = pair()
    x = torch.randn(9, 7)
    with torch.no_grad():
        for copied in (copy.deepcopy(tuned), pickle.loads(pickle.dumps(tuned))):
            torch.testing.assert_close(copied(x), reference(x))
    torch.manual_seed(11)
    first = Model(7, 12, 2.0)
    torch.manual_seed(11)
    second = ModelNew(7, 12, 2.0)
    assert list(first.state_dict()) == list(second.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("shape", [(0, 7), (2, 3, 7)], ids=str)
def test_what_no_kernel_serves_is_the_reference(shape: tuple[int, ...]) -> None:
    reference, tuned = pair()
    x = torch.randn(shape)
    assert tuned.problem(x) is None
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), reference(x))
