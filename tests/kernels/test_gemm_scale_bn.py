"""gemm_scale_bn on the CPU: both modes, the running statistics, and weights copied either way."""

import copy
import random

import pytest
import torch
from torch import nn

from tunebench.kernels.gemm_scale_bn.model import ModelNew
from tunebench.kernels.gemm_scale_bn.reference import Model
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.problem import Problem

CPU = find_device("cpu")
SPACE = ModelNew.kernel.space


def pair(features: int = 12, inputs: int = 7, **options: object) -> tuple[Model, ModelNew]:
    """A reference that has lived a little, and a tuned model with its weights."""
    torch.manual_seed(3)
    reference = Model(inputs, features, (features,), **options)  # type: ignore[arg-type]
    with torch.no_grad():
        reference.bn.weight.uniform_(0.5, 2.0)
        reference.bn.bias.normal_()
        if reference.bn.running_mean is not None and reference.bn.running_var is not None:
            reference.bn.running_mean.normal_()
            reference.bn.running_var.uniform_(0.5, 2.0)
    tuned = ModelNew(inputs, features, (features,), **options)  # type: ignore[arg-type]
    tuned.load_state_dict(reference.state_dict())
    return reference, tuned


def sample(count: int, mode: str) -> list[Configuration]:
    problem = Problem({"rows": 37, "in_features": 7, "out_features": 12}, "float32", {"mode": mode})
    space = SPACE.enumerate(problem, CPU)
    return [space[number] for number in random.Random(5).sample(range(len(space)), count)]


def pin(model: ModelNew, configuration: Configuration, x: torch.Tensor) -> None:
    problem = model.problem(x)
    assert problem is not None
    model.pin(build_plan(model.kernel, configuration, problem, CPU, compiler_for(CPU)))


def assert_same_state(one: nn.Module, other: nn.Module, *, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for (name, a), (_, b) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "configuration"),
    [(mode, configuration) for mode in ("eval", "train") for configuration in sample(12, mode)],
    ids=str,
)
def test_every_configuration_and_number_of_rows(mode: str, configuration: Configuration) -> None:
    reference, tuned = pair()
    reference.train(mode == "train")
    tuned.train(mode == "train")
    with torch.no_grad():
        for rows in (2, 3, 8, 37, 65):
            x = torch.randn(rows, 7)
            pin(tuned, configuration, x)
            # Two parts in bf16 hold 16 bits, corrections in eight bits three to six more than fp16, and the
            # deviation of two rows may be small.
            precise = configuration.get("part_type") != "bf16" and configuration.get("corrections", "half") == "half"
            rtol, atol = (1e-4, 1e-5) if precise else (5e-3, 5e-3)
            torch.testing.assert_close(tuned(x), reference(x), rtol=rtol, atol=atol)
            assert_same_state(tuned, reference, **({} if precise else {"rtol": 1e-3, "atol": 1e-4}))


@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"eps": 0.1, "momentum": 0.5}], ids=str)
def test_running_statistics_move_as_in_the_reference(options: dict[str, object]) -> None:
    reference, tuned = pair(**options)
    with torch.no_grad():
        for step in range(3):
            x = torch.randn(20, 7) + step
            torch.testing.assert_close(tuned(x), reference(x), rtol=1e-4, atol=1e-5)
            assert_same_state(tuned, reference)
        reference.eval()
        tuned.eval()
        x = torch.randn(5, 7)
        torch.testing.assert_close(tuned(x), reference(x), rtol=1e-4, atol=1e-5)
    assert int(tuned.bn.num_batches_tracked or 0) == 3
    assert {problem.options["mode"] for problem, _ in tuned.choices} == {"eval", "train"}


def test_the_variance_of_a_feature_with_a_large_mean() -> None:
    reference, tuned = pair()
    with torch.no_grad():
        reference.gemm.bias.fill_(3000.0)
        tuned.gemm.bias.fill_(3000.0)
        x = torch.randn(64, 7)
        torch.testing.assert_close(
            tuned(x), copy.deepcopy(reference).double()(x.double()).float(), rtol=1e-3, atol=5e-3
        )


def test_weights_copy_by_name() -> None:
    reference, _ = pair()
    tuned = ModelNew(7, 12, (12,))
    tuned.gemm.weight.data.copy_(reference.gemm.weight)
    tuned.gemm.bias.data.copy_(reference.gemm.bias)
    tuned.scale.data.copy_(reference.scale)
    tuned.bn.load_state_dict(reference.bn.state_dict())
    x = torch.randn(9, 7)
    with torch.no_grad():
        torch.testing.assert_close(tuned.eval()(x), reference.eval()(x), rtol=1e-4, atol=1e-5)


def test_the_same_seed_gives_the_same_parameters() -> None:
    torch.manual_seed(11)
    reference = Model(7, 12, (12,))
    torch.manual_seed(11)
    tuned = ModelNew(7, 12, (12,))
    assert list(reference.state_dict()) == list(tuned.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(reference.parameters(), tuned.parameters(), strict=True))


def changed(change: str, model: Model | ModelNew) -> Model | ModelNew:
    """The model after a change that a user may make between two calls."""
    bn = model.bn
    with torch.no_grad():
        if change == "weight in place":
            model.gemm.weight.mul_(2.0)
        elif change == "weight through .data":
            model.gemm.weight.data.mul_(2.0)
        elif change == "parameter replaced":
            model.scale = nn.Parameter(torch.full_like(model.scale, 0.25))
        elif change == "running variance":
            assert bn.running_var is not None
            bn.running_var.fill_(3.0)
        elif change == "eps":
            bn.eps = 0.5
        elif change == "not affine":
            model.bn = nn.BatchNorm1d(12, affine=False)
        elif change == "no running statistics":
            model.bn = nn.BatchNorm1d(12, track_running_stats=False)
        elif change == "hook":
            bn.register_forward_hook(lambda _module, _inputs, output: output + 1.0)
        elif change == "float64":
            model.double()
    return model


@pytest.mark.parametrize(
    "change",
    [
        "weight in place",
        "weight through .data",
        "parameter replaced",
        "running variance",
        "eps",
        "not affine",
        "no running statistics",
        "hook",
        "float64",
    ],
)
def test_a_change_between_two_calls_changes_the_next_output(change: str) -> None:
    reference, tuned = (model.eval() for model in pair())
    with torch.no_grad():
        x = torch.randn(9, 7)
        before = tuned(x)
        changed(change, reference)
        changed(change, tuned)
        x = x.to(reference.gemm.weight.dtype)
        after, wanted = tuned(x), reference(x)
    torch.testing.assert_close(after, wanted, rtol=1e-4, atol=1e-5)
    assert after.dtype == wanted.dtype
    if change != "float64":
        assert not torch.allclose(after, before)


def test_gradients_are_the_reference_gradients() -> None:
    reference, tuned = (model.double() for model in pair())
    x = torch.randn(9, 7, dtype=torch.float64, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    reference(x).square().sum().backward()
    tuned(y).square().sum().backward()
    assert x.grad is not None and y.grad is not None
    torch.testing.assert_close(y.grad, x.grad)
    for a, b in zip(tuned.parameters(), reference.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad, b.grad)


def test_what_the_reference_refuses_is_refused_alike() -> None:
    for model in pair():
        with torch.no_grad(), pytest.raises(ValueError, match="more than 1 value per channel"):
            model(torch.randn(1, 7))


def test_a_copied_model_works() -> None:
    _, tuned = pair()
    tuned.eval()
    with torch.no_grad():
        x = torch.randn(9, 7)
        wanted = tuned(x)
        assert torch.equal(copy.deepcopy(tuned)(x), wanted)
