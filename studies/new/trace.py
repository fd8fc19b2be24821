"""What a problem's model computes, as torch.fx sees it: a graph with the shape of every value, and no values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx.passes.shape_prop import ShapeProp, TensorMetadata

from tunebench.studies.new.named_numbers import named_numbers
from tunebench.tuner.reference import Reference
from tunebench.tuner.users_code import described, users_code

_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


@dataclass(frozen=True)
class Traced:
    """A problem's model.

    Attributes:
        model: its tensors have no values.
        inputs: of `get_inputs`; tensors have no values.
        names: of the arguments of `forward`.
        graph: what it computes; None where it cannot be traced.
        reason: why there is no graph.
        output: the shape of what it returns; None where that is no tensor, or depends on values.
    """

    model: nn.Module
    inputs: tuple[Any, ...]
    names: tuple[str, ...]
    graph: fx.Graph | None
    reason: str
    output: torch.Size | None


def trace(reference: Reference) -> Traced:
    """Trace a problem's model, without memory for its weights and inputs.

    Raises:
        KernelFolderError: the model cannot be made, or does not run.
    """
    fake = FakeTensorMode()
    with users_code("the problem's Model cannot be made", reference.path), fake:
        model = reference.model(*reference.get_init_inputs())
    with users_code("get_inputs() does not run", reference.path), fake:
        inputs = tuple(reference.get_inputs())
    shape, graph, reason = None, None, ""
    with users_code("the problem's Model does not run", reference.path), torch.no_grad(), fake:
        try:
            output = model(*inputs)
            shape = output.shape if isinstance(output, torch.Tensor) else None
        except _NEEDS_VALUES as error:
            return Traced(model, inputs, _names_of(model), None, described(error), None)
    try:
        with named_numbers(model), _numbers_for_tensors(), fake:
            graph = fx.Tracer().trace(model)
        _shapes(model, graph, inputs, fake)
    except Exception as error:  # noqa: BLE001 - whatever torch.fx or the model raises of a trace is a reason
        graph, reason = None, described(error)
    names = tuple(node.name for node in graph.nodes if node.op == "placeholder") if graph is not None else ()
    return Traced(model, inputs, names or _names_of(model), graph, reason, shape)


def number_of(tensor: object) -> int | float | None:
    """The number that a tensor was made of in a trace; None of any other."""
    found: int | float | None = getattr(tensor, "number", None)
    return found


def shape_of(node: fx.Node) -> torch.Size | None:
    """The shape of a node's value; None where that is no tensor."""
    told = node.meta.get("tensor_meta")
    return told.shape if isinstance(told, TensorMetadata) else None


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
    for place, module in (("torch", torch), ("nn.functional", nn.functional)):
        if getattr(module, getattr(target, "__name__", ""), None) is target:
            return f"{place}.{getattr(target, '__name__', '')}"
    of_functional = (name for name, value in vars(nn.functional).items() if value is target)
    return next((f"nn.functional.{name}" for name in of_functional), None)


def _names_of(model: nn.Module) -> tuple[str, ...]:
    import inspect

    return tuple(inspect.signature(model.forward).parameters)


def _shapes(model: nn.Module, graph: fx.Graph, inputs: tuple[Any, ...], fake: FakeTensorMode) -> None:
    """Put a shape on every node."""
    module = fx.GraphModule(model, graph)
    with torch.no_grad(), fake:
        ShapeProp(module).propagate(*inputs)


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
