"""A linear layer that is trained: products and passes give the reference's gradients, however they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from five_models import CPU, pair, with_gradient
from one_file import load
from parts_contract import fictional
from torch.autograd import gradcheck, gradgradcheck

from tunebench.kernels.blocks import linear_training
from tunebench.kernels.blocks.derivative import derivative_of
from tunebench.kernels.gemm_sigmoid_residual.model import ModelNew
from tunebench.kernels.gemm_sigmoid_residual.reference import Model
from tunebench.kernels.runtime import dispatch
from tunebench.kernels.runtime.duel import Answer, Score
from tunebench.kernels.runtime.policy import use_policy
from tunebench.kernels.runtime.selection import STEP_OPTION, Tier
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.kernel import Plan
from tunebench.tuner.problem import Accuracy, Problem

PARTS: dict[str, Value] = {"product": "parts", "part_type": "fp16", "corrections": "half", "pieces": 1}
TORCHS: dict[str, Value] = {"product": "fp32"}
"""Only the function behind the layer is by kernels."""
each_product = pytest.mark.parametrize("values", [PARTS, TORCHS], ids=["parts", "torch's"])

EVERY_FUNCTION = """
sigmoid(value) + 2 * tanh(value) - exp(value) / 3.0 + log(value * value + 1.5) * factor + sqrt(square(value) + 1.0)
    + abs(value) * silu(value) + softplus(value) / (2 + sigmoid(value)) - logsigmoid(-value) + mish(value + 0.5)
    + gelu(value) + relu(value) + tanhshrink(value) * 0.25
"""
IN_TORCH = """
def __init__(self):
    super().__init__()
    self.gemm = nn.Linear(33, 5)
    self.factor = 0.75

def forward(self, x):
    v = self.gemm(x)
    total = torch.sigmoid(v) + 2 * torch.tanh(v) - torch.exp(v) / 3.0 + torch.log(v * v + 1.5) * self.factor
    total = total + torch.sqrt(v.square() + 1.0) + v.abs() * F.silu(v) + F.softplus(v) / (2 + torch.sigmoid(v))
    return total - F.logsigmoid(-v) + F.mish(v + 0.5) + F.gelu(v) + F.relu(v) + F.tanhshrink(v) * 0.25
