"""Calls in which PyTorch does more than run operations: every kernel's model behaves as its reference."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from five_models import KERNELS, pair, ran_a_kernel
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.prune import random_unstructured, remove

from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.gate.memory import PoisonedMemory

Call = Callable[[nn.Module, tuple[Any, ...]], Any]


def dual_tensors(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(inputs[0], torch.ones_like(inputs[0]))
        return forward_ad.unpack_dual(model(dual, *inputs[1:])).tangent


def jvp(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return torch.func.jvp(lambda x: model(x, *inputs[1:]), (inputs[0],), (torch.ones_like(inputs[0]),))[1]


def vmap(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    with torch.no_grad():
        return torch.func.vmap(lambda x: model(x, *inputs[1:]))(torch.stack([inputs[0], inputs[0] * 2]))


def gradient_by_functorch(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return torch.func.grad(lambda x: model(x, *inputs[1:]).sum())(inputs[0])


def functional_call(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    state = {name: value * 2 for name, value in model.named_parameters()}
    return torch.func.functional_call(model, state, inputs)


def proxies(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    graph = make_fx(lambda x: model(x, *inputs[1:]))(inputs[0])
    called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert not all("empty" in name for name in called), graph.code
    return graph(inputs[0] * 3)


def fake_tensors(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(inputs[0])
        return torch.zeros(model(fake, *inputs[1:]).shape).shape


def meta_tensors(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return copy.deepcopy(model).to("meta")(inputs[0].to("meta"), *inputs[1:]).shape


def jit_trace(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    tensors = tuple(value if isinstance(value, torch.Tensor) else torch.tensor(value) for value in inputs)
    with torch.no_grad():
        return torch.jit.trace(model, tensors, check_trace=False)(*(tensors[0] * 3, *tensors[1:]))


def inference_mode(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    with torch.inference_mode():
        return model(*inputs).clone()


def tensor_subclass(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    class Named(torch.Tensor):
        pass

    result = model(inputs[0].as_subclass(Named), *inputs[1:])
    assert type(result) is Named
    return result.as_subclass(torch.Tensor)


def negated_view(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    lazy = torch.complex(torch.zeros_like(inputs[0]), inputs[0]).conj().imag
    assert lazy.is_neg()
    return model(lazy, *inputs[1:])


def parameters_of_inference_mode(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    with torch.inference_mode():
        made = copy.deepcopy(model)
    return made(*inputs)


def default_device(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    with torch.device("cpu"):
        return model(*inputs)


REFERENCE_RUNS: list[Call] = [
    *(dual_tensors, jvp, vmap, gradient_by_functorch, proxies, fake_tensors, meta_tensors),
    *(jit_trace, tensor_subclass, negated_view, parameters_of_inference_mode),
]
KERNEL_RUNS: list[Call] = [functional_call, inference_mode, default_device]


@pytest.mark.parametrize("call", [*REFERENCE_RUNS, *KERNEL_RUNS], ids=lambda call: call.__name__)
@pytest.mark.parametrize("name", KERNELS)
def test_a_call_gives_what_the_reference_gives(name: str, call: Call) -> None:
    model, tuned, inputs = pair(name)
    try:
        wanted = call(model, inputs)
    except Exception as error:  # noqa: BLE001 - what the reference refuses the model refuses alike
        with pytest.raises(type(error)):
            call(tuned, inputs)
        return
    found = call(tuned, inputs)
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    else:
        assert found == wanted
    if call in REFERENCE_RUNS:
        assert not ran_a_kernel(tuned), tuned.choices
        assert call in (meta_tensors, parameters_of_inference_mode) or tuned.choices[None, None].reason
    elif call in KERNEL_RUNS:
        assert ran_a_kernel(tuned), tuned.choices


@pytest.mark.parametrize("name", KERNELS)
def test_a_pickled_model_and_a_copied_one_are_the_same_model(name: str) -> None:
    model, tuned, inputs = pair(name)
    with torch.no_grad():
        for again in (pickle.loads(pickle.dumps(tuned)), copy.deepcopy(tuned)):
            torch.testing.assert_close(again(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)
            assert ran_a_kernel(again)


def prune(layer: nn.Module) -> None:
    torch.manual_seed(0)
    random_unstructured(layer, "weight", 0.5)


def prune_for_good(layer: nn.Module) -> None:
    prune(layer)
    remove(layer, "weight")
    assert [*layer._parameters][-1] == "weight"


WEIGHTS: list[Callable[[Any], Any]] = [prune, prune_for_good, nn.utils.parametrizations.weight_norm]


@pytest.mark.parametrize("change", WEIGHTS, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", [name for name in KERNELS if name != "scalar_mul"])
def test_a_weight_that_is_made_of_another(name: str, change: Callable[[Any], Any]) -> None:
    """Its own parameter is not where the kernel's backward looks; what is registered anew stands last."""
    model, tuned, inputs = pair(name)
    with torch.no_grad():
        tuned(*inputs)
    for one in (model, tuned):
        change(next(one.children(), one))
        if name == "gemm_scale_bn" and change is prune_for_good:
            change(one.bn)  # type: ignore[arg-type]
    # PyTorch copies no weight that has a graph.
    models = [model, tuned, *([] if change is prune else [copy.deepcopy(tuned)])]
    outputs = [one(*inputs) for one in models]
    for one in models[2:]:
        assert isinstance(one, TunedModule) and ran_a_kernel(one) == (change is prune_for_good)
    for output in outputs:
        torch.testing.assert_close(output, outputs[0], rtol=1e-4, atol=1e-4)
        output.square().sum().backward()
    for one in models[1:]:
        for (path, wanted), (other, found) in zip(model.named_parameters(), one.named_parameters(), strict=True):
            assert path == other
            torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-3, atol=1e-4)


