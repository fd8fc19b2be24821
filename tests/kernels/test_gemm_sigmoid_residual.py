"""gemm_sigmoid_residual on the CPU: every configuration, weights changed either way, and what no kernel serves."""

import copy
import random

import pytest
import torch
from five_models import pin

from tunebench.kernels.gemm_sigmoid_residual.model import ModelNew
from tunebench.kernels.gemm_sigmoid_residual.reference import Model
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "configuration"),
    [
        (dtype, configuration)
        for dtype, count in (("float32", 8), ("float64", 3), ("float16", 3), ("bfloat16", 3))
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
