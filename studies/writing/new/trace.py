"""The computation of a problem's model, as torch.fx sees it: a graph with the shape of every value, and no values."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx.passes.shape_prop import TensorMetadata

from tunebench.kernels.runtime.random_state import host_state
from tunebench.studies.writing.new.dtypes import dtypes_like
from tunebench.studies.writing.new.in_place import IN_PLACE, have_new, put_shapes, writes
from tunebench.studies.writing.new.named_numbers import named_numbers
from tunebench.studies.writing.new.nodes import number_of
from tunebench.tuner.errors import UserError
from tunebench.tuner.reference import DTYPES, Reference
from tunebench.tuner.users_code import described, users_code

_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


@dataclass(frozen=True)
class Traced:
    """A problem's model.

    Attributes:
        model: its tensors have no values.
        inputs: of `get_inputs`, and numbers that `forward` takes by default behind them; tensors have no values.
        names: of the arguments of `forward`.
        defaults: of those that `get_inputs` leaves out.
        graph: what it computes; None where it cannot be traced.
        reason: why there is no graph.
        output: the shape of what it returns; None where that is no tensor, or depends on values.
        dtype: of what it returns; None likewise.
        dtypes: the types that a kernel of it is for, see `dtypes_like`; all where there is no graph.
    """

    model: nn.Module
    inputs: tuple[Any, ...]
    names: tuple[str, ...]
    defaults: Mapping[str, Any]
    graph: fx.Graph | None
    reason: str
    output: torch.Size | None
    dtype: torch.dtype | None
    dtypes: tuple[str, ...] = tuple(DTYPES)

    def free(self, name: str) -> str:
        """Return a name for a variable of the written methods that no value of the trace has."""
        taken = {*self.names, *(node.name for node in (() if self.graph is None else self.graph.nodes))}
        while name in taken:
            name += "_"
        return name


def trace(reference: Reference) -> Traced:
    """Trace a problem's model, without memory for its weights and inputs.

    Raises:
        KernelFolderError: the model cannot be made, or does not run.
        UserError: its `forward` takes arguments without names.
    """
    fake = FakeTensorMode()
    with users_code("the problem's Model cannot be made", reference.path), fake, converted_in_place():
        model = reference.model(*reference.get_init_inputs())
    with users_code("get_inputs() does not run", reference.path), fake:
        inputs = tuple(reference.get_inputs())
    names, defaults = _arguments_of(model, len(inputs))
    shape, dtype, graph, reason = None, None, None, ""
    with users_code("the problem's Model does not run", reference.path), torch.no_grad(), fake:
        try:
            output = model(*inputs)
            if isinstance(output, torch.Tensor):
                shape, dtype = output.shape, output.dtype
        except _NEEDS_VALUES as error:
            return Traced(model, inputs, names, defaults, None, described(error), None, None)
    if other := [name for name, one in defaults.items() if type(one) not in (int, float)]:
        reason = f"the argument '{other[0]}', which get_inputs() leaves out"
        return Traced(model, inputs, names, defaults, None, reason, shape, dtype)
    inputs += tuple(defaults.values())
    dtypes = dtypes_like(model, inputs, output, fake)
    try:
        graph = _in_both_modes(model, inputs, fake)
    except Exception as error:  # noqa: BLE001 - whatever torch.fx or the model raises of a trace is a reason
        reason = str(error) if isinstance(error, UserError) else described(error)
    return Traced(model, inputs, names, defaults, graph, reason, shape, dtype, dtypes)


@contextlib.contextmanager
def converted_in_place() -> Iterator[None]:
    """Convert parameters by their data where torch swaps tensors, which those without values refuse (torch 2.11)."""
    swap = torch.utils.swap_tensors

    def take(one: torch.Tensor, other: torch.Tensor) -> None:
        one.data = other.data

    torch.utils.swap_tensors = take
    try:
        yield
    finally:
        torch.utils.swap_tensors = swap


def _in_both_modes(model: nn.Module, inputs: tuple[Any, ...], fake: FakeTensorMode) -> fx.Graph:
    """The graph of a model, with a note on each argument that is whether the model trains.

    Raises:
        UserError: there is no graph that computes the same; the message says why.
    """
    was_training = {module: module.training for module in model.modules()}
    try:
        in_training = _graph_of(model, fake, training=True)
        for name in [name for name in vars(model) if name.startswith(_CONSTANT)]:
            delattr(model, name)  # so that the other trace's have the same names
        graph = _graph_of(model, fake, training=False)
    finally:
        for module, training in was_training.items():
            module.training = training
    _note_training(graph, in_training)
    for node in graph.nodes:
        if node.op == "call_module" and not node.users:
            raise UserError(f"forward calls '{node.target}', whose result nothing uses")
    put_shapes(model, graph, inputs, fake)
    told = {node: node.meta.get("tensor_meta") for node in graph.nodes}
    for node in graph.nodes:
        if writes(node, model):
            have_new(node, put_shapes(model, graph, inputs, fake))
    put_shapes(model, graph, inputs, fake)
    for node in graph.nodes:
        before, now = told[node], node.meta.get("tensor_meta")
        if isinstance(before, TensorMetadata) and (before.shape, before.dtype) != (now.shape, now.dtype):
            raise UserError(f"{node.name}, which makes another type or shape when it is not in place")
    return graph


def _graph_of(model: nn.Module, fake: FakeTensorMode, *, training: bool) -> fx.Graph:
    """The trace of a model in one mode, with numbers that became tensors noted.

    Raises:
        UserError: it makes other tensors, or changes what a trace does not show.
    """
    model.train(training)
    with named_numbers(model), _numbers_for_tensors(), _unchanged(model), fake:
        graph = _Tracer().trace(model)
    for node in graph.nodes:
        _in_one_form(node)
        if node.op == "get_attr":
            place, _, name = str(node.target).rpartition(".")
            module = model.get_submodule(place)
            node.meta["number"] = number = number_of(getattr(module, name))
            if name not in module._parameters and name not in module._buffers:
                if number is None:
                    raise UserError("forward makes a tensor of its own")
                if not name.startswith(_CONSTANT):  # what it is later nobody would notice
                    raise UserError(f"'{node.target}' is a tensor and no buffer")
    return graph


_CONSTANT = "_tensor_constant"
"""How the names begin that torch.fx gives to tensors which it finds in a trace."""


class _Proxy(fx.Proxy):
    """A value of a trace that knows of changes in place, which torch.fx takes for new values."""

    def __getattr__(self, name: str) -> _Proxy:  # type: ignore[override]
        return _Attribute(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("tracer", "node", "root", "attr", "_node"):
            raise UserError(f"forward sets the attribute '{name}' of a tensor")
        super().__setattr__(name, value)


class _Attribute(_Proxy, fx.proxy.Attribute):
    """An attribute of such a value."""


def _changing(target: Callable[..., Any]) -> Callable[[_Proxy, Any], fx.Proxy]:
    return lambda self, other: self.tracer.create_proxy("call_function", target, (self, other), {})


for _operator in IN_PLACE:
    setattr(_Proxy, f"__{_operator.__name__}__", _changing(_operator))


class _Tracer(fx.Tracer):
    """Sees changes in place, and all that is done with buffers."""

    proxy_buffer_attributes = True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return the proxy of a node, see `fx.Tracer.proxy`."""
        return _Proxy(node, self)


