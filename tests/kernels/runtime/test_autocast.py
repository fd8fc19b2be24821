"""Under autocast the kernel serves in the type that autocast casts to, and is as exact as the reference."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from five_models import KERNELS, ran_a_kernel
from sample_kernel import WriteKernel
from torch import nn
from under_autocast import SIZES, require_as_exact

from tunebench.kernels.runtime import dispatch
from tunebench.kernels.runtime.choices_file import load_choices
from tunebench.kernels.runtime.duel import Score
from tunebench.kernels.runtime.policy import use_policy
from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.saving import save_choices
from tunebench.kernels.runtime.tuned_module import TunedModule

HALF = torch.bfloat16
X = torch.rand(3, 5)


def pair(name: str) -> tuple[nn.Module, TunedModule, tuple[Any, ...]]:
    reference = load_model(name).kernel.reference(SIZES[name])
    model, tuned = (reference.make_model(3, torch.device("cpu"), one).eval() for one in (None, load_model(name)))
    assert isinstance(tuned, TunedModule)
    return model, tuned, tuple(reference.make_inputs(5, torch.device("cpu")))


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("frozen", [False, True])
def test_type_and_error_are_the_references(name: str, frozen: bool) -> None:
    model, tuned, inputs = pair(name)
    if frozen:
        tuned.freeze()
    require_as_exact(model, tuned, inputs, HALF)
    assert ran_a_kernel(tuned), tuned.choices
    (problem,) = (problem for problem, _ in tuned.choices if problem is not None)
    # Nothing in scalar_mul is run in a half type, so that nothing is cast.
    casts = name != "scalar_mul"
    assert problem.options.get("autocast") == ("bfloat16" if casts else None)
    assert problem.dtype == ("bfloat16" if casts else "float32")


@pytest.mark.parametrize("name", KERNELS)
def test_a_change_of_the_parameters_is_noticed(name: str) -> None:
    model, tuned, inputs = pair(name)
    tuned.freeze()
    for _ in range(2):
        require_as_exact(model, tuned, inputs, HALF)
        with torch.no_grad():
            for one in (*model.parameters(), *tuned.parameters()):
                one.mul_(1.5)


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_are_the_references_under_autocast(name: str) -> None:
    model, tuned, inputs = pair(name)
    gradients = []
    for one in (model, tuned):
        x = inputs[0].clone().requires_grad_()
        with torch.autocast("cpu", HALF):
            result = one(x, *inputs[1:])
        result.float().sum().backward()
        gradients.append([x.grad, *(parameter.grad for parameter in one.parameters())])
    assert ran_a_kernel(tuned)
    for wanted, found in zip(*gradients, strict=True):
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted)


def test_train_mode_with_statistics_is_the_references() -> None:
    model, tuned, (x,) = pair("gemm_scale_bn")
    with torch.no_grad(), torch.autocast("cpu", HALF):
        torch.testing.assert_close(tuned.train()(x), model.train()(x))
    torch.testing.assert_close(dict(tuned.named_buffers()), dict(model.named_buffers()))
    assert "float32" in tuned.choices[None, None].reason


def test_calls_with_and_without_are_told_apart() -> None:
    model, tuned, inputs = pair("gemm_sigmoid_residual")
    with torch.no_grad():
        for context in [nullcontext(), torch.autocast("cpu", HALF)] * 3:
            with context:
                assert tuned(*inputs).dtype == model(*inputs).dtype
                torch.testing.assert_close(tuned(*inputs), model(*inputs), rtol=2e-2, atol=2e-2)
    assert {problem.dtype for problem, _ in tuned.choices if problem is not None} == {"float32", "bfloat16"}


def test_another_type_of_autocast_is_another_call(write_kernel: WriteKernel) -> None:
    products = {"        return x * self.weight\n": "        return (x @ x.t().expand(5, 3)) * self.weight\n"}
    made = write_kernel(reference=products)().eval()
    with torch.no_grad():
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
            with torch.autocast("cpu", dtype):
                made(X)
                # The sample serves float32 and float64 alone.
                assert made.choices[None, None].reason.endswith(f"the inputs are {str(dtype).removeprefix('torch.')}")


def test_results_in_the_type_are_no_evidence_without_a_duel(monkeypatch: pytest.MonkeyPatch) -> None:
    _, tuned, inputs = pair("gemm_sigmoid_residual")
    held: list[int] = []

    def lost(contenders: Sequence[Any], *_: Any) -> list[Score]:
        held.append(len(contenders))
        return [Score(0.5) for _ in contenders]

    monkeypatch.setattr(dispatch, "duel", lost)
    with torch.no_grad(), torch.autocast("cpu", HALF), use_policy("best", wait=True):
        tuned(*inputs)
    assert held and not ran_a_kernel(tuned)


def test_that_the_reference_won_in_one_type_decides_nothing_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    _, tuned, inputs = pair("gemm_sigmoid_residual")
    monkeypatch.setattr(dispatch, "duel", lambda contenders, *_: [Score(0.5) for _ in contenders])
    with torch.no_grad(), use_policy("best", wait=True):
        for dtype in (HALF, HALF, torch.float16):
            with torch.autocast("cpu", dtype):
                tuned(*inputs)
    met = {problem.options["autocast"] for problem, _ in tuned.choices if problem is not None}
    assert met == {"bfloat16", "float16"}


def test_choices_are_saved_and_loaded(tmp_path: Any) -> None:
    _, tuned, inputs = pair("gemm_sigmoid_residual")
    with torch.no_grad(), torch.autocast("cpu", HALF):
        tuned(*inputs)
        assert save_choices(tmp_path / "choices.json", tuned) == 1
        load_choices(tmp_path / "choices.json")
        _, again, _ = pair("gemm_sigmoid_residual")
        again(*inputs)
    (choice,) = again.choices.values()
    assert choice.configuration is not None and choice.reason.startswith("loaded from")
