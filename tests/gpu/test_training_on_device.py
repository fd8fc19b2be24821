"""Training steps on a GPU: gradients by every kind of product against float64, and models that are trained by them."""

import pytest
import torch
from torch import nn

from tunebench.kernels.gemm_sigmoid_residual.model import ModelNew
from tunebench.kernels.gemm_sigmoid_residual.reference import Model
from tunebench.kernels.runtime.policy import use_policy
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import Device
from tunebench.tuner.problem import Accuracy

pytestmark = pytest.mark.gpu

FUSED: dict[str, Value] = {"product": "fused"}
PRODUCTS: dict[str, tuple[dict[str, Value], Accuracy, float]] = {
    "int8": ({**FUSED, "weight_parts": "int8"}, Accuracy.TOLERANCE, 1e-4),
    "e4m3": ({**FUSED, "weight_parts": "e4m3"}, Accuracy.TOLERANCE, 2e-4),
    "fp16": ({**FUSED, "weight_parts": "fp16"}, Accuracy.TOLERANCE, 1e-5),
    "split in the product": ({**FUSED, "weight_parts": "none"}, Accuracy.TOLERANCE, 1e-5),
    "rounded": ({**FUSED, "weight_parts": "rounded", "sum_stages": 0}, Accuracy.TF32, 5e-3),
    "the library's": ({"product": "parts", "corrections": "half"}, Accuracy.TOLERANCE, 1e-5),
    "the library's, in eight bits": ({"product": "parts", "corrections": "int8"}, Accuracy.TOLERANCE, 1e-4),
}


def pair(depth: int, features: int) -> tuple[Model, ModelNew]:
    torch.manual_seed(3)
    model, tuned = Model(depth, features, 2.0).cuda(), ModelNew(depth, features, 2.0).cuda()
    tuned.load_state_dict(model.state_dict())
    return model, tuned


def step(model: nn.Module, x: torch.Tensor, by: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    output = model(x)
    return [output, *torch.autograd.grad(output, [x, *model.parameters()], by)]


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("sizes", [(130, 264, 416), (257, 513, 104), (64, 1000, 2048)], ids=str)
def test_gradients_by_every_product_are_right(cuda: Device, name: str, sizes: tuple[int, int, int]) -> None:
    values, accuracy, tolerance = PRODUCTS[name]
    rows, depth, features = sizes
    model, tuned = pair(depth, features)
    x, by = torch.randn(rows, depth, device="cuda"), torch.randn(rows, features, device="cuda")
    problem = tuned.problem(x)
    assert problem is not None
    problem = problem.at(accuracy)
    plan = build_plan(tuned.kernel, tuned.kernel.space.choose(values, problem, cuda), problem, cuda, compiler_for(cuda))
    tuned.pin(plan)
    (trained, *_) = tuned.trained_forwards(plan)
    assert None not in trained.args[0]  # type: ignore[attr-defined]
    step(tuned, x, by)
    found = step(tuned, x, by)
    assert "_Behind" in type(found[0].grad_fn).__name__
    for one, exact in zip(found, step(model.double(), x.double(), by.double()), strict=True):
        size = float(exact.square().mean().sqrt())
        torch.testing.assert_close(one.double(), exact, rtol=0.0, atol=tolerance * size)
    by[3, 5] = torch.inf
    infinite = [bool(one.isfinite().all()) for one in step(tuned, x, by)[1:]]
    assert infinite == [False, False, False]


def test_a_model_that_is_trained_ends_where_the_reference_does(cuda: Device) -> None:  # noqa: ARG001
    model, tuned = pair(2048, 2048)
    losses = []
    for one in (model, tuned):
        torch.manual_seed(5)
        optimiser = torch.optim.SGD(one.parameters(), lr=0.05)
        for _ in range(5):
            optimiser.zero_grad()
            with use_policy("best", wait=True):
                loss = one(torch.randn(512, 2048, device="cuda")).square().mean()
            loss.backward()
            optimiser.step()
        losses.append(loss.detach())
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=0.0)
    torch.testing.assert_close(tuned.gemm.weight, model.gemm.weight, rtol=1e-3, atol=1e-5)
    assert any("duel" in choice.reason for choice in tuned.choices.values())