@contextlib.contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Refuse a forward that changes what a trace does not show.

    Raises:
        UserError: it changes an attribute, or draws numbers from Python's or NumPy's generator.
    """

    def state() -> dict[str, object]:
        return {
            f"{place}.{name}" if place else name: list(value) if isinstance(value, list | dict | set) else value
            for place, module in model.named_modules()
            for held in (vars(module), module._parameters, module._buffers, module._modules)
            for name, value in held.items()
            if not name.startswith("_")
        }

    before, drawn = state(), host_state()
    yield
    after = state()
    for name in before | after:
        one, other = before.get(name), after.get(name)
        if one is not other and not (isinstance(one, list) and isinstance(other, list) and _alike(one, other)):
            raise UserError(f"forward changes its attribute '{name}'")
    if drawn != host_state():
        raise UserError("forward draws random numbers from another generator than torch's")


def _alike(one: Sequence[object], other: Sequence[object]) -> bool:
    return len(one) == len(other) and all(left is right for left, right in zip(one, other, strict=True))


def _note_training(graph: fx.Graph, in_training: fx.Graph) -> None:
    """Note in `meta` which arguments of a graph are `self.training`, by comparison with the graph in train mode.

    Raises:
        UserError: the graphs differ in more.
    """
    nodes, others = list(graph.nodes), list(in_training.nodes)
    names = dict(zip(others, nodes, strict=False))
    same = len(nodes) == len(others)
    for node, other in zip(nodes, others, strict=False):
        eval_arguments = dict([*enumerate(node.args), *node.kwargs.items()])
        trained: Any = fx.node.map_arg([*enumerate(other.args), *other.kwargs.items()], names.get)
        train_arguments = dict(trained)
        places = {
            place
            for place, one in eval_arguments.items()
            if type(one) is bool and train_arguments.get(place) is (not one)
        }
        same = same and (node.op, node.target) == (other.op, other.target)
        same = same and node.meta.get("number") == other.meta.get("number")
        same = same and eval_arguments.keys() == train_arguments.keys()
        same = same and all(one == train_arguments[at] for at, one in eval_arguments.items() if at not in places)
        if not same:
            raise UserError("forward computes something else in train mode than in eval mode")
        if places:
            node.meta["training"] = places


@dataclass(frozen=True)
class Given:
    """The value that a block is given, and the argument of `forward` in whose place it stands."""

    node: fx.Node
    name: str

    @property
    def is_itself(self) -> bool:
        """Whether it is that argument."""
        return self.node.op == "placeholder" and self.node.name == self.name


def ways_to_give(traced: Traced, node: fx.Node) -> list[Given]:
    """How a block can be given a value: an argument as itself, any value in the place of the first argument."""
    names = [node.name, traced.names[0]] if node.op == "placeholder" else [traced.names[0]]
    return [Given(node, name) for name in dict.fromkeys(names)]


def _arguments_of(model: nn.Module, given: int) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of the arguments of `forward`, and the defaults of those that so many inputs leave out."""
    parameters = inspect.signature(model.forward).parameters
    for one in parameters.values():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            raise UserError(f"the problem's forward takes '{one}': give every argument a name of its own")
    return tuple(parameters), {name: one.default for name, one in list(parameters.items())[given:]}