"""


def trained(
    model: TunedModule,
    inputs: Sequence[Any],
    values: dict[str, Value] | None = None,
    accuracy: Accuracy = Accuracy.TOLERANCE,
) -> TunedModule:
    """The model under one configuration, of which a gradient has been taken."""
    problem = model.problem(*inputs)
    assert problem is not None, model.reason
    problem = problem.at(accuracy)
    configuration = model.kernel.space.choose(values or {"product": "fp32"}, problem, CPU)
    model.pin(build_plan(model.kernel, configuration, problem, CPU, compiler_for(CPU)))
    model(*inputs).sum().backward()
    model.zero_grad()
    return model


def node_of(output: torch.Tensor) -> str:
    return type(output.grad_fn).__name__


@pytest.mark.slow
def test_the_derivative_of_every_function_is_autograds_first_and_second(tmp_path: Path) -> None:
    block = f'layer = "gemm"\nfunction = """{EVERY_FUNCTION}"""\nscalars = ("factor",)'
    model = load(tmp_path / "every.py", "blocks.Linear", IN_TORCH, block)().double()
    x = torch.randn(4, 33, dtype=torch.float64, requires_grad=True)
    trained(model, (x,))
    assert "_Behind" in node_of(model(x))
    assert gradcheck(model, (x,))
    assert gradgradcheck(model, (x,))
    weights = list(model.parameters())
    found = torch.autograd.grad(model(x).sin().sum(), weights)
    wanted = torch.autograd.grad(model.reference_forward(x).sin().sum(), weights)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "text",
    ["clamp(value, 0, 1)", "value > 0 ? value : 0", "softplus(value, 2)", "max(value, 0)", "auto x = value; return x;"],
)
def test_what_has_kinks_or_no_plain_expression_is_left_to_autograd(text: str) -> None:
    assert derivative_of(text) is None


def test_what_has_no_value_in_it_is_a_constant() -> None:
    assert derivative_of("clamp(scale, 0, 1) * value") == "(clamp(scale, 0, 1))"


WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda output: (output * torch.arange(output.numel()).reshape(output.shape).cos()).sum(),
    "expanded": lambda output: output.sum(),
    "transposed": lambda output: (output.t().contiguous() * 0.5).square().sum(),
    "a part": lambda output: output[::2, 1::3].square().sum(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "values"),
    [("gemm_sigmoid_residual", PARTS), ("gemm_sigmoid_residual", TORCHS), ("gemm_scale_bn", PARTS)],
    ids=["parts", "torch's", "a batch's own statistics"],
)
def test_gradients_are_the_references_however_they_come_in(name: str, values: dict[str, Value], way: str) -> None:
    training = name == "gemm_scale_bn"
    model, tuned, inputs = pair(name, training=training)
    trained(tuned, inputs, values)
    tuned.load_state_dict(model.state_dict())
    model.double()
    found, wanted = [], []
    for one, into in ((model, wanted), (tuned, found)):
        (x,) = with_gradient(inputs)
        x = x.detach().to(next(one.parameters()).dtype).requires_grad_()
        output = one(x)
        WAYS[way](output).backward()
        into += [output.detach(), x.grad, *(each.grad for each in one.parameters()), *one.buffers()]
    for one, other in zip(found, wanted, strict=True):
        size = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one.to(other.dtype), other, rtol=0.0, atol=1e-4 * size)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1.0, 1e-38], ids=["usual rows", "rows that no halves hold"])
def test_every_way_to_train_where_tf32_is_permitted(size: float) -> None:
    """By the kernels, and by torch's G · W."""
    model, tuned = Model(70, 44, 2.0), ModelNew(70, 44, 2.0)
    tuned.load_state_dict(model.state_dict())
    x, by = torch.randn(37, 70), torch.randn(37, 44)
    by[3] *= 1e20
    trained(tuned, (x,), {**PARTS, "corrections": "none"}, Accuracy.TF32)
    assert tuned._pinned is not None
    ways = tuned.trained_forwards(tuned._pinned)
    assert [way.args[0].by_x is None for way in ways] == [False, True]  # type: ignore[attr-defined]
    with torch.no_grad():
        for one in (model, tuned):
            one.get_parameter("gemm.weight")[1:3] *= size
    model.double()
    exact = model(wide := x.double().requires_grad_())
    wanted = (exact, *torch.autograd.grad(exact, [wide, *model.parameters()], by.double()))
    for way in ways:
        (leaf,) = with_gradient((x,))
        output = way(leaf)
        found = (output, *torch.autograd.grad(output, [leaf, *tuned.parameters()], by))
        for one, other in zip(found, wanted, strict=True):
            rms = other.square().mean(-1, keepdim=True).sqrt()
            torch.testing.assert_close(one / rms, other / rms, rtol=0.0, atol=5e-3, check_dtype=False)


@each_product
def test_only_what_is_asked_for_is_made(values: dict[str, Value]) -> None:
    _, tuned, inputs = pair("gemm_sigmoid_residual")
    trained(tuned, inputs, values)
    for parameters, needs_input in ((True, False), (False, True)):
        tuned.requires_grad_(parameters)
        x = inputs[0].clone().requires_grad_(needs_input)
        output = tuned(x)
        assert "_Behind" in node_of(output)
        output.sum().backward()
        assert [each.grad is not None for each in (x, *tuned.parameters())] == [needs_input, parameters, parameters]
        tuned.zero_grad()


def test_a_weight_changed_before_the_backward_is_refused_and_one_changed_behind_it_is_met() -> None:
    _, tuned, inputs = pair("gemm_sigmoid_residual")
    trained(tuned, inputs, PARTS)
    output = tuned(*with_gradient(inputs))
    with torch.no_grad():
        tuned.gemm.weight.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
    torch.testing.assert_close(tuned(*inputs), tuned.reference_forward(*inputs))
    tuned.scaling_factor = -3.0
    torch.testing.assert_close(tuned(*inputs), tuned.reference_forward(*inputs))


@each_product
def test_what_torchs_own_layer_does_not_save_may_change_before_the_backward(values: dict[str, Value]) -> None:
    """The bias, the weight where the input needs no gradient, and the input where the weight needs none."""
    for needs_input, name in ((True, "gemm.bias"), (False, "gemm.weight"), (True, "x")):
        gradients = []
        for one in pair("gemm_sigmoid_residual")[:2]:
            _, _, inputs = pair("gemm_sigmoid_residual")
            if isinstance(one, TunedModule):
                trained(one, inputs, values)
            one.get_parameter("gemm.weight").requires_grad_(name != "x")
            leaf = inputs[0].clone().requires_grad_(needs_input)
            x = leaf * 1.0
            output = one(x)
            with torch.no_grad():
                (x if name == "x" else one.get_parameter(name)).mul_(3.0)
            output.sum().backward()
            gradients.append([each.grad for each in (leaf, *one.parameters())])
        for one_gradient, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one_gradient, other)


