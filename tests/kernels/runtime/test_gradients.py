"""A tuned forward whose result needs a gradient: the kernel runs, and every derivative is the reference's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from five_models import KERNELS, pair, ran_a_kernel, with_gradient
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

MODES = [(name, training) for name in KERNELS for training in (False, True) if not training or name == "gemm_scale_bn"]


def derivatives(model: torch.nn.Module, inputs: tuple[Any, ...], **options: Any) -> list[torch.Tensor]:
    """Of a weighted sum of the output, by every input and parameter."""
    output = model(*inputs)
    weights = torch.arange(output.numel(), dtype=output.dtype).reshape(output.shape).cos()
    leaves = [value for value in (*inputs, *model.parameters()) if isinstance(value, torch.Tensor)]
    return list(torch.autograd.grad((output * weights).sum(), leaves, **options))


@pytest.mark.parametrize(("name", "training"), MODES)
def test_a_call_with_gradients_enabled_runs_the_kernel_and_has_the_references_gradients(
    name: str, training: bool
) -> None:
    model, tuned, inputs = pair(name, torch.float64, training=training)
    wanted = derivatives(model, with_gradient(inputs))
    found = derivatives(tuned, with_gradient(inputs))
    assert ran_a_kernel(tuned)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    for (label, buffer), (_, other) in zip(tuned.named_buffers(), model.named_buffers(), strict=True):
        torch.testing.assert_close(buffer, other, msg=f"{label}: a forward and a backward are one step")


@pytest.mark.parametrize("name", KERNELS)
def test_the_values_are_those_of_the_same_call_without_gradients(name: str) -> None:
    _, tuned, inputs = pair(name)
    with torch.no_grad():
        wanted = tuned(*inputs)
    found = tuned(*with_gradient(inputs))
    assert found.requires_grad
    assert torch.equal(found.detach(), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_first_and_second_derivatives_are_right_numerically(name: str) -> None:
    _, tuned, inputs = pair(name, torch.float64)
    leaves = with_gradient(inputs)
    tuned.pin(_plan_of(tuned, inputs))
    assert gradcheck(tuned, leaves)
    assert gradgradcheck(tuned, leaves)


def test_second_derivatives_reach_parameters_too() -> None:
    model, tuned, inputs = pair("gemm_sigmoid_residual", torch.float64)

    def second(one: torch.nn.Module) -> list[torch.Tensor]:
        leaves = with_gradient(inputs)
        norm = sum(part.square().sum() for part in derivatives(one, leaves, create_graph=True))
        assert isinstance(norm, torch.Tensor)
        return list(torch.autograd.grad(norm, [leaves[0], *one.parameters()]))

    for one, other in zip(second(tuned), second(model), strict=True):
        torch.testing.assert_close(one, other)


def test_what_needs_no_gradient_gets_none() -> None:
    model, tuned, inputs = pair("gemm_scale_bn", torch.float64)
    for one in (model, tuned):
        one.gemm.weight.requires_grad_(False)
        one(*inputs).sum().backward()
    assert tuned.gemm.weight.grad is None
    torch.testing.assert_close(tuned.scale.grad, model.scale.grad)
    _, tuned, inputs = pair("gemm_scale_bn", torch.float64)
    tuned.requires_grad_(False)
    assert not tuned(*inputs).requires_grad
    leaves = with_gradient(inputs)
    tuned(*leaves).sum().backward()
    assert leaves[0].grad is not None


def test_hooks_run_once_as_with_the_reference() -> None:
    counts = []
    for one in pair("gemm_sigmoid_residual", torch.float64)[:2]:
        inputs = with_gradient(pair("gemm_sigmoid_residual", torch.float64)[2])
        seen: list[str] = []
        between = inputs[0] * 2
        between.register_hook(lambda gradient, seen=seen: seen.append("input") or gradient * 3)
        one.gemm.weight.register_hook(lambda _gradient, seen=seen: seen.append("parameter"))
        one.register_full_backward_hook(lambda *_, seen=seen: seen.append("module"))
        one(between).sum().backward()
        assert inputs[0].grad is not None
        counts.append((sorted(seen), inputs[0].grad))
    assert counts[0][0] == counts[1][0] == ["input", "module", "parameter"]
    torch.testing.assert_close(counts[0][1], counts[1][1])


def test_checkpointing_and_two_calls_before_a_backward() -> None:
    model, tuned, inputs = pair("gemm_scale_bn", torch.float64, training=True)
    results = []
    for one in (model, tuned):
        leaves = with_gradient(inputs)
        (checkpoint(one, leaves[0], use_reentrant=False).sin().sum() + one(leaves[0] * 2).cos().sum()).backward()
        results.append([leaves[0].grad, *(parameter.grad for parameter in one.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_what_is_changed_between_forward_and_backward_is_refused_as_with_the_reference() -> None:
    for number in (0, 1):
        one = pair("gemm_scale_bn", torch.float64)[number]
        output = one(*with_gradient(pair("gemm_scale_bn", torch.float64)[2])).sum()
        with torch.no_grad():
            one.get_buffer("bn.running_var").add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.backward()


def test_a_second_backward_needs_the_graph_kept() -> None:
    _, tuned, inputs = pair("scalar_mul")
    leaves = with_gradient(inputs)
    output = tuned(*leaves).sum()
    output.backward(retain_graph=True)
    output.backward()
    with pytest.raises(RuntimeError, match="second time"):
        output.backward()


def test_whoever_trains_is_served_by_the_reference_until_eval() -> None:
    """A backward runs the reference's forward: behind a kernel's forward that is one forward too many."""
    _, tuned, inputs = pair("gemm_scale_bn", training=True)
    for step in range(3):
        output = tuned(*inputs)
        served_by_reference = (None, None) in tuned.choices
        assert served_by_reference == (step > 0)
        output.sum().backward()
    assert "gradients of this model are taken" in tuned.choices[None, None].reason
    with torch.no_grad():
        assert type(tuned(*inputs)) is torch.Tensor
    tuned.eval()
    assert "_Node" in type(tuned(*inputs).grad_fn).__name__


def _plan_of(tuned: Any, inputs: tuple[Any, ...]) -> Any:
    """A plan pinned, so that the kernel runs however often a gradient is taken."""
    with torch.no_grad():
        tuned(*inputs)
    ((_, plan),) = tuned._plans.values()
    return plan