def _in_one_form(node: fx.Node) -> None:
    """Have the first tensor by position, `inplace` by name, arguments of `forward` by their own names.

    Functions of `math` are as they were before the trace replaced them.
    """
    if node.op == "placeholder":
        node.name = str(node.target)
    elif not node.args and "input" in node.kwargs:
        node.args = (node.kwargs["input"],)
        node.kwargs = {name: one for name, one in node.kwargs.items() if name != "input"}
    elif getattr(node.target, "__module__", "") == "math":
        node.target = inspect.unwrap(node.target)  # type: ignore[arg-type]
    elif getattr(node.target, "__module__", "") == nn.functional.__name__:
        names = list(inspect.signature(node.target).parameters)  # type: ignore[arg-type]
        if "inplace" in names and len(node.args) > names.index("inplace"):
            at = names.index("inplace")
            node.kwargs = {**node.kwargs, **dict(zip(names[at:], node.args[at:], strict=False))}
            node.args = node.args[:at]


@contextlib.contextmanager
def _numbers_for_tensors() -> Iterator[None]:
    """Within it `torch.tensor(number, device=x.device)` is anywhere: a trace cannot make a tensor where x is."""
    make: Callable[..., Any] = torch.tensor

    def number_or_tensor(data: Any, *arguments: Any, **named: Any) -> Any:
        if not isinstance(data, int | float):
            return make(data, *arguments, **named)
        made = make(float(data))
        made.number = data
        return made

    torch.tensor = number_or_tensor
    try:
        yield
    finally:
        torch.tensor = make