def test_hooks_of_all_modules_see_what_is_inside() -> None:
    model, tuned, inputs = pair("gemm_sigmoid_residual")
    with torch.no_grad():
        wanted = model(*inputs)
        tuned(*inputs)
        seen: list[nn.Module] = []
        handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
        try:
            for _ in range(2):
                seen.clear()
                torch.testing.assert_close(tuned(*inputs), wanted, rtol=1e-4, atol=1e-4)
                assert seen == [tuned.gemm, tuned]
        finally:
            handle.remove()
        assert "hooks of all modules" in tuned.choices[None, None].reason
        seen.clear()
        tuned(*inputs)
        assert seen == []


@pytest.mark.parametrize("name", KERNELS)
def test_inputs_by_name_and_calls_that_do_not_fit(name: str) -> None:
    model, tuned, inputs = pair(name)
    names = list(tuned._signature().parameters)[1:]
    with torch.no_grad():
        wanted = model(*inputs)
        torch.testing.assert_close(tuned(**dict(zip(names, inputs, strict=True))), wanted, rtol=1e-4, atol=1e-4)
        assert ran_a_kernel(tuned)
        for wrong in ((), (*inputs, 1)):
            for one in (model, tuned):
                with pytest.raises(TypeError):
                    one(*wrong)
        for one in (model, tuned):
            with pytest.raises(TypeError):
                one(*inputs, nothing=1)


def test_what_torchscript_cannot_read_is_one_line() -> None:
    _, tuned, _ = pair("gemm_sigmoid_residual")
    with pytest.raises(NotImplementedError, match=r"script its reference, or use torch\.jit\.trace or torch\.export"):
        torch.jit.script(nn.Sequential(tuned))


def test_choices_say_why_the_reference_ran() -> None:
    _, tuned, inputs = pair("gemm_sigmoid_residual")
    with torch.no_grad():
        tuned(inputs[0][0])
        assert "1 dimensions" in tuned.choices[None, None].reason


def test_the_gates_memory_does_not_keep_a_kernel_from_running() -> None:
    """Else the gate would judge the reference in its place, and find nothing wrong."""
    _, tuned, inputs = pair("scalar_mul")
    with torch.no_grad(), PoisonedMemory(0xFF):
        tuned(*inputs)
    assert ran_a_kernel(tuned)
