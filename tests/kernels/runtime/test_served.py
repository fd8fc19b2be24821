"""A warm call is served without a look at it, and any change that could matter is noticed."""

import copy
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from sample_kernel import WriteKernel
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tunebench.kernels.runtime import dispatch, served, snapshot, tuned_module
from tunebench.kernels.runtime.duel import Score
from tunebench.kernels.runtime.guards import Content, same_tensors_in_python
from tunebench.kernels.runtime.policy import Policy, use_policy
from tunebench.kernels.runtime.selection import Tier
from tunebench.kernels.runtime.served import Holdings, KnownCalls
from tunebench.kernels.runtime.tuned_module import TunedModule

COUNTED = {
    "import torch\n": "import torch\nLOOKS = []\n",
    "    def problem(self, x):\n": "    flag = 1\n\n    def problem(self, x):\n        LOOKS.append(x)\n",
}
X = torch.rand(3, 5)


class Intercepting(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def looks(model: nn.Module, call: Callable[[], Any]) -> int:
    """How often the model looks at what it is called with."""
    import sys

    seen: list[Any] = sys.modules[type(model).__module__].LOOKS  # type: ignore[attr-defined]
    before = len(seen)
    call()
    return len(seen) - before


@pytest.fixture(autouse=True, params=["PyTorch's guards", "guards in Python"])
def guards(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tells whether anything has changed is private to PyTorch: without it everything is noticed all the same."""
    if request.param == "guards in Python":
        monkeypatch.setattr(snapshot, "same_tensors", same_tensors_in_python)
        monkeypatch.setattr(served, "same_tensors", same_tensors_in_python)
        monkeypatch.setattr(snapshot, "version_of", Content)
        for module in (snapshot, served, tuned_module):
            monkeypatch.setattr(module, "version_of_attributes", Content)


@pytest.fixture
def model(write_kernel: WriteKernel) -> Iterator[TunedModule]:
    made = write_kernel(model=COUNTED)()
    with torch.no_grad(), use_policy("recorded"):
        made(X)
        yield made


def test_a_warm_call_is_not_looked_at(model: TunedModule) -> None:
    assert looks(model, lambda: [model(X), model(X + 1), model(torch.rand(3, 5))]) == 0
    assert torch.equal(model(X), X * model.weight)


def test_shapes_that_take_turns_are_all_known(model: TunedModule) -> None:
    shapes = [torch.rand(n, 5) for n in range(1, 20)]
    assert looks(model, lambda: [model(x) for x in shapes]) == 18  # X has one of these shapes
    assert looks(model, lambda: [model(x) for x in shapes]) == 0


def test_a_call_that_no_kernel_serves_is_known_too(model: TunedModule) -> None:
    x = torch.rand(5, 3).t()
    assert looks(model, lambda: model(x)) == 1
    model(X)
    assert looks(model, lambda: model(x)) == 0
    assert (None, None) in model.choices


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an attribute": lambda model: setattr(model, "flag", 2),
    "a new attribute": lambda model: setattr(model, "other", 2),
    "a parameter": lambda model: setattr(model, "weight", nn.Parameter(torch.rand(1))),
    "a parameter's data": lambda model: setattr(model.weight, "data", torch.rand(5)),
    "requires_grad": lambda model: model.weight.requires_grad_(False),
    "a parameter that is new": lambda model: model.register_parameter("new", nn.Parameter(X)),
    "a buffer": lambda model: setattr(model, "calls", torch.zeros(1)),
    "a submodule": lambda model: model.add_module("inner", nn.Identity()),
    "training": lambda model: model.train(not model.training),
    "frozen": lambda model: model.freeze(),
    "the policy": lambda model: setattr(model, "policy", Policy.EXACT),
    "loaded in place of": lambda model: model.load_state_dict(
        {name: value + 1 for name, value in model.state_dict().items()}, assign=True
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_module_is_noticed(model: TunedModule, name: str) -> None:
    CHANGES[name](model)
    assert looks(model, lambda: model(X)) == 1
    assert looks(model, lambda: model(X)) == 0


def test_a_change_of_a_submodule_is_noticed(model: TunedModule) -> None:
    model.inner = nn.Sequential(nn.Linear(2, 2))
    model(X)
    for change in (
        lambda: model.inner[0].register_forward_hook(lambda *_: None),
        lambda: setattr(model.inner[0], "in_features", 3),
        lambda: setattr(model.inner[0], "bias", None),
        lambda: model.inner.append(nn.Identity()),
        lambda: nn.utils.parametrize.register_parametrization(model.inner[0], "weight", nn.Identity()),
    ):
        assert looks(model, lambda: model(X)) == 0
        change()
        assert looks(model, lambda: model(X)) == 1


def test_values_that_change_in_place_are_not_looked_at(model: TunedModule) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    model.weight.mul_(2)
    assert looks(model, lambda: model(X)) == 0
    assert torch.equal(model(X), X * model.weight)


INPUTS = {
    "dtype": X.int(),
    "strides": torch.rand(5, 3).t(),
    "a parameter": nn.Parameter(X),
    "negated": torch._neg_view(X),
    "a subclass": torch.Tensor.as_subclass(X, type("Other", (torch.Tensor,), {})),
}


@pytest.mark.parametrize("name", INPUTS)
def test_another_kind_of_input_of_the_same_shape_is_noticed(model: TunedModule, name: str) -> None:
    if name in ("negated", "a subclass"):  # an obstacle, so that the kernel's `problem` is not asked
        assert model(INPUTS[name]).shape == X.shape
        assert model.choices[None, None].configuration is None
    else:
        assert looks(model, lambda: model(INPUTS[name])) == 1


def dual() -> AbstractContextManager[Any]:
    return forward_ad.dual_level()


@pytest.mark.parametrize("around", [Intercepting, Dispatching, dual])
def test_what_pytorch_does_besides_is_noticed(model: TunedModule, around: Callable[[], Any]) -> None:
    with around():
        model(X)
    assert model.choices[None, None].configuration is None
    assert looks(model, lambda: model(X)) == 0


def test_a_transform_and_a_trace_are_noticed(model: TunedModule) -> None:
    assert torch.equal(torch.func.vmap(model)(X), X * model.weight)
    stacked = torch.func.vmap(model)(X[None].expand(2, 3, 5))
    assert torch.equal(stacked[1], X * model.weight)
    traced = torch.jit.trace(model, X)
    assert torch.equal(traced(X * 3), X * 3 * model.weight)


def test_gradients_enabled_or_not_and_policies_are_told_apart(model: TunedModule) -> None:
    for context in (torch.enable_grad, nullcontext, torch.inference_mode, lambda: use_policy(Policy.EXACT)):
        with context():
            model(X)
    for context in (torch.enable_grad, nullcontext, lambda: use_policy(Policy.EXACT)):
        with context():
            assert looks(model, lambda: model(X)) == 0


def test_a_call_by_other_tensors_does_not_use_the_modules(model: TunedModule) -> None:
    other = {"weight": model.weight * 3}
    assert torch.equal(torch.func.functional_call(model, other, X), X * other["weight"])
    assert torch.equal(model(X), X * model.weight)


def test_a_copy_looks_for_itself(model: TunedModule) -> None:
    copied = copy.deepcopy(model)
    copied.weight.mul_(2)
    assert looks(copied, lambda: copied(X)) == 1
    assert torch.equal(copied(X), 2 * model(X))


def test_a_gradient_that_was_taken_is_noticed(model: TunedModule) -> None:
    with torch.enable_grad():
        model(X).sum().backward()
        model(X)
        assert "gradients of this model are taken" in model.choices[None, None].reason
        model.eval()
        assert looks(model, lambda: model(X)) == 1


def test_saved_tensors_hooks_are_noticed(model: TunedModule) -> None:
    with torch.enable_grad():
        model(X)
        assert (None, None) not in model.choices
        with torch.autograd.graph.save_on_cpu():
            model(X)
        assert (None, None) in model.choices


def test_another_dtype_of_model_and_input(model: TunedModule) -> None:
    model.double()
    assert looks(model, lambda: model(X.double())) == 1
    assert torch.equal(model(X.double()), X.double() * model.weight)


def test_what_pytorch_permits_is_part_of_the_problem(model: TunedModule) -> None:
    """Only what matters to this reference, which multiplies no matrices."""
    try:
        torch.set_float32_matmul_precision("high")
        assert looks(model, lambda: model(X)) == 0
        torch.use_deterministic_algorithms(True)
        assert looks(model, lambda: model(X)) == 1
        assert looks(model, lambda: model(X)) == 0
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
    assert looks(model, lambda: model(X)) == 0  # that is known from before
    options = [problem.options.get("algorithms") for problem, _ in model.choices if problem is not None]
    assert options == [None, "deterministic"]


def test_where_algorithms_have_to_be_deterministic_no_kernel_sums_in_any_order(write_kernel: WriteKernel) -> None:
    made = write_kernel(model={"work=work)": "work=work, atomics=True)"})()
    with torch.no_grad():
        made(X)
        assert (None, None) not in made.choices
        try:
            torch.use_deterministic_algorithms(True)
            made(X)
        finally:
            torch.use_deterministic_algorithms(False)
    assert "the kernel sums in any order" in made.choices[None, None].reason


def test_under_a_setting_that_nothing_was_measured_under_the_reference_serves(write_kernel: WriteKernel) -> None:
    """The kernel's default was picked beside eager as PyTorch has it by default."""
    multiplied = {"return x * self.weight": "return torch.mm(x, torch.eye(x.shape[1])) * self.weight"}
    made = write_kernel(reference=multiplied)()
    try:
        with torch.no_grad(), use_policy("recorded"):
            made(X)
            torch.set_float32_matmul_precision("high")
            made(X)
    finally:
        torch.set_float32_matmul_precision("highest")
    tiers = {problem.options.get("matmul"): choice.tier for (problem, _), choice in made.choices.items() if problem}
    assert tiers == {None: Tier.DEFAULT, "tf32": Tier.REFERENCE}


@pytest.mark.parametrize("policy", [Policy.REFERENCE, Policy.EXACT])
def test_where_the_reference_has_won_nothing_else_is_asked(
    model: TunedModule, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with use_policy(policy):
        assert looks(model, lambda: model(X)) == 1
        with monkeypatch.context() as patched:
            patched.setattr(Holdings, "__init__", lambda *_: pytest.fail("it looked at what the module holds"))
            patched.setattr(KnownCalls, "look_up", lambda *_: pytest.fail("it looked at the call"))
            model.inner = nn.Identity()
            assert torch.equal(model(X), X * model.weight)
        for change in (model.train, model.freeze, lambda: model.pin(None), model.double):
            change()
            assert looks(model, lambda: model(X.to(model.weight.dtype))) <= 1
        assert looks(model, lambda: model(torch.rand(4, 5, dtype=torch.float64))) == 1
    with use_policy("recorded"):
        assert looks(model, lambda: model(X.double())) == 1


def test_contenders_of_a_duel_know_calls_of_their_own(
    write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sharing them, each would be looked at anew whenever it is its turn."""
    made = write_kernel(model=COUNTED)()
    known: list[object] = [made._known]

    def timed(contenders: Sequence[Any], *_: Any) -> list[Score]:
        known.extend(contender.func.__self__._known for contender in contenders)
        return [Score(0.5) for _ in contenders]

    monkeypatch.setattr(dispatch, "duel", timed)
    with torch.no_grad(), use_policy("best", wait=True):
        made(X)
    assert len(known) > 1
    assert len(set(map(id, known))) == len(known)


def forward_hook(model: TunedModule) -> Callable[[], None]:
    return model.register_forward_hook(lambda *_: torch.zeros(1)).remove


def forward_pre_hook(model: TunedModule) -> Callable[[], None]:
    return model.register_forward_pre_hook(lambda *_: (torch.zeros(1),)).remove


def hook_of_all_modules(_: TunedModule) -> Callable[[], None]:
    return nn.modules.module.register_module_forward_hook(lambda *_: torch.zeros(1)).remove


def forward_of_its_own(model: TunedModule) -> Callable[[], None]:
    model.forward = lambda *_: torch.zeros(1)  # type: ignore[method-assign]
    return lambda: delattr(model, "forward")


def forward_of_the_class(model: TunedModule) -> Callable[[], None]:
    before = type(model).forward
    type(model).forward = lambda *_: torch.zeros(1)  # type: ignore[method-assign]
    return lambda: setattr(type(model), "forward", before)


def compiled_in_place(model: TunedModule) -> Callable[[], None]:
    model.compile(backend=lambda *_: lambda *_: (torch.zeros(1),))
    return lambda: setattr(model, "_compiled_call_impl", None)


@pytest.mark.parametrize("policy", [Policy.RECORDED, Policy.REFERENCE])
@pytest.mark.parametrize(
    "change",
    [
        forward_hook,
        forward_pre_hook,
        hook_of_all_modules,
        forward_of_its_own,
        forward_of_the_class,
        compiled_in_place,
    ],
)
def test_whoever_takes_part_in_a_call_is_noticed(
    model: TunedModule, policy: Policy, change: Callable[[TunedModule], Callable[[], None]]
) -> None:
    with use_policy(policy):
        for _ in range(2):
            assert torch.equal(model(X), X * model.weight)
        undo = change(model)
        try:
            for _ in range(2):
                assert not model(X).any()
        finally:
            undo()
        assert torch.equal(model(X), X * model.weight)


@pytest.mark.parametrize("policy", [Policy.RECORDED, Policy.REFERENCE])
def test_the_forward_of_a_derived_class_is_not_passed_over(model: TunedModule, policy: Policy) -> None:
    class Derived(type(model)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x) + 1

    derived = Derived()
    with use_policy(policy):
        for _ in range(3):
            assert torch.equal(derived(X), X * derived.weight + 1)


def test_a_backward_hook_of_a_module_that_the_reference_serves_is_run(model: TunedModule) -> None:
    seen: list[Any] = []
    with torch.enable_grad(), use_policy("reference"):
        model(X)
        model.register_full_backward_hook(lambda *_: seen.append(1))
        model(X).sum().backward()
    assert seen


def test_a_reference_that_is_replaced_serves(model: TunedModule, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = type(model).reference_class
    assert reference is not None
    with use_policy("reference"):
        model(X)
        monkeypatch.setattr(reference, "forward", lambda _, x: x - 5)
        assert torch.equal(model(X), X - 5)


def test_inputs_by_name_and_too_many_inputs(model: TunedModule) -> None:
    with use_policy("reference"):
        assert torch.equal(model(X), model(x=X))
        for wrong in (model, lambda: model(X, X), lambda: model(y=X)):
            with pytest.raises(TypeError):
                wrong()


@pytest.mark.parametrize("policy", [Policy.RECORDED, Policy.REFERENCE])
def test_parameters_that_were_replaced_are_let_go_of(model: TunedModule, policy: Policy) -> None:
    with use_policy(policy):
        model(X)
        before = weakref.ref(model.weight)
        model.weight = nn.Parameter(torch.rand(1))
        model(torch.rand(4, 5))
        gc.collect()
        assert before() is None


def test_a_model_that_was_called_is_let_go_of(write_kernel: WriteKernel) -> None:
    made = write_kernel()()
    for context in (torch.no_grad, torch.enable_grad, lambda: use_policy("reference")):
        with context():
            made(X)
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None
