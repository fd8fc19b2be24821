"""What a problem's model computes, as torch.fx sees it: a graph with the shape of every value, and no values."""

from __future__ import annotations

import contextlib
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx.passes.shape_prop import ShapeProp, TensorMetadata

from tunebench.studies.new.named_numbers import named_numbers
from tunebench.tuner.errors import UserError
from tunebench.tuner.reference import Reference
from tunebench.tuner.users_code import described, users_code

_WRITES = (
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv),
    *(operator.ipow, operator.imod, operator.iand, operator.ior, operator.ixor),
)
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
    """

    model: nn.Module
    inputs: tuple[Any, ...]
    names: tuple[str, ...]
    defaults: Mapping[str, Any]
    graph: fx.Graph | None
    reason: str
    output: torch.Size | None
    dtype: torch.dtype | None


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
    try:
        with named_numbers(model), _numbers_for_tensors(), fake:
            graph = fx.Tracer().trace(model)
        for node in graph.nodes:
            _in_one_form(node)
        _without_changes_in_place(model, graph, _shapes(model, graph, inputs, fake))
    except Exception as error:  # noqa: BLE001 - whatever torch.fx or the model raises of a trace is a reason
        graph, reason = None, described(error)
    return Traced(model, inputs, names, defaults, graph, reason, shape, dtype)


def number_of(tensor: object) -> int | float | None:
    """The number that a tensor was made of in a trace; None of any other."""
    found: int | float | None = getattr(tensor, "number", None)
    return found


def shape_of(node: fx.Node) -> torch.Size | None:
    """The shape of a node's value; None where that is no tensor."""
    told = node.meta.get("tensor_meta")
    return told.shape if isinstance(told, TensorMetadata) else None


def lies_in(node: fx.Node, formats: Iterable[torch.memory_format]) -> bool:
    """Whether a node's value lies in memory in one of these formats; True where it is no tensor."""
    told = node.meta.get("tensor_meta")
    if not isinstance(told, TensorMetadata):
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
    return _reached(node, lambda one: one.users)


def ancestors(node: fx.Node) -> set[fx.Node]:
    """All that a node is computed from."""
    return _reached(node, lambda one: one.all_input_nodes)


def between(first: fx.Node, last: fx.Node) -> set[fx.Node]:
    """What is computed from one node's value for another's, with both."""
    return (ancestors(last) | {last}) & (descendants(first) | {first})


def _reached(node: fx.Node, neighbours: Callable[[fx.Node], Iterable[fx.Node]]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    waiting = list(neighbours(node))
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += neighbours(one)
    return found


def function_name(target: object) -> str | None:
    """A function of torch's as `torch.name` or `nn.functional.name`; None of any other."""
    for place, module in (("torch", torch), ("nn.functional", nn.functional), ("math", math)):
        if getattr(module, getattr(target, "__name__", ""), None) is target:
            return f"{place}.{getattr(target, '__name__', '')}"
    of_functional = (name for name, value in vars(nn.functional).items() if value is target)
    return next((f"nn.functional.{name}" for name in of_functional), None)


def _arguments_of(model: nn.Module, given: int) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of the arguments of `forward`, and the defaults of those that so many inputs leave out."""
    parameters = inspect.signature(model.forward).parameters
    for one in parameters.values():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            raise UserError(f"the problem's forward takes '{one}': give every argument a name of its own")
    return tuple(parameters), {name: one.default for name, one in list(parameters.items())[given:]}


def _in_one_form(node: fx.Node) -> None:
    """Have the first tensor by position, arguments of `forward` by their own names, functions of `math` as they are."""
    if node.op == "placeholder":
        node.name = str(node.target)
    elif not node.args and "input" in node.kwargs:
        node.args = (node.kwargs["input"],)
        node.kwargs = {name: one for name, one in node.kwargs.items() if name != "input"}
    elif getattr(node.target, "__module__", "") == "math":
        node.target = inspect.unwrap(node.target)  # type: ignore[arg-type]


_Memory = tuple[int, tuple[object, ...]]
"""Which memory a tensor has, and where its elements are in it."""


class _Memories(ShapeProp):
    """Puts a shape on every node, and keeps what memory the nodes' tensors have."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[fx.Node, _Memory] = {}
        self._kept: list[torch.UntypedStorage] = []

    def run_node(self, n: fx.Node) -> Any:
        """As of any node."""
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            storage = result.untyped_storage()
            self._kept.append(storage)  # so that no other has its address
            where = (result.shape, result.stride(), result.storage_offset())
            self.found[n] = (storage._cdata, where)
        return result


def _shapes(model: nn.Module, graph: fx.Graph, inputs: tuple[Any, ...], fake: FakeTensorMode) -> dict[fx.Node, _Memory]:
    """Put a shape on every node; the memory of those that are tensors."""
    run = _Memories(fx.GraphModule(model, graph))
    with torch.no_grad(), fake:
        run.propagate(*inputs)
    return run.found


def _without_changes_in_place(model: nn.Module, graph: fx.Graph, memories: dict[fx.Node, _Memory]) -> None:
    """Let what uses a tensor after a change in place use the result of that change.

    Raises:
        UserError: an input, a parameter or a part of another tensor is changed, which no other order of the nodes says.
    """
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if not _is_in_place(node, model):
            continue
        changed = node.args[0]
        if node.kwargs.get("out") is not None or not isinstance(changed, fx.Node):
            raise UserError(f"{node.name}, which writes into a tensor")
        memory, where = memories[changed]
        for one in [one for one in memories if memories[one][0] == memory and order[one] < order[node]]:
            later = [user for user in one.users if order[user] > order[node]]
            if one.op in ("placeholder", "get_attr") or (later and memories[one][1] != where):
                raise UserError(f"{node.name}, which changes '{one.name}' in place")
            for user in later:
                user.replace_input_with(one, node)


def _is_in_place(node: fx.Node, model: nn.Module) -> bool:
    if node.kwargs.get("inplace") is True or node.kwargs.get("out") is not None or node.target in _WRITES:
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
