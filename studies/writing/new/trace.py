"""The computation of a problem's model, as torch.fx sees it: a graph with the shape of every value, and no values."""

from __future__ import annotations

import contextlib
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.func import functional_call
from torch.fx.passes.shape_prop import TensorMetadata, _extract_tensor_metadata
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tunebench.kernels.runtime.random_state import host_state
from tunebench.studies.writing.new.named_numbers import named_numbers
from tunebench.tuner.errors import UserError
from tunebench.tuner.gate.values import in_type, mapped
from tunebench.tuner.reference import DTYPES, Reference
from tunebench.tuner.users_code import described, users_code

_IN_PLACE: dict[Any, Callable[..., Any]] = {
    getattr(operator, f"__i{name}__"): getattr(operator, f"__{name}__")
    for name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "and", "or", "xor")
}
"""Operators that change their left side, with those that do not."""
_NOT_THE_SAME = ("bernoulli",)
"""Operations that are something else without the underscore that says in place."""
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
        dtypes: the types that a kernel of it is for, see `_dtypes_like`; all where there is no graph.
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
    with users_code("the problem's Model cannot be made", reference.path), fake:
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
    dtypes = _dtypes_like(model, inputs, output, fake)
    try:
        graph = _in_both_modes(model, inputs, fake)
    except Exception as error:  # noqa: BLE001 - whatever torch.fx or the model raises of a trace is a reason
        reason = str(error) if isinstance(error, UserError) else described(error)
    return Traced(model, inputs, names, defaults, graph, reason, shape, dtype, dtypes)


