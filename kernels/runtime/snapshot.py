"""Snapshot of all that a decision or a kept value depends on, and the test that it still holds.

| what may change | how it is noticed | by whom |
| --- | --- | --- |
| what a module and all inside hold, hooks included | versions of dictionaries (`guards.py`) | `Snapshot.is_of` |
| what lists, dictionaries, sets and other objects hold that are attributes | identity of each part | `Snapshot.is_of` |
| values of tensors | identity, PyTorch's count of changes, address, layout | `Snapshot.has` |
| kinds of tensors, and what PyTorch does with operations | `guards.same_tensors` | `Snapshot.has`, `Precedent` |
| rules, gradients, hooks of all modules, PyTorch's settings | each is read | `Precedent` |
| what a module is made of, whoever holds it | equality | `Structure`, `has_parts` |

A `Precedent` (who served a call, eager or compiled; `served.py`) and what is derived from weights (`derived.py`) hold a
snapshot each. Compiled and exported programs, which are for any module of a kind, compare structures (`outline.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any, TypeAlias

import torch
from torch import nn

from tunebench.kernels.runtime.attributes import OF_EVERY_MODULE, fields_of
from tunebench.kernels.runtime.guards import Content, same_tensors, version_of, version_of_attributes
from tunebench.kernels.runtime.ordinary import held

_TABLES = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")
"""The dictionaries of a module whose content a kernel depends on, beside that of its attributes."""
_READ_WHEN_RUN = ("policy", "accuracy", "wait")
"""Attributes that no graph depends on: they are read from the module itself whenever a program runs."""

Path: TypeAlias = tuple[str, ...]
"""The path of an attribute: the names from the module down to it."""

_address_of = torch.Tensor.data_ptr
_version_of = attrgetter("_version")


class Snapshot:
    """The state of a module, or of tensors, that something was decided for or made from.

    What it names is held, tensors with their memory: while it is, no other object can have that identity, and no other
    memory that address, so that neither can be mistaken for it later.

    Args:
        module: all that it holds, with all inside; None where no module matters.
        values: tensors whose values matter.

    Attributes:
        parameters, buffers: of the module, as `held` has them.
        tensors: these, and those whose values matter.
    """

    __slots__ = (
        "_attributes",
        "_containers",
        "_contents",
        "_counts",
        "_empty",
        "_kind",
        "_layouts",
        "_memory",
        "_of_attributes",
        "_tables",
        "_versions",
        "buffers",
        "parameters",
        "tensors",
    )

    def __init__(self, module: nn.Module | None = None, values: tuple[torch.Tensor, ...] | None = None) -> None:
        self._attributes = [*map(vars, module.modules())] if module is not None else []
        tables = [attributes[name] for attributes in self._attributes for name in _TABLES]
        # Most hold nothing, and are only checked for that.
        self._tables, self._empty = [one for one in tables if one], [one for one in tables if not one]
        self._of_attributes = [*map(version_of_attributes, self._attributes)]
        self._versions = [*map(version_of, self._tables)]
        pairs = [pair for attributes in self._attributes for pair in attributes.items()]
        own = [(name, value) for name, value in pairs if name not in OF_EVERY_MODULE]
        self._containers = [one for _, value in own for one in _containers_in(value)]
        self._containers += [vars(value) for name, value in own if name[0] != "_" and fields_of(value)]
        self._contents = [*map(_content_of, self._containers)]
        self.parameters, self.buffers = held(module) if module is not None else ([], [])
        self.tensors = (*self.parameters, *self.buffers, *(values or ()))
        if values is not None:
            self._memory = [tensor.untyped_storage() for tensor in values]
            self._counts = [[*map(_version_of, values)], [*map(_address_of, values)]]
            self._layouts = [*map(_layout, values)]
            self._kind = same_tensors(*values)  # stricter than needed, but cheap

    def belongs_to(self, module: object) -> bool:
        """Return whether it was taken of this module, and of no copy."""
        return module.__dict__ is self._attributes[0]

    def is_of(self, module: object) -> bool:
        """Return whether a module holds what it held."""
        return (
            module.__dict__ is self._attributes[0]
            and not any(self._empty)
            and [*map(version_of_attributes, self._attributes)] == self._of_attributes
            and [*map(version_of, self._tables)] == self._versions
            and (not self._containers or [*map(_content_of, self._containers)] == self._contents)
        )

    def has(self, values: tuple[torch.Tensor, ...]) -> bool:
        """Return whether these are the tensors whose values matter, unchanged."""
        return (
            len(values) == len(self.tensors)
            and all(map(is_, values, self.tensors))
            and [[*map(_version_of, values)], [*map(_address_of, values)]] == self._counts
            and (self._kind(*values) or [*map(_layout, values)] == self._layouts)
        )


def _containers_in(value: Any) -> Iterator[Any]:
    """Yield what can be changed without being replaced: lists, dictionaries and sets, with those inside."""
    kind = type(value)
    if kind in (list, dict, set):
        yield value
    if kind in (list, dict, tuple):
        for one in value.values() if kind is dict else value:
            yield from _containers_in(one)


def _content_of(container: Any) -> object:
    return version_of(container) if type(container) is dict else Content(dict(enumerate(container)))


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.device, tensor.dtype, tensor.shape, tensor.stride()


Part: TypeAlias = tuple[type[nn.Module], frozenset[str]]
"""A module's type, and the names of the parameters and buffers that are its own."""


