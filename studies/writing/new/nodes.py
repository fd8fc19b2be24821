"""Questions about the nodes of a trace: what their values are, and which others they are computed from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import TensorMetadata


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