def _dtypes_like(model: nn.Module, inputs: tuple[Any, ...], output: object, fake: FakeTensorMode) -> tuple[str, ...]:
    """Return the types in which a model does the same as in its own, by the same numbers, in as many bits or more.

    `x.float()` is not the same in half types, nor in float64; `torch.finfo(x.dtype).min` is in none another.
    """
    own, made = main_dtype(model, inputs), _floating(output)
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    done: dict[torch.dtype, _Operations] = {}
    found = []
    for dtype in dict.fromkeys((own, *DTYPES.values())):
        try:
            with fake, torch.no_grad(), _Operations() as done[dtype]:
                there = _floating(functional_call(model, *mapped((held, inputs), in_type(dtype))))
        except Exception:  # noqa: BLE001 - whatever a model raises in another type, it is not for that
            continue
        is_same = [one.dtype for one in there] == [dtype if one.dtype == own else one.dtype for one in made]
        is_same &= done[dtype].by_numbers == done[own].by_numbers
        is_wide = dtype != torch.float64 or done[dtype].dtypes <= {dtype}
        if dtype == own or (is_same and is_wide):
            found.append(dtype)
    return tuple(name for name, dtype in DTYPES.items() if dtype in found)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects operations but casts, each with its numbers, and the floating types of what they make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes = set[torch.dtype]()
        self.by_numbers: list[tuple[object, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        numbers = [one for one in tree_leaves((args, kwargs)) if isinstance(one, int | float)]
        if func.namespace == "aten" and func is not torch.ops.aten._to_copy.default:
            self.by_numbers.append((func, *numbers))
        if func is torch.ops.aten.nan_to_num.default:  # its own numbers are the type's
            self.by_numbers.append((result.dtype,))
        self.dtypes |= {one.dtype for one in _floating(result)}
        return result


def main_dtype(model: nn.Module, inputs: Iterable[Any]) -> torch.dtype:
    """Return the floating type of a model's inputs, or else of what it holds."""
    tensors = _floating([*inputs, *model.parameters(), *model.buffers()])
    return next((one.dtype for one in tensors), torch.float32)


def _floating(tree: object) -> list[torch.Tensor]:
    leaves = tree_leaves(tree)
    return [one for one in leaves if isinstance(one, torch.Tensor) and one.is_floating_point()]


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
    _shapes(model, graph, inputs, fake)
    told = {node: node.meta.get("tensor_meta") for node in graph.nodes}
    for node in graph.nodes:
        if _writes(node, model):
            _have_new(node, _shapes(model, graph, inputs, fake))
    _shapes(model, graph, inputs, fake)
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


for _operator in _IN_PLACE:
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


def attribute_of(model: nn.Module, path: str) -> Any:
    """Return the attribute at a path of a model."""
    place, _, name = path.rpartition(".")
    return getattr(model.get_submodule(place), name)


def number_of(tensor: object) -> int | float | None:
    """The number that a tensor was made of in a trace; None of any other."""
    found: int | float | None = getattr(tensor, "number", None)
    return found


def _tensor_of(node: fx.Node) -> TensorMetadata | None:
    """Return the metadata of a node's value; None where that is no tensor."""
    told = node.meta.get("tensor_meta")
    return told if isinstance(told, TensorMetadata) else None


def shape_of(node: object) -> torch.Size | None:
    """The shape of a node's value; None where that is no tensor, or of what is no node."""
    told = _tensor_of(node) if isinstance(node, fx.Node) else None
    return None if told is None else told.shape


def dtype_of(node: fx.Node) -> torch.dtype | None:
    """The type of a node's value; None where that is no tensor."""
    told = _tensor_of(node)
    return None if told is None else told.dtype


def strides_of(node: fx.Node) -> tuple[int, ...] | None:
    """Where the elements of a node's value are in memory; None where that is no tensor."""
    told = _tensor_of(node)
    return None if told is None else tuple(told.stride)


def lies_in(node: fx.Node, formats: Iterable[torch.memory_format]) -> bool:
    """Whether a node's value lies in memory in one of these formats; True where it is no tensor."""
    if (told := _tensor_of(node)) is None:
        return True
    value = torch.empty_strided(told.shape, told.stride, device="meta")
    return any(value.is_contiguous(memory_format=one) for one in formats)


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


def descendants(node: fx.Node) -> set[fx.Node]:
    """All that is computed from a node's value."""
    return _reached(node.users, lambda one: one.users)


def ancestors(node: fx.Node) -> set[fx.Node]:
    """All that a node is computed from."""
    return _reached(node.all_input_nodes, lambda one: one.all_input_nodes)


def between(first: fx.Node, last: fx.Node) -> set[fx.Node]:
    """Return the nodes that compute the second node's value from the first's, with both."""
    return (ancestors(last) | {last}) & (descendants(first) | {first})


def _reached(first: Iterable[fx.Node], neighbours: Callable[[fx.Node], Iterable[fx.Node]]) -> set[fx.Node]:
    """The first nodes and all that neighbours lead to from there."""
    found: set[fx.Node] = set()
    waiting = list(first)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += neighbours(one)
    return found


_PLACES = {
    "torch": torch,
    "nn.functional": nn.functional,
    "math": math,
    "torch.linalg": torch.linalg,
    "torch.special": torch.special,
    "torch.fft": torch.fft,
}


def function_name(target: object) -> str | None:
    """A function of torch's as `torch.name` or `nn.functional.name`; None of any other."""
    for place, module in _PLACES.items():
        if getattr(module, getattr(target, "__name__", ""), None) is target:
            return f"{place}.{getattr(target, '__name__', '')}"
    found = (
        f"{place}.{name}"
        for place, module in _PLACES.items()
        for name, value in vars(module).items()
        if value is target and not name.startswith("_")
    )
    return next(found, None)


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


_Memory = tuple[int, tuple[object, ...]]
"""Which memory a tensor has, and where its elements are in it."""


class _Memories(fx.Interpreter):
    """Puts a shape on every node, and keeps what memory the nodes' tensors have."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        super().__init__(model, graph=graph)
        self.found: dict[fx.Node, _Memory] = {}
        self._kept: list[torch.UntypedStorage] = []

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, see `fx.Interpreter.run_node`; keep its tensor's metadata and storage."""
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            n.meta["tensor_meta"] = _extract_tensor_metadata(result)
            storage = result.untyped_storage()
            self._kept.append(storage)  # so that no other has its address
            where = (result.shape, result.stride(), result.storage_offset())
            self.found[n] = (storage._cdata, where)
        return result


def _shapes(model: nn.Module, graph: fx.Graph, inputs: tuple[Any, ...], fake: FakeTensorMode) -> dict[fx.Node, _Memory]:
    """Put a shape on every node; the memory of those that are tensors."""
    run = _Memories(model, graph)
    run.args_iter = iter(inputs)
    with torch.no_grad(), fake:
        for node in graph.nodes:  # `run.run` makes a lock of tqdm's too, which a process that is killed leaves
            run.env[node] = run.run_node(node)
    return run.found


def _have_new(node: fx.Node, memories: dict[fx.Node, _Memory]) -> None:
    """Let what uses a tensor after a change in place use the result of that change, and nothing be changed.

    Raises:
        UserError: an input, a parameter or a part of another tensor is changed, which no other order of the nodes says.
    """
    changed = node.args[0] if node.args else None
    if node.kwargs.get("out") is not None or not isinstance(changed, fx.Node):
        raise UserError(f"{node.name}, which writes into a tensor")
    if changed in memories:
        order = {one: number for number, one in enumerate(node.graph.nodes)}
        memory, where = memories[changed]
        for one in [one for one in memories if memories[one][0] == memory and order[one] < order[node]]:
            users = [user for user in one.users if user is not node]
            later = [user for user in users if order[user] > order[node]]
            # A layer goes on writing into what it is given: nothing else may need that as it was.
            is_needed = node.op == "call_module" and len(users) > len(later)
            if one.op in ("placeholder", "get_attr") or is_needed or (later and memories[one][1] != where):
                raise UserError(f"{node.name}, which changes '{one.name}' in place")
            for user in later:
                user.replace_input_with(one, node)
    _make_new(node)


def _make_new(node: fx.Node) -> None:
    """Have an operation in place make a new tensor; a layer stays one, whose input nobody else uses.

    Raises:
        UserError: there is no such form of it.
    """
    if node.target in _IN_PLACE:
        node.target = _IN_PLACE[node.target]
    elif "inplace" in node.kwargs:
        node.kwargs = {**node.kwargs, "inplace": False}
    elif node.op == "call_method":
        node.target = _plain_name(str(node.target), torch.Tensor, node.name)
    elif node.op == "call_function":
        place = next((one for one in (torch, nn.functional) if getattr(one, node.target.__name__, None)), torch)  # type: ignore[union-attr]
        node.target = getattr(place, _plain_name(node.target.__name__, place, node.name))  # type: ignore[union-attr]


def _plain_name(name: str, place: object, told: str) -> str:
    plain = name.removesuffix("_")
    if plain in _NOT_THE_SAME or not callable(getattr(place, plain, None)):
        raise UserError(f"{told}, which changes a tensor in place")
    return plain


def _writes(node: fx.Node, model: nn.Module) -> bool:
    """Whether a node changes a tensor that is there."""
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace") is True or node.target in _IN_PLACE:
        return True
    if node.op == "call_module":
        return getattr(model.get_submodule(str(node.target)), "inplace", False) is True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op in ("call_method", "call_function") and name.endswith("_") and not name.startswith("__")


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