@each_product
def test_second_derivatives_are_those_of_torchs_products(values: dict[str, Value]) -> None:
    model, tuned, inputs = pair("gemm_sigmoid_residual")
    trained(tuned, inputs, values)

    def second(one: torch.nn.Module) -> tuple[torch.Tensor, ...]:
        (x,) = with_gradient(inputs)
        leaves = [x, *one.parameters()]
        first = torch.autograd.grad(one(x).sin().sum(), leaves, create_graph=True)
        return torch.autograd.grad(torch.stack([part.square().sum() for part in first]).sum(), leaves)

    torch.testing.assert_close(second(tuned), second(model), rtol=1e-4, atol=1e-4)


def test_a_step_is_decided_by_a_duel_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The duel compares the output and all gradients; a step that loses is the reference's, and its choice says why."""
    for ratio in (2.0, 0.5):
        answers: list[tuple[torch.Tensor, ...]] = []

        def duel(
            contenders: Sequence[Answer], reference: Answer, *_: Any, ratio: float = ratio, **__: Any
        ) -> list[Score]:
            answers.extend((contenders[0](), reference()))  # noqa: B023 - it is called before the next turn
            return [Score(ratio)]

        model, tuned, inputs = pair("gemm_sigmoid_residual")
        trained(tuned, inputs)
        tuned.pin(None)
        monkeypatch.setattr(dispatch, "duel", duel)
        with use_policy("best", wait=True):
            output = tuned(*inputs)
        ((problem, _), choice) = next(one for one in tuned.choices.items() if one[0][0] is not None)
        assert problem is not None and problem.options[STEP_OPTION] == "training"
        assert ("_Behind" in node_of(output)) == (ratio > 1) == (choice.tier is not Tier.REFERENCE), choice.reason
        assert "duel" in choice.reason
        assert len(answers[0]) == len(answers[1]) == 1 + len(list(model.parameters()))
        torch.testing.assert_close(answers[0], answers[1])
        assert all(each.grad is None for each in tuned.parameters())
        dispatch_forgets()


def dispatch_forgets() -> None:
    from tunebench.kernels.runtime.decision import forget_plans

    forget_plans()


def test_policies_say_what_trains() -> None:
    rules = (("recorded", True, True), ("recorded", False, False), ("exact", True, False), ("reference", True, False))
    for policy, steps, is_tuned in rules:
        _, tuned, inputs = pair("gemm_sigmoid_residual")
        trained(tuned, inputs)
        with use_policy(steps=steps):
            assert ("_Behind" in node_of(tuned(*inputs))) == steps
        tuned.pin(None)
        with use_policy(policy, wait=True, steps=steps):
            assert ("_Behind" in node_of(tuned(*inputs))) == is_tuned, policy
            tuned.eval()
            assert "_Behind" not in node_of(tuned(*inputs))


def test_a_backward_is_noticed_behind_the_reference_too() -> None:
    """A kernel that is no faster forward may be faster in a step: a model in train mode is asked."""
    for training in (True, False):
        _, tuned, inputs = pair("gemm_sigmoid_residual", training=training)
        with use_policy("exact", wait=True):
            output = tuned(*inputs)
            assert "_Behind" not in node_of(output)
            output.sum().backward()
        assert tuned._trains == training


def test_a_step_beside_halves_in_rows_has_tiles_where_matrices_lie_in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which configurations are built: the builds themselves are for a GPU that is not here."""
    begun: list[Configuration] = []
    monkeypatch.setattr(linear_training, "_begin", lambda _, configuration, *_more: begun.append(configuration))
    sizes = {"rows": 512, "in_features": 1024, "out_features": 2048}
    problem, hopper = Problem(sizes, "float32", {"mode": "eval"}).at(Accuracy.TF32), fictional("sm_90")
    chosen = ModelNew.kernel.space.choose({"product": "fused", "weight_parts": "halves"}, problem, hopper)
    linear_training._products(Plan(ModelNew.kernel, chosen, problem, hopper, cast(Any, None)))
    assert [one["weight_parts"] for one in begun] == ["halves", "rounded", "rounded"]