def parts(module: nn.Module) -> list[Part]:
    """Return the module itself and its submodules."""
    return [(type(one), frozenset((*one._parameters, *one._buffers))) for one in module.modules()]


def has_parts(module: nn.Module, made: Sequence[Part]) -> bool:
    """Return whether it has these parts, none without a parameter or buffer that it had, nor with a hook inside.

    A kernel reads these, and passes over hooks. Where a parameter is replaced by what is computed from another one
    (pruning, weight normalisation, any parametrization), the kernel's backward would not reach that one.
    """
    if any(one is not module and (one._forward_hooks or one._forward_pre_hooks) for one in module.modules()):
        return False
    found = parts(module)
    return len(found) == len(made) and all(
        kind is expected and names >= needed for (kind, names), (expected, needed) in zip(found, made, strict=True)
    )


def every_attribute(module: nn.Module) -> Iterator[tuple[Path, Any]]:
    """Yield the attributes of a module and of all inside, by their paths.

    Names that begin with an underscore are a module's own business, but that it may hold tensors there.
    """
    for where, part in module.named_modules():
        path = tuple(where.split(".")) if where else ()
        for name, value in vars(part).items():
            yield (*path, name), value


@dataclass(frozen=True)
class Structure:
    """The composition of a module, without its tensors' values and its numbers: equal modules have equal ones.

    Attributes:
        parts: the type of each submodule, and the names of its parameters and buffers as it has them.
        numbers: where its numbers are.
        settings: its other attributes that can be compared, such as text and tuples.
        others: where attributes are that cannot.
        has_tensors: there are tensors among the attributes that are neither parameters nor buffers.
    """

    parts: tuple[tuple[Path, type, tuple[str, ...]], ...]
    numbers: tuple[Path, ...]
    settings: tuple[tuple[Path, Any], ...]
    others: tuple[Path, ...]
    has_tensors: bool

    @classmethod
    def of(cls, module: nn.Module) -> Structure:
        """Return the structure of a module."""
        inside = [(tuple(where.split(".")) if where else (), part) for where, part in module.named_modules()]
        every = [*every_attribute(module)]
        public = [(path, value) for path, value in every if path[-1][0] != "_" and path[-1] not in _READ_WHEN_RUN]
        return cls(
            tuple((path, type(part), (*part._parameters, *part._buffers)) for path, part in inside),
            tuple(path for path, value in public if isinstance(value, int | float)),
            tuple((path, value) for path, value in public if _is_setting(value)),
            tuple(path for path, value in public if not (isinstance(value, int | float) or _is_setting(value))),
            any(isinstance(value, torch.Tensor) for _, value in every),
        )


def _is_setting(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_setting(one) or isinstance(one, int | float) for one in value)
    return value is None or isinstance(value, str)
