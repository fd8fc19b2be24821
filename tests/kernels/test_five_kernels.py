"""Any tensor, a change between two calls, copies and seeds: each of the five kernels does as its reference does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from five_models import KERNELS, SIZES, pair
from torch import nn

from tunebench.kernels.runtime.registry import load_model

TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": lambda x: x[:0],
    "every other element": lambda x: torch.stack([x, -x], -1).flatten(-2)[..., ::2],
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "expanded": lambda x: x[:1].expand_as(x),
    "an odd beginning": lambda x: torch.cat([torch.zeros(1), x.flatten()])[1:].view(x.shape),
    "not finite": lambda x: torch.where(x > 0.9, torch.inf, torch.where(x < 0.1, torch.nan, x)),
    "a gradient": lambda x: x.clone().requires_grad_(),
}


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("name", KERNELS)
def test_any_tensor_gets_the_reference_answer(name: str, tensor: str) -> None:
    reference, tuned, (x, *others) = pair(name)
    x = TENSORS[tensor](x)
    with torch.set_grad_enabled(x.requires_grad):
        wanted, output = reference(x, *others), tuned(x, *others)
    # A rewrite may give one of two infinities where their sum is NaN.
    both = (torch.where(one.isfinite(), one, torch.nan) for one in (output, wanted))
    torch.testing.assert_close(*both, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert (output.stride(), output.requires_grad) == (wanted.stride(), wanted.requires_grad)


def replace(model: nn.Module) -> None:
    name, value = next(model.named_parameters())
    path, _, last = name.rpartition(".")
    setattr(model.get_submodule(path), last, nn.Parameter(torch.full_like(value, 0.25)))


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "in place": lambda model: next(model.parameters()).mul_(2.0),
    "through .data": lambda model: next(model.parameters()).data.mul_(2.0),
    "replaced": replace,
    "load_state_dict": lambda model: model.load_state_dict({key: one + 1 for key, one in model.state_dict().items()}),
    "a hook": lambda model: list(model.modules())[-1].register_forward_hook(
        lambda _module, _inputs, output: output + 1
    ),
    "another type": lambda model: model.double(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", [name for name in KERNELS if name != "scalar_mul"])
def test_a_change_between_two_calls_changes_the_next_output(name: str, change: str) -> None:
    reference, tuned, (x, *others) = pair(name)
    with torch.no_grad():
        before = tuned(x, *others)
        for model in (reference, tuned):
            CHANGES[change](model)
        x = x.double() if change == "another type" else x
        wanted, after = reference(x, *others), tuned(x, *others)
        torch.testing.assert_close(after, wanted, rtol=1e-4, atol=1e-5)
        assert change == "another type" or not torch.allclose(after, before)
        for copied in (copy.deepcopy(tuned), pickle.loads(pickle.dumps(tuned))) if change == "in place" else ():
            torch.testing.assert_close(copied(x, *others), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
def test_the_same_seed_gives_the_same_parameters(name: str) -> None:
    kernel = load_model(name).kernel
    reference = kernel.reference(SIZES[name])
    one, other = (reference.make_model(11, torch.device("cpu"), made).state_dict() for made in (None, load_model(name)))
    assert list(one) == list(other)
    assert all(torch.equal(one[key], other[key]) for key in one)
