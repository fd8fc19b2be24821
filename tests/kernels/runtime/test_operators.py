"""Compiled and exported programs: each kernel runs in them as one operator, and gives what the reference gives."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from five_models import KERNELS, pair, ran_a_kernel, with_gradient
from sample_kernel import WriteKernel
from sampling import slow_but
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from tunebench.kernels.runtime.policy import Policy
from tunebench.kernels.runtime.traced_call import operands
from tunebench.kernels.runtime.tuned_module import TunedModule

SOME = ["conv_min_add_mul", "gemm_scale_bn"]
"""Kernels with a buffer and without, for what is the same for all."""
ELSEWHERE = "gemm_scale_bn"
"""The kernel whose exported program another process loads."""


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Compiled:
    """A module compiled into one graph, and the operators of ours that its graphs call."""

    def __init__(self, module: nn.Module, backend: str = "aot_eager", **options: Any) -> None:
        self._counter = CompileCounterWithBackend(backend)
        self.call = torch.compile(module, backend=self._counter, fullgraph=True, **options)

    @property
    def operators(self) -> list[list[str]]:
        """For each graph that was compiled."""
        return [_operators(graph) for graph in self._counter.graphs]


def _operators(graph: torch.fx.GraphModule) -> list[str]:
    """By name, without the number of a kernel of that name that was loaded after others of it in this process."""
    names = (str(node.target) for node in graph.graph.nodes if node.op == "call_function")
    return [_unnumbered(name.split(".")[1]) for name in names if name.startswith("tunebench.")]


def _unnumbered(name: str) -> str:
    return re.sub(r"_\d+(?=_|$)", "", name)


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def several(inputs: tuple[Any, ...], times: int) -> tuple[Any, ...]:
    return (torch.cat([inputs[0]] * times), *inputs[1:])


@pytest.mark.parametrize("name", slow_but(SOME, KERNELS))
def test_compiled_at_one_shape_then_at_any(name: str) -> None:
    model, tuned, inputs = pair(name)
    program = Compiled(tuned)
    with torch.no_grad():
        for times in (1, 1, 2, 3, 5):
            close(program.call(*several(inputs, times)), model(*several(inputs, times)))
    assert program.operators == [[f"{name}_inference"]] * 2
    assert ran_a_kernel(tuned), tuned.choices


@pytest.mark.parametrize("name", SOME)
def test_numbers_that_change_after_compiling(name: str) -> None:
    model, tuned, inputs = pair(name)
    program = Compiled(tuned)
    with torch.no_grad():
        for number in (1.5, 2.5, 3.5, 4.5):
            for one in (model, tuned):
                if hasattr(one, "scaling_factor"):
                    one.scaling_factor = number
                if hasattr(one, "bn"):
                    one.bn.eps = number
            called = (inputs[0], *(number for _ in inputs[1:]))
            close(program.call(*called), model(*called))
    assert program.operators == [[f"{name}_inference"]] * 2, "the second value makes it a variable"


@pytest.mark.parametrize("name", slow_but(["gemm_scale_bn"], SOME))
def test_gradients_of_a_compiled_model(name: str) -> None:
    model, tuned, inputs = pair(name, training=True)
    program = Compiled(tuned)
    for _ in range(3):
        mine, theirs = with_gradient(inputs), with_gradient(inputs)
        found, wanted = program.call(*mine), model(*theirs)
        close(found, wanted)
        for result in (found, wanted):
            result.square().mean().backward()
        close(mine[0].grad, theirs[0].grad)
        close(tuned.state_dict(), model.state_dict())
        for (_, own), (_, other) in zip(tuned.named_parameters(), model.named_parameters(), strict=True):
            close(own.grad, other.grad)
    assert program.operators == [[name], []], "once a gradient was taken, the reference is compiled"
    tuned.eval()
    close(program.call(*with_gradient(inputs)), model.eval()(*inputs))
    assert program.operators[2:] == [[name]]


def test_a_gradient_taken_when_the_model_is_gone() -> None:
    model, tuned, inputs = pair("gemm_sigmoid_residual")
    (mine,), (theirs,) = with_gradient(inputs), with_gradient(inputs)
    program = Compiled(tuned)
    result = program.call(mine).sum()
    del tuned, program
    torch._dynamo.reset()
    result.backward()
    model(theirs).sum().backward()
    close(mine.grad, theirs.grad)


@pytest.mark.parametrize("training", [False, True])
def test_statistics_move_as_in_the_reference(training: bool) -> None:
    model, tuned, inputs = pair("gemm_scale_bn", training=training)
    program = Compiled(tuned)
    with torch.no_grad():
        for _ in range(2):
            close(program.call(*inputs), model(*inputs))
            close(tuned.state_dict(), model.state_dict())
    assert program.operators == [["gemm_scale_bn_inference"]]


def test_a_forward_that_writes_in_eval_mode(write_kernel: WriteKernel) -> None:
    tuned = write_kernel()().eval()
    program = Compiled(tuned)
    x = torch.rand(3, 4)
    with torch.no_grad():
        for calls in (1, 2, 3):
            close(program.call(x), x * tuned.weight)
            assert tuned.calls == calls
    assert ran_a_kernel(tuned), tuned.choices
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    for _ in range(2):
        program.call(mine).sum().backward()
        (theirs * tuned.weight).sum().backward()
    close(mine.grad, theirs.grad)
    assert tuned.calls == 5


def test_an_input_that_may_be_none(write_kernel: WriteKernel) -> None:
    tuned = write_kernel(
        model={
            "x)": "x, shift=None)",
            "problem(x, shift=None) if": "problem(x, shift) if",
            "like(x, shift=None)": "like(x)",
        },
        reference={
            "(self, x)": "(self, x, shift=None)",
            "self.weight\n": "self.weight + (0 if shift is None else shift)\n",
        },
    )().eval()
    program = Compiled(tuned)
    x = torch.rand(3, 4)
    with torch.no_grad():
        for inputs in ((x,), (x, None), (x, torch.zeros(()))):
            close(program.call(*inputs), x * tuned.weight)
    own = tuned._operators.forward[False, False].name().removeprefix("tunebench::")
    assert program.operators == 3 * [[_unnumbered(own)]]


@pytest.mark.parametrize("name", slow_but(["gemm_scale_bn"], [one for one in KERNELS if one.startswith("gemm")]))
def test_a_frozen_model_keeps_what_is_derived_in_a_program(name: str) -> None:
    model, tuned, inputs = pair(name)
    program = Compiled(tuned.freeze())
    with torch.no_grad():
        for _ in range(2):
            close(program.call(*inputs), model(*inputs))
            before = _derived(tuned)
            close(program.call(*inputs), model(*inputs))
            assert _derived(tuned) == before
            for one in (model, tuned):
                for parameter in one.parameters():
                    parameter.mul_(1.5)
        assert program.operators == [[f"{name}_frozen_inference"]]
        tuned.unfreeze()
        close(program.call(*inputs), model(*inputs))
    assert program.operators[1:] == [[f"{name}_inference"]]


def _derived(tuned: TunedModule) -> list[int]:
    assert tuned._derived is not None
    return [id(entry) for entries in tuned._derived._entries.values() for entry in entries.values()]


def test_what_is_replaced_or_set_after_compiling() -> None:
    model, tuned, inputs = pair("conv_min_add_mul")
    program = Compiled(tuned)
    with torch.no_grad():
        close(program.call(*inputs), model(*inputs))
        for one in (model, tuned):
            one.conv.bias = nn.Parameter(one.conv.bias * 2)  # type: ignore[union-attr,operator]
        close(program.call(*inputs), model(*inputs))
        for one in (model, tuned):
            one.conv.padding = (1, 2)  # type: ignore[union-attr]
        assert program.call(*inputs).shape == model(*inputs).shape
        close(program.call(*inputs), model(*inputs))
        seen = []
        tuned.conv.register_forward_hook(lambda *_: seen.append(1))  # type: ignore[union-attr]
        close(program.call(*inputs), model(*inputs))
        assert seen == [1]


def test_a_parameter_that_is_registered_anew() -> None:
    """It stands last among the parameters: another order, and another outline."""
    model, tuned, inputs = pair("gemm_scale_bn")
    program = Compiled(tuned)
    with torch.no_grad():
        close(program.call(*inputs), model(*inputs))
        for one in (model, tuned):
            for layer in (one.gemm, one.bn):
                weight = layer.weight  # type: ignore[union-attr]
                del layer.weight  # type: ignore[union-attr]
                layer.weight = nn.Parameter(weight * 2)  # type: ignore[union-attr, operator]
    close(program.call(*inputs), model(*inputs))
    program.call(*inputs).square().sum().backward()
    model(*inputs).square().sum().backward()
    close(tuned.gemm.weight.grad, model.gemm.weight.grad)  # type: ignore[union-attr, arg-type]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
@pytest.mark.parametrize("of_all", [False, True])
def test_hooks_around_a_compiled_model(of_all: bool) -> None:
    """Where there is none, tracing goes straight to `forward`."""
    model, tuned, inputs = pair("gemm_sigmoid_residual")

    def double(module: nn.Module, _: Any, output: torch.Tensor) -> torch.Tensor | None:
        return 2 * output if module is tuned else None

    with torch.no_grad():
        register = nn.modules.module.register_module_forward_hook if of_all else tuned.register_forward_hook
        handle = register(double)
        try:
            for _ in range(2):
                close(Compiled(tuned).call(*inputs), 2 * model(*inputs))
                close(Compiled(nn.Sequential(tuned)).call(*inputs), 2 * model(*inputs))
        finally:
            handle.remove()
        torch._dynamo.reset()
        close(Compiled(tuned).call(*inputs), model(*inputs))


def test_two_of_a_kernel_inside_a_model() -> None:
    class Both(nn.Module):
        def __init__(self, first: nn.Module, second: nn.Module) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x=x).relu() + 3 * self.second(x)

    model, tuned, inputs = pair("gemm_sigmoid_residual")
    models, tuneds = [model, copy.deepcopy(model)], [tuned, copy.deepcopy(tuned)]
    with torch.no_grad():
        for one in (models[1], tuneds[1]):
            one.gemm.weight.mul_(2)  # type: ignore[union-attr,operator]
            one.scaling_factor = 0.25  # type: ignore[assignment]
        program = Compiled(Both(*tuneds))
        close(program.call(*inputs), Both(*models)(*inputs))
        assert all(ran_a_kernel(one) for one in tuneds)
    assert program.operators == [["gemm_sigmoid_residual_inference"] * 2]


def test_an_attribute_set_inside_the_program() -> None:
    """PyTorch sets it on the module when the graph has run: the graph has to bring the value along."""

    class Sets(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
            self.inner.scaling_factor = factor
            result: torch.Tensor = self.inner(x)
            return result

    model, tuned, inputs = pair("gemm_sigmoid_residual")
    program = Compiled(Sets(tuned))
    with torch.no_grad():
        for factor in (0.5, 0.75, 7.0):
            close(program.call(*inputs, factor), Sets(model)(*inputs, factor))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conv_min_add_mul", "scalar_mul"])
def test_transforms_inside_a_program_take_the_reference(name: str) -> None:
    model, tuned, (x, *rest) = pair(name)

    def vmap(one: nn.Module) -> Any:
        return lambda x: torch.func.vmap(lambda y: one(y, *rest))(torch.stack([x, x]))

    def gradient(one: nn.Module) -> Any:
        return torch.func.grad(lambda y: one(y, *rest).sum())

    def jvp(one: nn.Module) -> Any:
        return lambda x: torch.func.jvp(lambda y: one(y, *rest), (x,), (x,))[1]

    for transform in (vmap, gradient, jvp):
        compiled = torch.compile(transform(tuned), backend="aot_eager", fullgraph=True)
        close(compiled(x), transform(model)(x))
    assert not tuned.choices


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(SOME, KERNELS))
@pytest.mark.parametrize("training", [False, True])
def test_opcheck(name: str, training: bool) -> None:
    _, tuned, inputs = pair(name, training=training)
    forward = tuned._operators.forward
    torch.library.opcheck(forward[False, True], operands(tuned, with_gradient(inputs)))
    torch.library.opcheck(forward[False, False], operands(tuned.requires_grad_(False), inputs))


def test_vmap_of_the_operator_itself() -> None:
    _, tuned, (x,) = pair("gemm_sigmoid_residual")
    tensors, *rest = operands(tuned, (x,))
    with torch.no_grad():
        (found,) = torch.vmap(lambda x: tuned._operators.forward[False, True]([x], *rest))(torch.stack([x, 2 * x]))
        close(found, torch.stack([tuned(x), tuned(2 * x)]))
    assert len(tensors) == 1


def test_a_second_derivative_through_the_operator() -> None:
    model, tuned, inputs = pair("gemm_sigmoid_residual")
    (mine,), (theirs,) = with_gradient(inputs), with_gradient(inputs)
    seconds = []
    for x, result in (
        (mine, tuned._operators.forward[False, True](*operands(tuned, (mine,)))[0]),
        (theirs, model(theirs)),
    ):
        (first,) = torch.autograd.grad(result.square().sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad(first.square().sum(), x)[0])
    torch.testing.assert_close(*seconds, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", slow_but([one for one in KERNELS if one != ELSEWHERE], KERNELS))
def test_exported_at_any_batch_and_loaded_elsewhere(name: str, tmp_path: Path) -> None:
    model, tuned, inputs = pair(name)
    shapes = ({0: torch.export.Dim("batch", min=2)}, *(None for _ in inputs[1:]))
    program = torch.export.export(tuned, inputs, dynamic_shapes=shapes)
    assert _operators(program.graph_module) == [name]
    called = several(inputs, 3)
    with torch.no_grad():
        wanted = model(*called)
        close(program.module()(*called), wanted)
        torch.export.save(program, tmp_path / "program.pt2")
        torch.save((called, wanted), tmp_path / "call.pt")
        # The same file, in a process that knows nothing but the kernel.
        if name == ELSEWHERE:
            script = f"""
                import torch, tunebench.kernels.{name}.model
                program = torch.export.load("program.pt2").module()
                called, wanted = torch.load("call.pt")
                torch.testing.assert_close(program(*called), wanted, rtol=1e-4, atol=1e-4)
                """
            subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, check=True)


def test_strict_export_and_a_model_that_its_constructor_does_not_make() -> None:
    model, tuned, inputs = pair("conv_min_add_mul")
    with torch.no_grad():
        program = torch.export.export(tuned, inputs, strict=True)
        assert _operators(program.graph_module) == ["conv_min_add_mul"]
        close(program.module()(*inputs), model(*inputs))
        for one in (model, tuned):
            one.conv.padding = (1, 1)  # type: ignore[union-attr]
        program = torch.export.export(tuned, inputs)
        assert _operators(program.graph_module) == []
        close(program.module()(*inputs), model(*inputs))


@pytest.mark.slow
def test_inductor() -> None:
    model, tuned, inputs = pair("gemm_sigmoid_residual")
    program = Compiled(tuned, backend="inductor")
    with torch.no_grad():
        for _ in range(2):
            close(program.call(*inputs), model(*inputs))
    assert program.operators == [["gemm_sigmoid_residual_inference"]]


def test_where_the_reference_serves_for_good_its_operations_are_compiled() -> None:
    model, tuned, inputs = pair("gemm_sigmoid_residual")
    tuned.policy = Policy.EXACT  # nothing was measured
    program = Compiled(tuned)
    with torch.no_grad():
        for times in (1, 1, 2, 3, 2):
            close(program.call(*several(inputs, times)), model(*several(inputs, times)))
    inference = ["gemm_sigmoid_residual_inference"]
    assert program.operators == [inference, [], inference], "asked again where a program is for any shape"


def test_two_kernels_of_one_name(write_kernel: WriteKernel) -> None:
    names = [write_kernel()._operators.forward[False, True].name() for _ in range(2)]
    assert names[0] != names[1]
    assert all(name.startswith("tunebench::weigh") for name in names)
