"""The value that a model returns: a tree of plain values, taken apart into leaves that have a path each.

A plain value is a tensor, a number, a bool, a text, None, or a tuple, list or dictionary of plain values. Of a tree
taken apart, `kinds` says what stands where and `leaves` has the values, so that two trees are compared by their kinds
first, and then leaf by leaf.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

Leaf = torch.Tensor | bool | int | float | str | None

ROOT = "output"
"""The path of the whole; parts are called `output[1]` and `output['loss']`."""

_PLAIN = {bool: "a bool", int: "an int", float: "a float", str: "a text", type(None): "None"}
_TENSOR = "a tensor"
_STRANGE = "a value of type "
_TORCH_TUPLE = re.compile(r"^a torch\.return_types\.\w+ of")
_MOST_NESTED = 16
_MOST_LEAVES = 4096


@dataclass(frozen=True)
class Values:
    """A tree of plain values, taken apart.

    Attributes:
        kinds: what stands at each path, the whole before its parts, in words: `a tensor`, `a float`, `a tuple of 2`,
            `a dictionary of 'loss', 'y'`; of what is no plain value, `a value of type` and its type.
        leaves: the plain values that are no containers, by path, in the same order.
    """

    kinds: Mapping[str, str]
    leaves: Mapping[str, Leaf]

    @classmethod
    def of(cls, value: object) -> Values:
        """Take a value apart."""
        if type(value) is torch.Tensor:  # most models return this, and are called often
            return cls({ROOT: _TENSOR}, {ROOT: value})
        kinds: dict[str, str] = {}
        leaves: dict[str, Leaf] = {}
        for path, kind, leaf in _parts(value, ROOT, 0):
            kinds[path] = kind
            if leaf is not _CONTAINER:
                leaves[path] = leaf
            if len(kinds) > _MOST_LEAVES:
                return cls({ROOT: f"{_STRANGE}{_name_of(type(value))} with more than {_MOST_LEAVES} parts"}, {})
        return cls(kinds, leaves)

    @property
    def strange(self) -> str | None:
        """The first part that is no plain value, in words; None where all are."""
        found = (f"{words(path)} is {kind}" for path, kind in self.kinds.items() if kind.startswith(_STRANGE))
        return next(found, None)

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The tensors among the leaves."""
        return {path: leaf for path, leaf in self.leaves.items() if isinstance(leaf, torch.Tensor)}

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Values:
        """The same tree with other tensors."""
        leaves = {path: change(leaf) if isinstance(leaf, torch.Tensor) else leaf for path, leaf in self.leaves.items()}
        return replace(self, leaves=leaves)


def tensors_in(values: Iterable[object]) -> list[torch.Tensor]:
    """The tensors among some values and within them, in order."""
    return [tensor for value in values for tensor in Values.of(value).tensors.values()]


def cloned(values: Sequence[Any]) -> tuple[Any, ...]:
    """The same values with copies of their tensors."""
    return tuple(mapped(value, torch.clone) for value in values)


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """A value with other tensors: itself, or those within tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(mapped(item, change) for item in value)
    return {key: mapped(item, change) for key, item in value.items()} if type(value) is dict else value


def in_type(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a change of floating-point tensors to a type, and of no others."""
    return lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that has memory of its own: one place for all along each axis with a step of zero."""
    for axis, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and step == 0:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def difference_of_kinds(got: Values, wanted: Values, *, by_name: bool = False) -> str | None:
    """The first difference in structure, in one line; None where both are built alike.

    Args:
        by_name: a plain tuple may not stand for one of torch's, whose parts have names as well.
    """
    for path, kind in wanted.kinds.items():
        other = got.kinds.get(path, "nothing")
        if other != kind and (by_name or other != _TORCH_TUPLE.sub("a tuple of", kind)):
            return f"{words(path)} is {other} in place of {kind}"
    if list(got.leaves) != list(wanted.leaves):
        return f"{words(ROOT)} has other parts than it says"
    for path, leaf in wanted.leaves.items():
        if not isinstance(leaf, torch.Tensor) and type(got.leaves[path]) is not type(leaf):
            return f"{words(path)} is not what it says to be"
        if isinstance(leaf, torch.Tensor) and not isinstance(got.leaves[path], torch.Tensor):
            return f"{words(path)} is not what it says to be"
    return None


def words(path: str) -> str:
    """A path for people."""
    return "the output" if path == ROOT else path


class _Container:
    """Stands where a container does, which is no leaf."""


_CONTAINER: Any = _Container()


def _parts(value: object, path: str, depth: int) -> Iterator[tuple[str, str, Leaf]]:
    """Path, kind and leaf of a value and of everything in it. Nothing that a class defines is run."""
    kind = type(value)
    if kind in (torch.Tensor, nn.Parameter):
        yield path, _TENSOR, value  # type: ignore[misc]
    elif kind in _PLAIN:
        yield path, _PLAIN[kind], value  # type: ignore[misc]
    elif depth < _MOST_NESTED and isinstance(value, tuple | list):
        items = list(tuple.__iter__(value) if isinstance(value, tuple) else list.__iter__(value))
        yield path, f"a {_name_of(kind)} of {len(items)}", _CONTAINER
        for number, item in enumerate(items):
            yield from _parts(item, f"{path}[{number}]", depth + 1)
    elif depth < _MOST_NESTED and isinstance(value, dict) and all(type(key) in _PLAIN for key in dict.keys(value)):
        # Two dictionaries are equal in whatever order they were filled.
        pairs = sorted((repr(key), item) for key, item in dict.items(value))
        yield path, f"a {_name_of(kind)} of {', '.join(key for key, _ in pairs) or 'nothing'}", _CONTAINER
        for key, item in pairs:
            yield from _parts(item, f"{path}[{key}]", depth + 1)
    elif isinstance(value, torch.Tensor) and _is_plain_inside(kind):
        with torch._C.DisableTorchFunctionSubclass():
            yield path, f"a tensor of type {_name_of(kind)}", value.as_subclass(torch.Tensor)
    else:
        yield path, f"{_STRANGE}{_name_of(kind)}", _CONTAINER


def _name_of(kind: type) -> str:
    """A type's name; that of torch's with its module, since `max` alone says little."""
    if kind is dict:
        return "dictionary"
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__module__.startswith("torch") else kind.__qualname__


def _is_plain_inside(kind: type) -> bool:
    """Whether such a tensor's memory holds its values: one with a dispatch of its own may make them later, or never."""
    return getattr(kind, "__torch_dispatch__", None) is torch.Tensor.__torch_dispatch__
