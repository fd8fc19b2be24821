"""gemm_scale_bn on the CPU: both modes, the running statistics, and weights copied either way."""

import copy
import random

import pytest
import torch
from five_models import pin
from torch import nn

from tunebench.kernels.gemm_scale_bn.model import ModelNew
from tunebench.kernels.gemm_scale_bn.reference import Model
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


def assert_same_state(one: nn.Module, other: nn.Module, *, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for (name, a), (_, b) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "configuration"),
    [(mode, configuration) for mode in ("eval", "train") for configuration in sample(8, mode)],
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


def changed(change: str, model: Model | ModelNew) -> Model | ModelNew:
    """The model after a change that a user may make between two calls."""
    bn = model.bn
    with torch.no_grad():
        if change == "parameter replaced":
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
    return model


@pytest.mark.parametrize(
    "change", ["parameter replaced", "running variance", "eps", "not affine", "no running statistics"]
)
def test_a_change_between_two_calls_changes_the_next_output(change: str) -> None:
    reference, tuned = (model.eval() for model in pair())
    with torch.no_grad():
        x = torch.randn(9, 7)
        before = tuned(x)
        changed(change, reference)
        changed(change, tuned)
        after, wanted = tuned(x), reference(x)
    torch.testing.assert_close(after, wanted, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(after, before)


def test_what_the_reference_refuses_is_refused_alike() -> None:
    for model in pair():
        with torch.no_grad(), pytest.raises(ValueError, match="more than 1 value per channel"):
            model(torch.randn(1, 7))
